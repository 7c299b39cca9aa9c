"""Users' datasets as sources: what is taken, what a batch holds, and what is refused."""

import array
import collections
import dataclasses
import enum
import logging
import pickle
import re
import threading
import types
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ChangedError, LoaderError, SourceError
from flodl_pipe.sources.adapters import OPAQUE, adapt
from flodl_pipe.sources.protocol import BundledSource, Source
from tests.contract.sources import SourceContract, read_delivered, require_equal


class Maps:
    """A map-style dataset that returns ``make(i)``."""

    def __init__(self, make, n=10):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.make(index)


class Squares:
    def __init__(self, n=50):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if not 0 <= index < self.n:
            raise IndexError(index)
        return {"x": torch.full((2, 3), index, dtype=torch.float32), "y": index * index}


class SquaresTogether(Squares):
    def __getitems__(self, indices):
        assert type(indices) is list
        assert all(type(index) is int for index in indices)
        return [self[index] for index in indices]


class SquaresByGet:
    def __len__(self):
        return 50

    def get(self, i):
        return Squares()[i]


class SquareBatches:
    def __len__(self):
        return 50

    def get_batch(self, indices):
        return {"x": np.repeat(indices, 6).reshape(-1, 2, 3).astype(np.float32), "y": torch.from_numpy(indices) ** 2}


class SquaresContract(SourceContract):
    dataset = None

    def make_source(self, folder):
        return adapt(self.dataset())

    def expected(self, source, index):
        return {"x": np.full((2, 3), index, np.float32), "y": np.array(index * index)}


@pytest.mark.full
class TestMapStyle(SquaresContract):
    dataset = Squares


@pytest.mark.full
class TestTogether(SquaresContract):
    dataset = SquaresTogether


@pytest.mark.full
class TestGet(SquaresContract):
    dataset = SquaresByGet


@pytest.mark.full
class TestBatches(SquaresContract):
    dataset = SquareBatches


class TestThreadSafe(SquaresContract):
    dataset = Squares

    def make_source(self, folder):
        return adapt(self.dataset(), thread_safe=True)


def read(thing, indices=(0, 1, 2), **options):
    return read_delivered(adapt(thing, **options), list(indices))


def refused(thing, indices=(0, 1, 2)):
    with pytest.raises((SourceError, LoaderError)) as caught:
        read(thing, indices)
    return str(caught.value)


class Pair(NamedTuple):
    image: np.ndarray
    label: int


@dataclasses.dataclass
class Row:
    image: torch.Tensor
    label: int


IMAGE = np.arange(6, dtype=np.uint8).reshape(2, 3)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda i: IMAGE + i, ["0"]),
        (lambda i: (IMAGE + i, i), ["0", "1"]),
        (lambda i: [torch.from_numpy(IMAGE + i), np.int64(i)], ["0", "1"]),
        (lambda i: {"image": IMAGE + i, "label": i}, ["image", "label"]),
        (lambda i: types.MappingProxyType({"image": IMAGE + i, "label": i}), ["image", "label"]),
        (lambda i: collections.OrderedDict(image=IMAGE + i, label=i), ["image", "label"]),
        (lambda i: Pair(IMAGE + i, i), ["image", "label"]),
        (lambda i: Row(torch.from_numpy(IMAGE + i), i), ["image", "label"]),
    ],
    ids=["value", "tuple", "list", "dict", "proxy", "ordered", "named_tuple", "dataclass"],
)
def test_every_form_of_a_sample_gives_named_fields(make, names):
    found = read(Maps(make), [3, 1])
    assert list(found) == names
    np.testing.assert_array_equal(found[names[0]], np.stack([IMAGE + 3, IMAGE + 1]))
    if len(names) > 1:
        np.testing.assert_array_equal(found[names[1]], [3, 1])


class Colour(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    "value",
    [
        *(True, 7, Colour.RED, 0.5, np.float32(0.5), np.int16(4), np.bool_(True), np.float64(2), np.complex64(1j)),
        *(torch.tensor(3), torch.ones(2, 2, dtype=torch.float16), torch.zeros(3, dtype=torch.uint16)),
        *(np.ones((2, 1), np.uint64), torch.ones(2, dtype=torch.complex64), np.zeros(3, bool)),
    ],
    ids=repr,
)
def test_values_have_the_dtype_and_bytes_that_default_collate_gives_them(value):
    wanted = default_collate([value, value]) if not isinstance(value, np.bool_) else torch.tensor([True, True])
    found = read(Maps(lambda i: value), [0, 1])["0"]
    assert torch.equal(torch.from_numpy(found), wanted)
    assert torch.from_numpy(found).dtype == wanted.dtype


@pytest.mark.parametrize(
    "make",
    [
        lambda i: torch.arange(12).reshape(3, 4).T[1:, ::2] + i,
        lambda i: np.asfortranarray(np.arange(12).reshape(3, 4) + i)[:, ::-1],
        lambda i: torch.ones(2).expand(3, 2) * i,
        lambda i: (np.arange(4) + i).astype(">i4"),
        lambda i: (np.arange(4).reshape(2, 2) + i).view(np.recarray),
        lambda i: torch.complex(torch.ones(2), torch.ones(2) * i).conj(),
        lambda i: torch.complex(torch.ones(2), torch.ones(2) * i).conj().imag,
        lambda i: torch.nn.Parameter(torch.ones(2) * i, requires_grad=False),
        lambda i: np.broadcast_to(np.float32(i), (2, 2)),
    ],
    ids=["strided", "fortran", "expanded", "big_endian", "subclass", "conjugate", "negated", "parameter", "broadcast"],
)
def test_memory_of_any_layout_arrives_as_the_values_it_holds(make):
    found = read(Maps(make), [2, 5])["0"]
    assert found.dtype.isnative
    for row, index in enumerate([2, 5]):
        value = make(index)
        plain = value.resolve_conj().resolve_neg().detach().numpy() if isinstance(value, torch.Tensor) else value
        np.testing.assert_array_equal(found[row], plain)


def test_a_dataset_may_return_the_same_buffer_again():
    buffer = np.zeros(3, np.float32)

    def make(index):
        buffer[:] = index
        return buffer

    np.testing.assert_array_equal(read(Maps(make), [4, 2])["0"], [[4] * 3, [2] * 3])


def test_a_batch_does_not_share_memory_with_the_dataset():
    data = np.zeros((4, 3))
    found = read(data)["0"]
    found[:] = 1
    assert not data.any()


def test_sequences_arrays_tensors_and_torchs_own_datasets_are_datasets():
    x, y = torch.arange(12).reshape(6, 2), torch.arange(6)
    for thing in (x, x.numpy(), list(x), TensorDataset(x), Subset(TensorDataset(x), range(6))):
        np.testing.assert_array_equal(read(thing, [5, 0])["0"], x[[5, 0]].numpy())
    both = ConcatDataset([TensorDataset(x, y), TensorDataset(x, y)])
    np.testing.assert_array_equal(read(both, [7])["1"], [1])
    np.testing.assert_array_equal(read(array.array("i", [5, 6, 7]))["0"], [5, 6, 7])


def test_the_dataset_is_asked_with_plain_integers_in_the_order_of_the_request():
    asked = []

    class Notes(Squares):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    source = adapt(Notes())
    assert asked == [0]
    read_delivered(source, [5, 3, 5])
    assert asked == [0, 5, 3]
    assert {type(index) for index in asked} == {int}


def test_getitems_is_asked_once_for_all_samples():
    asked = []

    class Notes(SquaresTogether):
        def __getitems__(self, indices):
            asked.append(indices)
            return super().__getitems__(indices)

    source = adapt(Notes())
    read_delivered(source, [5, 3, 5])
    assert asked == [[0], [5, 3]]
    assert "__getitems__" in {fact.name: fact.value for fact in source.facts()}["read by"]


def test_a_subclass_that_changes_getitem_alone_is_not_passed_over():
    class Changed(SquaresTogether):
        def __getitem__(self, index):
            return {**Squares.__getitem__(self, index), "y": -index}

    class Inherited:
        def __getitems__(self, indices):
            raise AssertionError("speaks for a __getitem__ that was replaced")

    class Replaced(Inherited):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return -index

    np.testing.assert_array_equal(read(Changed())["y"], [0, -1, -2])
    np.testing.assert_array_equal(read(Replaced())["0"], [0, -1, -2])


def test_a_torch_dataset_without_getitem_is_read_by_what_it_has():
    class Batches(SquareBatches, Dataset):
        pass

    class Gets(SquaresByGet, Dataset):
        pass

    for thing in (Batches(), Gets()):
        np.testing.assert_array_equal(read(thing)["y"], [0, 1, 4])
    assert "no __len__" in refused(type("Empty", (Dataset,), {})())


def test_fields_of_a_mapping_are_matched_by_name():
    def make(index):
        return {"a": 1, "b": 2.0} if index % 2 == 0 else {"b": 2.0, "a": 1}

    require_equal(read(Maps(make)), {"a": np.array([1, 1, 1]), "b": np.array([2.0, 2.0, 2.0])})


def test_a_source_is_passed_through():
    source = adapt(Squares())
    assert adapt(source) is source
    assert isinstance(source, Source)
    assert isinstance(source, BundledSource)
    with pytest.raises(LoaderError, match="a source says that itself"):
        adapt(source, thread_safe=True)


def test_what_plan_is_told():
    source = adapt(Squares())
    assert (source.extents, source.ordering, source.tiers_off, source.held_bytes) == (None, None, None, 0)
    facts = {fact.name: fact.value for fact in source.facts()}
    assert facts["dataset"].endswith("Squares, 50 samples")
    assert facts["read by"] == "__getitem__, one call a sample, one thread at a time"
    assert not source.thread_safe
    assert adapt(Squares(), thread_safe=True).thread_safe
    assert adapt(SquareBatches()).tiers_off == OPAQUE == "an opaque batch dataset is read batch by batch"
    assert "get, one call" in {f.name: f.value for f in adapt(SquaresByGet()).facts()}["read by"]


class NoLength:
    def __getitem__(self, index):
        return index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))

    def __len__(self):
        return 3


class Table(Squares):
    __module__, __qualname__ = "pandas.core.frame", "DataFrame"


class HalfSource:
    spec = delivered = SampleSpec.of(x=("int64", ()))

    def read_into(self, indices, rows, out): ...


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (None, "cannot read samples from NoneType; what is taken: a dataset with __len__ and __getitem__"),
        (7, "cannot read samples from int"),
        (object(), "what is taken"),
        (iter([1]), "list_iterator can only be iterated.*stream.*give it __len__ and __getitem__, or .* list"),
        ((i for i in range(3)), "generator can only be iterated"),
        (Stream(), "Stream can only be iterated"),
        ({1, 2}, "set can only be iterated"),
        (NoLength(), "NoLength has __getitem__ but no __len__"),
        (Squares, r"the class Squares was given, not an object of it; give Squares\(...\)"),
        (DataLoader([1, 2]), "makes batches itself; give the dataset it reads, its .dataset"),
        ({"train": Squares()}, r"dict is a mapping \('train'\), not a dataset.*thing\[KEY\]"),
        (Table(), r"pandas.core.frame.DataFrame is a table, .* its numeric columns as arrays"),
        ("data.bin", r"'data.bin' is str; open files with flodl_pipe.load\(RECIPE\)"),
        (HalfSource(), "read_into but is no source: it lacks thread_safe, __len__, deliver, fingerprint"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_read_is_refused_in_words(thing, text):
    with pytest.raises(LoaderError, match=text):
        adapt(thing)


class Length:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


def test_a_length_that_is_none_is_refused():
    assert "is empty, len() is 0" in refused(Length(0))
    assert "is empty" in refused([])
    assert "len(" in refused(Length(-1))
    assert "must return the number of samples" in refused(Length(2.5))
    assert "fails" in refused(torch.tensor(3))


def test_a_length_that_changes_is_an_error_at_the_next_epoch():
    dataset = Length(5)
    source = adapt(dataset)
    source.check_unchanged()
    dataset.length = 6
    with pytest.raises(ChangedError, match=r"Length\) was 5 .* and is 6 now; .* build a new loader"):
        source.check_unchanged()


class Text:
    """Something with a repr and nothing else."""


VALUES = {
    "none": (None, "field '0' is None; return a number, or leave the field out"),
    "text": ("cat", "is text, 'cat', and a batch holds numbers; turn it into ids"),
    "bytes": (b"ab", "is bytes; return it as uint8, np.frombuffer"),
    "list": ([1, 2], "is a list inside a sample; return one array or tensor"),
    "dict": ({"a": 1}, "is a dict inside a sample"),
    "tuple": ((1, 2), "is a tuple inside a sample"),
    "other": (Text(), r"is .*Text; return a tensor, an array or a number"),
    "complex": (1j, "is complex; return a tensor"),
    "huge": (2**70, r"is the integer 1180591620717411303424, which does not fit int64"),
    "object": (np.array([None, 1], dtype=object), "is of dtype object: an object array"),
    "strings": (np.array(["a"]), "is of dtype <U1: text"),
    "variable": (np.array(["a"], dtype=np.dtypes.StringDType()), r"is of dtype StringDType\(\): text"),
    "string": (np.str_("a"), "is of dtype <U1: text"),
    "raw": (np.array([b"a"]), r"is of dtype \|S1: bytes"),
    "structured": (np.zeros(2, [("a", "i4")]), "a structured or raw array; return its fields one by one"),
    "time": (np.datetime64("2020-01-01"), r"points in time; return value.astype\('int64'\)"),
    "long": (np.longdouble(1), r"torch does not know; return value.astype\('float32'\)"),
    "masked": (np.ma.masked_array([1, 2], [0, 1]), "is a masked array, and its mask would be lost"),
    "bfloat16": (torch.ones(2, dtype=torch.bfloat16), r"torch.bfloat16, which NumPy does not know.*value.float\(\)"),
    "float8": (torch.ones(2).to(torch.float8_e4m3fn), r"torch.float8_e4m3fn"),
    "grad": (torch.ones(2, requires_grad=True), r"requires grad.*return value.detach\(\)"),
    "sparse": (torch.eye(2).to_sparse(), r"layout torch.sparse_coo; return a dense one"),
    "accelerator": (torch.ones(2, device="meta"), r"is a tensor on meta.*return value.cpu\(\)"),
    "empty": (np.zeros((0, 4)), r"holds no values, its shape is \(0, 4\)"),
    "empty_tensor": (torch.ones(2, 0), r"holds no values, its shape is \(2, 0\)"),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_no_batch_can_hold_is_refused_where_it_is(name):
    value, text = VALUES[name]
    with pytest.raises(SourceError, match=text) as caught:
        adapt(Maps(lambda i: (value, 1)))
    assert "sample 0 of" in str(caught.value)
    with pytest.raises(SourceError, match=text) as caught:  # and later, when sample 0 was good
        read(Maps(lambda i: (np.float32(1), 1) if i < 2 else (value, 1)))
    assert str(caught.value).startswith("sample 2 of tests.sources.test_adapters.Maps, field '0' ")


def test_a_pil_image_is_refused_with_the_way_to_decode_it():
    image = type("Image", (), {"__module__": "PIL.Image"})()
    assert "is a PIL image; return np.asarray(value)" in refused(Maps(lambda i: {"image": image}))


@pytest.mark.parametrize(
    ("later", "text"),
    [
        ({"x": np.zeros(3, np.float32), "y": 1}, r"field 'x' has shape \(3,\), but sample 0 has \(2,\); pad or crop"),
        ({"x": np.zeros(2), "y": 1}, r"field 'x' is float64, but sample 0 has float32.*value.astype\('float32'\)"),
        ({"x": np.zeros(2, np.float32), "y": 0.5}, "field 'y' is float64, but sample 0 has int64"),
        ({"x": np.zeros(2, np.float32)}, "has the fields x, but sample 0 has x, y"),
        ({"x": np.zeros(2, np.float32), "y": 1, "z": 1}, "has the fields x, y, z, but sample 0 has x, y"),
        ((np.zeros(2, np.float32), 1), "is a tuple or list, but sample 0 is a mapping"),
        (np.zeros(2, np.float32), "is one value, but sample 0 is a mapping"),
        (None, "is None: the dataset returned nothing; is a return statement missing"),
    ],
)
def test_a_sample_that_is_not_like_the_first_is_refused(later, text):
    class Together(Maps):
        def __getitems__(self, indices):
            return [self[index] for index in indices]

    def make(index):
        return later if index == 7 else {"x": np.zeros(2, np.float32), "y": 1}

    for kind in (Maps, Together):
        source = adapt(kind(make))
        read_delivered(source, [6, 8])
        with pytest.raises(SourceError, match=text) as caught:
            read_delivered(source, [6, 7, 8])
        assert str(caught.value).startswith("sample 7 of ")


def test_first_samples_that_are_none_are_refused():
    assert "sample 0 of" in refused(Maps(lambda i: None))
    assert "without fields" in refused(Maps(lambda i: ()))
    assert "the key 3; keys name the fields of a batch and must be text" in refused(Maps(lambda i: {3: 1}))


def test_float64_is_reported_once_with_the_remedy(caplog):
    with caplog.at_level(logging.WARNING, "flodl_pipe"):
        source = adapt(Maps(lambda i: {"a": 0.5, "b": np.zeros(2), "c": np.float32(1), "d": 1}))
        read_delivered(source, [1, 2])
        read_delivered(source, [3])
    (record,) = caplog.records
    assert "'a', 'b' are float64" in record.getMessage()
    assert "return float32" in record.getMessage()


class Broken(Squares):
    def __getitem__(self, index):
        if index == 7:
            raise KeyError("the user's own")
        return super().__getitem__(index)


class BrokenTogether(Broken):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class BrokenBatches(SquareBatches):
    def get_batch(self, indices):
        if 7 in indices:
            raise KeyError("the user's own")
        return super().get_batch(indices)


@pytest.mark.parametrize(
    ("dataset", "note"),
    [
        (Broken(), r"^while reading sample 7 of .*Broken$"),
        (BrokenTogether(), "^while reading samples 6, 7, 8 of .*BrokenTogether$"),
        (BrokenBatches(), "^while reading samples 6, 7, 8 of .*BrokenBatches$"),
    ],
)
def test_the_datasets_own_errors_come_as_they_are_with_a_note(dataset, note):
    source = adapt(dataset)
    with pytest.raises(KeyError, match="the user's own") as caught:
        read_delivered(source, [6, 7, 8])
    (found,) = caught.value.__notes__
    assert re.search(note, found)
    frames = {entry.name for entry in caught.traceback}
    assert frames & {"__getitem__", "get_batch"}


def test_an_error_that_is_raised_twice_has_its_note_once():
    error = ValueError("kept")

    def make(index):
        if index:
            raise error
        return 1

    source = adapt(Maps(make))
    for _ in range(2):
        with pytest.raises(ValueError, match="kept"):
            read_delivered(source, [1])
    assert len(error.__notes__) == 1


def test_stop_iteration_does_not_end_the_loop_in_silence():
    def make(index):
        return 1 if index < 3 else next(iter(()))

    source = adapt(Maps(make))
    with pytest.raises(SourceError, match=r"while reading sample 4 .* raised StopIteration") as caught:
        read_delivered(source, [4])
    assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda indices: [1] * (len(indices) + 1), "__getitems__ returned 2 samples for 1 indices"),
        (lambda indices: [1] * (len(indices) - (len(indices) > 1)), "returned 2 samples for 3 indices"),
        (lambda indices: {"x": indices}, "__getitems__ returned dict; it returns a list of samples"),
        (lambda indices: torch.zeros(len(indices)), "returned torch.Tensor; .* get_batch instead"),
        (lambda indices: None, "returned NoneType"),
    ],
)
def test_getitems_must_return_one_sample_for_each_index(answer, text):
    class Together(Maps):
        def __getitems__(self, indices):
            return answer(indices)

    with pytest.raises(SourceError, match=text):
        read(Together(lambda i: 1))


class Batches:
    def __init__(self, make, n=10):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def get_batch(self, indices):
        return self.make(indices)


def test_a_batch_dataset_gets_its_own_copy_of_the_indices():
    def make(indices):
        assert indices.dtype == np.int64
        values = indices.copy()
        indices[:] = 0
        return values

    np.testing.assert_array_equal(read(Batches(make), [4, 2, 4])["0"], [4, 2, 4])
    np.testing.assert_array_equal(read(Batches(lambda i: i, n=1), [0])["0"], [0])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda i: {"x": np.zeros((3, len(i)))}, r"field 'x' has shape \(3, 2\), but 2 samples were asked for"),
        (lambda i: np.zeros(len(i) - 1), r"has shape \(1,\), but 2 samples were asked for"),
        (lambda i: {"x": 3}, r"field 'x' has shape \(\), but 2 samples"),
        (lambda i: None, "the batch of the first 2 of .* is None"),
        (lambda i: {"x": [1, 2]}, "field 'x' is a list inside"),
        (lambda i: np.zeros((len(i), 0)), r"holds no values, its shape is \(2, 0\)"),
        (lambda i: np.zeros((len(i), 2 if 5 in i else 3)), r"holds float64 \(2,\) a row, but .* has float64 \(3,\)"),
        (lambda i: np.zeros(len(i), "i2" if 5 in i else "i4"), r"holds int16 \(\) a row, but .* has int32"),
        (lambda i: {"x": i} if 5 not in i else {"y": i}, "has the fields y, but .* has x"),
        (lambda i: [np.zeros(2) for _ in i], "has the fields 0, 1, 2, but the batch of the first 2 .*has 0, 1"),
        (lambda i: np.zeros(len(i) - (5 in i)), r"has shape \(2,\), but 3 samples were asked for"),
    ],
)
def test_a_batch_that_is_not_like_the_first_is_refused(make, text):
    with pytest.raises(SourceError, match=text):
        read(Batches(make), [4, 5, 6])


def test_one_thread_at_a_time_is_inside_a_dataset_unless_it_says_otherwise():
    inside, most = [], []
    barrier = threading.Barrier(2, timeout=60)

    def make(index):
        inside.append(1)
        most.append(len(inside))
        if index and wait:
            barrier.wait()
        inside.pop()
        return index

    wait = False
    source = adapt(Maps(make))
    threads = [threading.Thread(target=source.fingerprint) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    most.clear()
    wait, source = True, adapt(Maps(make), thread_safe=True)
    threads = [threading.Thread(target=read_delivered, args=(source, [5])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 2


def test_a_pickled_source_asks_the_dataset_for_nothing():
    source = pickle.loads(pickle.dumps(adapt(Squares())))
    assert (len(source), source.spec.names, source.thread_safe) == (50, ("x", "y"), False)


def test_the_fingerprint_is_of_number_fields_and_bytes_not_of_the_type():
    def of(make, n=100, **options):
        return adapt(Maps(make, n), **options).fingerprint()

    base = of(np.int32)
    assert base == adapt(np.arange(100, dtype=np.int32)).fingerprint()
    assert base == adapt(Batches(lambda i: i.astype(np.int32), 100)).fingerprint()
    others = [
        of(np.int32, 101),
        of(np.uint32),
        of(lambda i: {"x": np.int32(i)}),
        of(lambda i: np.int32(i + (i == 0))),
        of(lambda i: np.int32(i + (i == 99))),
    ]
    assert len({str(found) for found in (base, *others)}) == 6
    assert "100 samples of 0 int32 ()" in base.summary


def test_the_fingerprint_reads_sixteen_samples_or_all():
    asked = []

    def make(index):
        asked.append(index)
        return np.int64(index)

    source = adapt(Maps(make, 1000))
    asked.clear()
    source.fingerprint()
    assert len(asked) == len(set(asked)) == 16
    assert {0, 999} <= set(asked)
    asked.clear()
    assert source.fingerprint(full=True).full
    assert asked == list(range(1000))
    middle = adapt(Maps(lambda i: np.int64(-1 if i == 501 else i), 1000))
    assert middle.fingerprint(full=True) != source.fingerprint(full=True)


class Partly:
    """Some samples cannot be read."""

    def __init__(self, bad, ragged=False):
        self.bad, self.ragged = bad, ragged

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index in self.bad:
            raise OSError(f"sample {index}")
        return np.arange(index % 5 + 1 if self.ragged else 3) + index


@pytest.mark.parametrize(("ragged", "full", "bad"), [(False, False, 39), (False, True, 17), (True, True, 12)])
def test_samples_that_cannot_be_read_have_a_place_in_the_fingerprint(ragged, full, bad):
    def digest(bad):
        return adapt(Partly(bad, ragged), ragged=ragged or None).fingerprint(full=full).digest

    assert digest({bad}) == digest({bad})
    assert digest({bad}) != digest(set())
    assert digest({bad}) != digest({bad - 1, bad}) or not full
