"""Ragged rows in memory: gathered as asked, refused as arrays, identified by lengths and bytes."""

import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.errors import LoaderError, SourceError
from flodl_pipe.sources.adapters import adapt
from flodl_pipe.sources.protocol import BundledSource, HasLengths, RaggedSource
from flodl_pipe.sources.ragged_source import RaggedRows
from flodl_pipe.sources.subset import Subset


def ragged(*rows, dtype="int64"):
    return Ragged.of([np.asarray(row, dtype=dtype) for row in rows])


def some(num_samples=50, seed=0):
    """A source, and its samples one by one."""
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, 999, n, dtype=np.uint16) for n in rng.integers(0, 12, num_samples)]
    pixels = [rng.random((n, 2, 3), dtype=np.float32) for n in rng.integers(1, 5, num_samples)]
    label = rng.integers(0, 10, num_samples)
    return RaggedRows({"ids": Ragged.of(ids), "pixels": Ragged.of(pixels), "label": label}), (ids, pixels, label)


def equal(found, wanted, indices):
    for place, index in enumerate(indices):
        for name, values in zip(found, wanted, strict=True):
            got = found[name].row(place) if isinstance(found[name], Ragged) else found[name][place]
            np.testing.assert_array_equal(got, values[index])


@settings(max_examples=40, deadline=None)
@given(indices=st.lists(st.integers(0, 49), max_size=30))
def test_samples_come_in_the_order_asked_for_with_repeats(indices):
    source, wanted = some()
    found = source.deliver_rows(source.read_rows(np.array(indices, dtype=np.int64)))
    assert list(found) == ["ids", "pixels", "label"]
    assert [len(values) for values in found.values()] == [len(indices)] * 3
    equal(found, wanted, indices)


def test_it_says_what_it_is():
    source, (ids, pixels, label) = some()
    for contract in (RaggedSource, BundledSource, HasLengths):
        assert isinstance(source, contract)
    assert [str(field) for field in source.spec] == [
        "ids uint16 (*)",
        "pixels float32 (*, 2, 3)",
        f"label {label.dtype} ()",
    ]
    assert (len(source), source.thread_safe, source.extents, source.ordering) == (50, True, None, None)
    assert source.tiers_off == "rows of different lengths are not kept by memory tiers"
    assert source.lengths().tolist() == [max(len(a), len(b)) for a, b in zip(ids, pixels, strict=True)]
    assert {fact.name for fact in source.facts()} == {"samples", "lengths"}
    assert 6 <= source.spec.fields[0].expected_length <= 11
    source.check_unchanged()
    source.close()


def test_what_is_read_is_the_callers():
    ids = ragged([1, 2], [3])
    label = np.array([1, 2])
    source = RaggedRows({"ids": ids, "label": label})
    found = source.read_rows(np.array([0, 1]))
    found["ids"].values[:] = 0
    found["label"][:] = 0
    source.lengths()[:] = 0
    assert ids.values.tolist() == [1, 2, 3]
    assert label.tolist() == [1, 2]
    assert source.lengths().tolist() == [2, 1]


@pytest.mark.parametrize("index", [-1, 50])
def test_an_index_outside_is_an_error(index):
    with pytest.raises(IndexError, match=r"are not all in 0 .. 49"):
        some()[0].read_rows(np.array([0, index]))


def test_arrays_of_rows_are_refused_in_words():
    source, _ = some()
    index = np.zeros(1, dtype=np.int64)
    for ask in (lambda: source.read_into(index, index, {}), lambda: source.deliver({}, {}), lambda: source.buffers(3)):
        with pytest.raises(LoaderError, match=r"different lengths \(ids uint16 \(\*\), .*read_rows"):
            ask()


def test_threads_read_at_once():
    source, wanted = some()
    wrong = []

    def work(seed):
        try:
            for _ in range(20):
                indices = np.random.default_rng(seed).integers(0, 50, 30)
                equal(source.read_rows(indices), wanted, indices)
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_pickled_copy_reads_the_same():
    source, wanted = some()
    copy = pickle.loads(pickle.dumps(source))
    equal(copy.read_rows(np.arange(50)), wanted, range(50))
    assert copy.fingerprint() == source.fingerprint()


def test_the_fingerprint_covers_lengths_and_bytes():
    def of(ids, **fields):
        source = RaggedRows({"ids": ids, **fields})
        return str(source.fingerprint()), str(source.fingerprint(full=True))

    base = of(ragged([1, 2], [3]))
    assert base == of(ragged([1, 2], [3]))
    others = [
        of(ragged([1], [2, 3])),
        of(ragged([1, 2], [4])),
        of(ragged([1, 2], [3], dtype="int32")),
        of(ragged([1, 2, 3])),
        of(ragged([1, 2], [3]), label=np.array([0, 1])),
    ]
    for kind in range(2):
        assert len({found[kind] for found in (base, *others)}) == 6
    many = [np.arange(i % 7) for i in range(1000)]
    changed = [row + (i == 501) for i, row in enumerate(many)]
    longer = [*many[:501], np.arange(9), *many[502:]]
    sampled, full = of(Ragged.of(many))
    assert of(Ragged.of(changed))[1] != full
    assert of(Ragged.of(longer))[0] != sampled


def test_tensors_other_byte_orders_and_rows_of_length_zero_are_taken():
    source = RaggedRows(
        {
            "ids": Ragged(np.array([1, 2, 3], ">i4"), np.array([0, 0, 2, 3], np.int32)),
            "x": torch.arange(6).reshape(3, 2),
            "none": Ragged(np.empty(0, np.float32), np.zeros(4, np.int64)),
        }
    )
    found = source.read_rows(np.array([0, 1]))
    assert [found["ids"].row(row).tolist() for row in range(2)] == [[], [1, 2]]
    assert found["ids"].values.dtype == np.dtype("int32")
    assert found["x"].tolist() == [[0, 1], [2, 3]]
    assert found["none"].lengths.tolist() == [0, 0]


OFFSETS = np.array([0, 2, 3])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"x": np.zeros(3)}, "no field of x is ragged; give Ragged"),
        ({}, "no field of none is ragged"),
        ({"ids": ragged([1], [2]), "x": np.zeros(3)}, r"rows of different number \(ids 2, x 3\)"),
        ({"ids": Ragged(np.zeros(0), np.zeros(1, np.int64))}, "there is no sample"),
        (
            {"ids": Ragged(np.zeros(4), OFFSETS)},
            r"field 'ids': offsets must rise from 0 .* shape \(4,\); they go from 0 to 3",
        ),
        ({"ids": Ragged(np.zeros(3), np.array([1, 3]))}, "from 1 to 3"),
        ({"ids": Ragged(np.zeros(3), np.array([0, 2, 1, 3]))}, "from 0 to 3, and fall after row 1"),
        (
            {"ids": Ragged(np.zeros(3), np.array([0.0, 3.0]))},
            r"one-dimensional integers, .* got float64 of shape \(2,\)",
        ),
        ({"ids": Ragged(np.array(["a", "b", "c"]), OFFSETS)}, "field 'ids' is of dtype <U1: text"),
        ({"ids": Ragged(np.zeros((3, 0)), OFFSETS)}, r"elements without values, its shape is \(3, 0\)"),
        ({"ids": ragged([1], [2]), "x": np.float32(3)}, "field 'x' is a single number"),
    ],
)
def test_what_is_no_set_of_ragged_rows_is_refused(fields, text):
    with pytest.raises(SourceError, match=text):
        RaggedRows(fields)


def test_a_subset_reads_its_rows():
    source, wanted = some()
    for chosen in (range(10, 30), np.array([3, 4, 20, 49])):
        subset = Subset(source, chosen)
        assert isinstance(subset, RaggedSource)
        picks = np.array([2, 0, 2])
        found = subset.deliver_rows(subset.read_rows(picks))
        equal(found, wanted, np.asarray(chosen)[picks])
        with pytest.raises(IndexError):
            subset.read_rows(np.array([len(chosen)]))
        with pytest.raises(LoaderError, match="read_rows"):
            subset.buffers(3)
    with pytest.raises(LoaderError, match=r"no field of .* is ragged; such samples are read by read_into"):
        Subset(adapt(np.arange(5)), range(2)).read_rows(np.array([0]))
