"""Users' datasets with rows of different lengths: what is found ragged, how it is read, what is refused."""

import pickle
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.errors import ChangedError, LoaderError, SourceError
from flodl_pipe.sampling.collate import make_collate
from flodl_pipe.sources.adapters import adapt
from flodl_pipe.sources.any_source import as_source
from flodl_pipe.sources.protocol import BundledSource, HasLengths, RaggedSource
from flodl_pipe.sources.user_source import UserSource
from tests.contract.sources import read_delivered


class Maps:
    """A map-style dataset that returns ``make(i)``."""

    def __init__(self, make, n=100):
        self.make, self.n, self.asked = make, n, []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.asked.append(index)
        return self.make(index)


class Together(Maps):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Gets(Maps):
    __getitem__ = None

    def get(self, index):
        return self.make(index)


def text(index):
    """A sample: as many ids as the index says, a fixed field, and a label."""
    return {"ids": torch.arange(index % 7), "x": np.full((2, 2), index, np.float32), "label": index}


def rows(source, indices):
    return source.deliver_rows(source.read_rows(np.array(indices, dtype=np.int64)))


@pytest.mark.parametrize("kind", [Maps, Together, Gets])
def test_a_field_whose_first_axis_differs_is_ragged(kind):
    source = adapt(kind(text), ragged=True)
    assert isinstance(source, RaggedSource)
    assert isinstance(source, BundledSource)
    assert not isinstance(source, HasLengths)
    assert [str(field) for field in source.spec] == ["ids int64 (*)", "x float32 (2, 2)", "label int64 ()"]
    found = rows(source, [6, 0, 9, 6])
    assert [found["ids"].row(row).tolist() for row in range(4)] == [list(range(n)) for n in (6, 0, 2, 6)]
    assert found["x"][:, 0, 0].tolist() == [6, 0, 9, 6]
    assert found["label"].tolist() == [6, 0, 9, 6]
    assert [len(values) for values in rows(source, []).values()] == [0, 0, 0]


def test_a_list_of_tensors_is_a_dataset_of_ragged_rows():
    seqs = [torch.randint(1, 50, (n,)) for n in (5, 2, 7, 3)]
    source = adapt(seqs, ragged=True)
    names, tensors = make_collate("pad", pad_multiple=1)(rows(source, [0, 1, 2, 3]))
    assert names == ("0", "attention_mask")
    assert tensors[0].shape == (4, 7)
    for row, seq in enumerate(seqs):
        assert torch.equal(tensors[0][row, : len(seq)], seq)
    (batch,) = DataLoader(seqs, batch_size=4, collate_fn=lambda samples: [len(sample) for sample in samples])
    assert tensors[1].sum(1).tolist() == batch


def test_at_most_eight_samples_are_tried_besides_the_first_and_only_when_asked():
    for ragged, count in ((None, 1), (False, 1), (True, 9), (["ids"], 9)):
        dataset = Maps(text, 1000)
        if ragged in (None, False):
            with pytest.raises(SourceError, match="holds no values"):  # row 0 has length 0
                adapt(dataset, ragged=ragged)
        else:
            adapt(dataset, ragged=ragged)
        assert len(set(dataset.asked)) == len(dataset.asked) == count
    small = Maps(text, 3)
    adapt(small, ragged=True)
    assert small.asked == [0, 1, 2]
    first, second = Maps(text, 500), Maps(text, 500)
    adapt(first, ragged=True)
    adapt(second, ragged=True)
    assert first.asked == second.asked


def test_a_dataset_without_ragged_fields_stays_what_it_was():
    x = torch.arange(12).reshape(6, 2)
    source = adapt(TensorDataset(x), ragged=True)
    assert isinstance(source, UserSource)
    assert source.fingerprint() == adapt(TensorDataset(x)).fingerprint()
    np.testing.assert_array_equal(read_delivered(source, [5])["0"], x[[5]].numpy())


def test_a_listed_field_is_ragged_though_the_samples_tried_are_of_one_length():
    dataset = Maps(lambda i: {"ids": np.zeros(3 + (i == 41)), "x": np.zeros(2)}, 1000)
    source = adapt(dataset, ragged=["ids"])
    assert [field.is_ragged for field in source.spec] == [True, False]
    assert rows(source, [40, 41])["ids"].lengths.tolist() == [3, 4]
    named = as_source(Maps(lambda i: np.zeros(3)), ragged=["0"])
    assert named.spec.is_ragged


def test_rows_may_have_further_axes():
    source = adapt(Maps(lambda i: np.full((i % 3, 2, 4), i, np.int16)), ragged=True)
    assert str(source.spec) == "0 int16 (*, 2, 4)"
    assert rows(source, [5, 3])["0"].values.shape == (2, 2, 4)


def test_a_field_taken_for_fixed_says_what_to_do_when_a_later_sample_differs():
    def make(index):
        return {"ids": np.zeros(3 + (index == 41))}

    text = r"^sample 41 of .*Maps, field 'ids' has shape \(4,\), but sample 0 has \(3,\); pad or crop .*"
    with pytest.raises(SourceError, match=text + "loader.collate=pad"):
        read_delivered(adapt(Maps(make)), [40, 41])
    with pytest.raises(SourceError, match=text + r"ragged=\['ids'\]: the few samples tried .* were all of one length"):
        read_delivered(adapt(Maps(make, 1000), ragged=True), [40, 41])
    beside = adapt(Maps(lambda i: {**make(i), "own": np.zeros(i % 5)}, 1000), ragged=True)
    with pytest.raises(SourceError, match=text + r"ragged=\['ids'\]"):
        rows(beside, [40, 41])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda i: np.zeros((3, 2 + i % 2)),
            r"field '0' has shape \(3, 3\), but sample 0 has \(3, 2\).* first axis may",
        ),
        (
            lambda i: np.zeros(3) if i % 2 else np.zeros((3, 1)),
            r"has shape \(3,\), .* \(3, 1\); .* only the first axis",
        ),
        (
            lambda i: np.zeros(3, "i2" if i % 2 else "i4"),
            r"is int16, but sample 0 has int32; .*value.astype\('int32'\)",
        ),
        (lambda i: torch.tensor([] if i % 2 else [1, 2]), r"is float32, but sample 0 has int64"),
        (lambda i: np.zeros((i % 2, 0)), r"field '0' holds no values, its shape is \(0, 0\)"),
        (lambda i: np.zeros(0), r"field '0' holds no values, its shape is \(0,\); .*name it as ragged"),
        (lambda i: [1] if i % 2 else np.zeros(3), "is a tuple or list, but sample 0 is one value"),
    ],
)
def test_samples_tried_that_differ_otherwise_are_refused_at_once(make, text):
    with pytest.raises(SourceError, match=text):
        adapt(Maps(make, 1000), ragged=True)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (
            np.zeros((2, 3)),
            r"^sample 41 of .*field '0' has shape \(2, 3\), but rows of this field have shape \(\*, 2\)",
        ),
        (np.zeros(2), r"has shape \(2,\), but rows of this field have shape \(\*, 2\): only the first axis"),
        (np.float64(2), r"has shape \(\), but rows"),
        (np.zeros((2, 2), np.float32), "is float32, but sample 0 has float64"),
        (None, "is None"),
    ],
)
def test_a_later_row_that_is_none_of_the_field_is_refused(bad, text):
    for kind in (Maps, Together):
        source = adapt(kind(lambda i: bad if i == 41 else np.zeros((i % 4, 2)), 1000), ragged=True)
        with pytest.raises(SourceError, match=text):
            rows(source, [40, 41])


def test_names_that_fit_no_field_are_refused():
    with pytest.raises(LoaderError, match=r"ragged names 'idz', but the fields of .*Maps are 'ids', 'x', 'label'"):
        adapt(Maps(text), ragged=["idz"])
    with pytest.raises(LoaderError, match=r"ragged names 'label', .* a single number there"):
        adapt(Maps(text), ragged=["label"])
    with pytest.raises(LoaderError, match="ragged must be True, False or a list of field names, got 'ids'"):
        adapt(Maps(text), ragged="ids")
    with pytest.raises(LoaderError, match="is a source, which says itself which fields are ragged"):
        adapt(adapt(np.zeros((4, 2))), ragged=["0"])

    class Batches:
        def __len__(self):
            return 4

        def get_batch(self, indices):
            return np.zeros((len(indices), 3))

    with pytest.raises(LoaderError, match=r"is a batch dataset, .* give a dataset with __getitem__"):
        adapt(Batches(), ragged=["0"])
    assert not adapt(Batches(), ragged=True).spec.is_ragged
    source = adapt(Maps(text), ragged=True)
    assert adapt(source, ragged=True) is source


def test_arrays_of_rows_are_refused_in_words():
    source = adapt(Maps(text), ragged=True)
    index = np.zeros(1, dtype=np.int64)
    for ask in (lambda: source.read_into(index, index, {}), lambda: source.deliver({}, {}), lambda: source.buffers(1)):
        with pytest.raises(LoaderError, match=r"rows of different lengths \(ids int64 \(\*\)\) do not fit"):
            ask()


@pytest.mark.parametrize("index", [-1, 100])
def test_an_index_outside_is_an_error(index):
    with pytest.raises(IndexError):
        adapt(Maps(text), ragged=True).read_rows(np.array([index]))


def test_a_dataset_may_return_the_same_buffer_again():
    buffer = np.zeros(9, np.int64)

    def make(index):
        buffer[:] = index
        return buffer[: index % 5]

    found = rows(adapt(Maps(make), ragged=True), [4, 2, 3])["0"]
    assert found.values.tolist() == [4] * 4 + [2] * 2 + [3] * 3


def test_strided_rows_and_other_byte_orders_arrive_as_their_values():
    found = rows(adapt(Maps(lambda i: np.arange(2 * (i % 5), dtype=">i4")[::-2]), ragged=True), [3, 4])["0"]
    assert found.values.tolist() == [5, 3, 1, 7, 5, 3, 1]
    assert found.values.dtype == np.dtype("int32")


def test_the_datasets_own_error_comes_with_a_note():
    def make(index):
        if index == 41:
            raise KeyError("the user's own")
        return np.zeros(index % 5)

    for kind in (Maps, Together):
        with pytest.raises(KeyError, match="the user's own") as caught:
            adapt(kind(make, 1000), ragged=True).read_rows(np.array([41]))
        assert "while reading sample 41 of" in caught.value.__notes__[0]


def test_the_fingerprint_covers_number_fields_lengths_and_bytes():
    def of(make, n=100, full=False):
        return str(adapt(Maps(make, n), ragged=True).fingerprint(full=full))

    base = of(lambda i: np.arange(i % 7))
    assert base == of(lambda i: np.arange(i % 7))
    others = [
        of(lambda i: np.arange(i % 7), 101),
        of(lambda i: np.arange(i % 7 + (i == 99))),
        of(lambda i: np.arange(i % 7) + (i == 99)),
        of(lambda i: np.arange(i % 7).astype("i4")),
        of(lambda i: {"x": np.arange(i % 7)}),
    ]
    assert len({base, *others}) == 6
    full = of(lambda i: np.arange(i % 7), 1000, True)
    assert full != of(lambda i: np.arange(i % 7) + (i == 501), 1000, True)


def test_it_says_what_it_is_and_notices_another_length():
    dataset = Maps(text)
    source = adapt(dataset, ragged=True)
    assert (source.tiers_off, source.extents, source.thread_safe) == (
        "rows of different lengths are not kept by memory tiers",
        None,
        False,
    )
    facts = {fact.name: fact.value for fact in source.facts()}
    assert facts["ragged"] == "ids"
    assert facts["read by"] == "__getitem__, one call a sample, one thread at a time"
    source.check_unchanged()
    dataset.n = 101
    with pytest.raises(ChangedError, match="was 100 when the loader was built and is 101 now"):
        source.check_unchanged()


def test_a_pickled_source_asks_the_dataset_for_nothing():
    source = pickle.loads(pickle.dumps(adapt([np.zeros(n) for n in (1, 2)], ragged=True)))
    assert source.spec.is_ragged
    assert rows(source, [1])["0"].lengths.tolist() == [2]


def test_one_thread_at_a_time_is_inside_unless_it_says_otherwise():
    inside, most = [], []

    def make(index):
        inside.append(1)
        most.append(len(inside))
        if index and barrier is not None:
            barrier.wait()
        inside.pop()
        return np.zeros(index % 5)

    barrier = None
    for thread_safe in (False, True):
        source = adapt(Maps(make), thread_safe=thread_safe, ragged=True)
        barrier = threading.Barrier(2, timeout=60) if thread_safe else None
        most.clear()
        work = source.read_rows
        threads = [threading.Thread(target=work, args=(np.array([5]),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert max(most) == 1 + thread_safe


def test_float64_is_reported_once(caplog):
    source = adapt(Maps(lambda i: np.zeros(i % 5)), ragged=True)
    source.read_rows(np.array([1, 2]))
    assert [record.getMessage() for record in caplog.records if "float64" in record.getMessage()] == [
        record.getMessage() for record in caplog.records
    ]
    assert len(caplog.records) == 1
    assert isinstance(source.read_rows(np.array([1]))["0"], Ragged)
