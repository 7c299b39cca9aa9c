"""Many samples at once: the same rows and the same errors as one by one, whatever they are made of."""

import collections
import dataclasses
import itertools
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import flodl_pipe
from flodl_pipe.errors import LoaderError, SourceError
from flodl_pipe.sources.adapters import adapt
from flodl_pipe.sources.door import Demand, demanded_by

N = 600
WHOLE = np.arange(4 * N).reshape(N, 4)
LABEL = torch.tensor(3)
WHOLE_TENSOR = torch.arange(4 * N).reshape(N, 4)


class Pair(NamedTuple):
    x: np.ndarray
    y: int


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    y: int


@dataclasses.dataclass
class Numbers:
    x: int
    y: int


class Of:
    """A dataset of a function."""

    def __init__(self, make, n=N):
        self.make, self.n, self.asked = make, n, []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.asked.append(index)
        return self.make(index)


def read(source, indices):
    """Return fields, read in two calls, in rows that do not follow each other."""
    indices = np.asarray(indices, dtype=np.int64)
    out = source.spec.empty(2 * len(indices))
    rows = np.arange(len(indices), dtype=np.int64) * 2
    middle = len(indices) // 2
    source.read_into(indices[:middle], rows[:middle], out)
    source.read_into(indices[middle:], rows[middle:], out)
    return {name: array[rows] for name, array in out.items()}


def shuffled(n=N):
    return np.random.default_rng(3).permutation(n)


def row(index, dtype=np.float32):
    return np.full((2, 3), index, dtype=dtype)


PLAIN = {
    "number": lambda i: i,
    "float": float,
    "bool": lambda i: i % 2 == 0,
    "scalar of NumPy": np.float32,
    "array": row,
    "array without axes": lambda i: np.array(i, dtype=np.int16),
    "tensor": lambda i: torch.from_numpy(row(i)),
    "tensor without axes": torch.tensor,
    "complex": lambda i: torch.full((2,), complex(i, -i)).conj(),
    "large tensor": lambda i: torch.full((90, 90), float(i)),
    "tuple": lambda i: (torch.from_numpy(row(i)), i),
    "list": lambda i: [row(i), float(i)],
    "dict": lambda i: {"x": row(i), "y": torch.tensor(i)},
    "ordered dict": lambda i: collections.OrderedDict(x=row(i), y=i),
    "dict in another order": lambda i: {"x": row(i), "y": i} if i % 3 else {"y": i, "x": row(i)},
    "named tuple": lambda i: Pair(row(i), i),
    "dataclass": lambda i: Sample(torch.from_numpy(row(i)), i),
    "tuple or list": lambda i: (row(i), i) if i % 2 else [row(i), i],
    "integers of several kinds": lambda i: np.int64(i) if i % 2 else i,
    "another byte order": lambda i: row(i).astype(">f4" if i % 2 else "<f4"),
    "not contiguous": lambda i: np.asfortranarray(row(i))[:, ::-1],
    "part of a whole": lambda i: WHOLE[i],
    "part of a tensor": lambda i: WHOLE_TENSOR[i],
    "memory map": lambda i: np.memmap.__new__(np.memmap, "/dev/zero", np.uint8, "r", shape=(4,)),
}


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_rows_are_those_that_are_read_one_by_one(make):
    together, apart = adapt(Of(make)), adapt(Of(make))
    indices = shuffled()
    one = apart.spec.empty(N)
    for place, index in enumerate(indices):
        apart.read_into(np.array([index]), np.array([place]), one)
    found = read(together, indices)
    assert found.keys() == one.keys()
    for name, array in found.items():
        assert array.tobytes() == one[name].tobytes(), name


def buffers():
    array, tensor, two = np.zeros(4, np.float32), torch.zeros(4), [np.zeros(4), np.zeros(4)]
    ring, count = [np.zeros(4, np.int64) for _ in range(5)], itertools.count()
    labels = [torch.tensor(number) for number in range(10)]
    whole = torch.arange(50.0)[:, None].repeat(1, 4)

    def filled(buffer, index):
        buffer[:] = index
        return buffer

    def swapped(index):
        first, second = two if next(count) % 2 else two[::-1]
        return filled(first, index), filled(second, -index)

    in_list, in_dict, in_class = [0, 0], {"x": 0, "y": 0}, Numbers(0, 0)

    def listed(index):
        in_list[:] = index, -index
        return in_list

    def named(index):
        in_dict.update(x=index, y=-index)
        return in_dict

    def kept(index):
        in_class.x, in_class.y = index, -index
        return in_class

    return {
        "an array": (lambda i: filled(array, i), lambda i: [i]),
        "a tensor": (lambda i: {"x": filled(tensor, i), "i": i}, lambda i: [i, i]),
        "a view each time": (lambda i: torch.from_numpy(filled(array, i)), lambda i: [i]),
        "two parts of it": (lambda i: (filled(array, i)[:2], array[2:]), lambda i: [i, i]),
        "a ring": (lambda i: (filled(ring[next(count) % 5], i),), lambda i: [i]),
        "two in turn": (swapped, lambda i: [i, -i]),
        "constants": (lambda i: (torch.full((4,), float(i)), labels[i % 10]), lambda i: [i, i % 10]),
        "rows of a whole": (lambda i: whole[i % 50], lambda i: [i % 50]),
        "a list": (listed, lambda i: [i, -i]),
        "a dict": (named, lambda i: [i, -i]),
        "a dataclass": (kept, lambda i: [i, -i]),
        "in a dataclass": (lambda i: Sample(filled(tensor, i), i), lambda i: [i, i]),
        "in a named tuple": (lambda i: Pair(filled(array, i), i), lambda i: [i, i]),
    }


@pytest.mark.parametrize("name", buffers())
def test_a_dataset_may_return_the_same_memory_again(name):
    make, wanted = buffers()[name]
    data, indices = Of(make), shuffled()
    found = read(adapt(data), indices)
    for place, array in enumerate(found.values()):
        expected = np.array([wanted(index)[place] for index in indices.tolist()])
        assert (array.reshape(N, -1) == expected[:, None]).all()
    assert len(data.asked) <= 1 + N + 64  # asked for anew only where it was noticed


@pytest.mark.parametrize("ragged", [True, ["x"]])
def test_ragged_rows_may_lie_in_the_same_memory_too(ragged):
    buffer = np.zeros(8, np.int32)

    def make(index):
        buffer[:] = index
        return {"x": buffer[: 1 + index % 7], "y": index}

    source, indices = adapt(Of(make), ragged=ragged), shuffled()
    found = source.read_rows(indices)
    assert found["y"].tolist() == indices.tolist()
    for place, index in enumerate(indices.tolist()):
        assert found["x"].row(place).tolist() == [index] * (1 + index % 7)


WRONG = {
    "shape": (
        lambda i: (np.zeros(3 if i != 7 else 4), i),
        r"sample 7 of .*Of, field '0' has shape \(4,\), but sample 0",
    ),
    "broadcast": (lambda i: torch.zeros(3 if i != 7 else 1), r"sample 7 of .* has shape \(1,\)"),
    "dtype": (lambda i: (torch.zeros(3), i if i != 7 else 0.5), r"sample 7 of .*, field '1' is float64, but sample 0"),
    "tensor's dtype": (
        lambda i: torch.zeros(3, dtype=torch.float32 if i != 7 else torch.float16),
        "sample 7 .* is float16",
    ),
    "container": (lambda i: (i, i) if i != 7 else {"0": i, "1": i}, "sample 7 of .* is a mapping, but sample 0"),
    "fields": (lambda i: {"x": i} if i != 7 else {"z": i}, "sample 7 of .* has the fields z, but sample 0"),
    "fewer": (lambda i: (i, i) if i != 7 else (i,), "sample 7 of .* has the fields 0, but sample 0"),
    "nothing": (lambda i: i if i != 7 else None, "sample 7 of .* is None"),
    "graph": (lambda i: torch.zeros(3, requires_grad=i == 7), "sample 7 of .* is a tensor that requires grad"),
    "sparse": (lambda i: torch.zeros(3) if i != 7 else torch.zeros(3).to_sparse(), "sample 7 of .* layout"),
    "elsewhere": (lambda i: torch.zeros(3, device="cpu" if i != 7 else "meta"), "sample 7 of .* is a tensor on meta"),
    "too large": (lambda i: i if i != 7 else 1 << 70, "sample 7 of .* does not fit int64"),
    "masked": (lambda i: np.zeros(3) if i != 7 else np.ma.zeros(3), "sample 7 of .* is a masked array"),
    "ragged text": (lambda i: i if i != 7 else "seven", "sample 7 of .* is text"),
}


@pytest.mark.parametrize(("make", "text"), WRONG.values(), ids=WRONG)
def test_the_one_that_is_not_like_the_first_is_named(make, text):
    with pytest.raises(SourceError, match=text):
        read(adapt(Of(make)), range(40))


def failing(index):
    if index == 7:
        raise OSError("torn")
    return torch.full((2,), index)


@pytest.mark.parametrize(
    ("data", "index"),
    [
        (Of(failing), 7),
        (Subset(Of(failing), list(range(N))[::-1]), N - 8),
        (ConcatDataset([Of(lambda i: torch.full((2,), i), 50), Of(failing)]), 57),
    ],
)
def test_the_one_that_fails_is_named_through_subsets_and_concatenations(data, index):
    with pytest.raises(OSError, match="torn") as caught:
        read(adapt(data), range(index - 5, index + 5))
    (note,) = caught.value.__notes__
    assert note.startswith(f"while reading sample {index} of ")


def naive(data, indices):
    samples = [data[int(index)] for index in indices]
    return [torch.stack([torch.as_tensor(sample[field]) for sample in samples]) for field in range(len(samples[0]))]


TENSORS = TensorDataset(torch.arange(2.0 * N).reshape(N, 2), torch.arange(N, dtype=torch.int32))
STRIDED = TensorDataset(torch.arange(4.0 * N).reshape(2 * N, 2)[::2], torch.arange(2 * N).reshape(2, N)[1])


@pytest.mark.parametrize(
    "data",
    [
        TENSORS,
        STRIDED,
        Subset(TENSORS, torch.arange(N - 1, -1, -1)),
        Subset(TENSORS, [5] * N),
        Subset(ConcatDataset([TENSORS, TENSORS]), range(-1, -N, -1)),
        ConcatDataset([TENSORS, STRIDED])
        if TENSORS[0][1].dtype == STRIDED[0][1].dtype
        else ConcatDataset([TENSORS] * 2),
        Subset(ConcatDataset([TENSORS, TENSORS, Subset(TENSORS, range(100))]), shuffled(2 * N + 100).tolist()),
        [(float(number), number) for number in range(N)],
        tuple((np.full(2, number), number) for number in range(N)),
    ],
)
def test_what_is_known_is_read_as_it_is_asked_for(data):
    source, indices = adapt(data), np.random.default_rng(5).integers(0, len(data), 500)
    assert source.thread_safe
    found = read(source, indices)
    for field, expected in zip(found.values(), naive(data, indices), strict=True):
        assert (field == expected.numpy()).all()


@pytest.mark.parametrize("data", [np.arange(2 * N).reshape(N, 2), torch.arange(N), np.asfortranarray(np.ones((N, 3)))])
def test_an_array_is_a_dataset_of_its_rows(data):
    found = read(adapt(data), shuffled())["0"]
    assert (found == np.asarray(data)[shuffled()]).all()


def test_a_subset_may_choose_by_what_the_dataset_understands():
    class Named:
        def __len__(self):
            return 26

        def __getitem__(self, letter):
            return ord(letter)

    assert read(adapt(Subset(Named(), list("flodl"))), [0, 2, 4])["0"].tolist() == [ord(letter) for letter in "fol"]


def test_constants_of_many_samples_from_one_call_are_read_once():
    class Together(Of):
        def __getitems__(self, indices):
            self.asked += indices
            return [(number, LABEL) for number in indices]

    data = Together(None)
    source = adapt(data)
    data.asked.clear()
    assert read(source, shuffled())["0"].tolist() == shuffled().tolist()
    assert len(data.asked) == N


def test_a_subclass_that_changes_its_samples_is_taken_at_its_word():
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            return tuple(2 * value for value in super().__getitem__(index))

    found = read(adapt(Doubled(torch.arange(N))), shuffled())["0"]
    assert found.tolist() == (2 * shuffled()).tolist()


def test_a_sample_that_is_asked_for_twice_is_read_once():
    data = Of(lambda index: (torch.full((2,), index), index))
    indices = [3, 9, 3, 3, 1, 9]
    out = adapt(data).spec.empty(len(indices))
    source = adapt(data)
    data.asked.clear()
    source.read_into(np.array(indices), np.arange(len(indices)), out)
    assert (out["1"].tolist(), data.asked) == (indices, [3, 9, 1])


def test_a_read_that_nobody_waits_for_ends_after_the_sample_in_hand():
    demand = Demand()

    def make(index):
        if index == 20:
            demand.end()
        return index

    data = Of(make)
    source = adapt(data)
    with demanded_by(demand), pytest.raises(LoaderError, match="nobody waits for its samples"):
        source.read_into(np.arange(100), np.arange(100), source.spec.empty(100))
    assert data.asked[-1] == 20
    source.read_into(np.arange(100), np.arange(100), source.spec.empty(100))


@pytest.mark.parametrize("make", [PLAIN["tuple"], PLAIN["dict"], PLAIN["number"], PLAIN["dataclass"], PLAIN["array"]])
def test_no_function_of_ours_is_called_for_each_sample(make):
    source = adapt(Of(make))
    folder = flodl_pipe.__path__[0]

    def calls(count):
        found = 0

        def seen(frame, event, _):
            nonlocal found
            found += event == "call" and frame.f_code.co_filename.startswith(folder)

        indices, out = np.arange(count), source.spec.empty(count)
        sys.setprofile(seen)
        try:
            source.read_into(indices, indices, out)
        finally:
            sys.setprofile(None)
        return found

    calls(256)  # by now it knows that samples have memory of their own
    assert calls(32) == calls(256)
