"""What a user's sampler yields, read into one array and checked: integers, in range, not empty, not without end.

Python and NumPy integers, tensors and arrays of one integer, or integer tensors and arrays as a whole are indices;
truth values and floats are not, for both would be taken for one in silence. A chunk of plain integers is known by the
set of its types and taken as a whole, so that reading a sampler of torch's takes little more than iterating over it
(``tests/benchmarks/samplers.py``).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.units import format_count

__all__ = ["EpochIndices", "Reading", "read_batches", "read_indices"]

# Few enough that what a sampler made for them, tensors for example, does not keep the garbage collector busy.
_CHUNK = 4096
_LEAST_BOUND = 1 << 20
_BOUND_FACTOR = 16
_INT64 = range(-(1 << 63), 1 << 63)
_INTEGER_TENSORS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


@final
class EpochIndices(NamedTuple):
    """One epoch of a sampler.

    Attributes:
        indices: Its samples in order, int64, shape ``(K,)``, read-only.
        sizes: Rows of each batch, int64, shape ``(S,)``, read-only; empty for a sampler of single indices.
    """

    indices: IndexArray
    sizes: IndexArray

    def same(self, other: "EpochIndices") -> bool:
        """Tell whether two epochs are the same, batches included."""
        return np.array_equal(self.indices, other.indices) and np.array_equal(self.sizes, other.sizes)


@final
class Reading(NamedTuple):
    """How a sampler is read.

    Attributes:
        num_samples: Samples of the data set; indices lie below.
        fail: Makes the error to raise from a message.
        batched: Whether it yields batches, for words.
    """

    num_samples: int
    fail: Callable[[str], Exception]
    batched: bool = False


@final
@dataclass(frozen=True)
class _Place:
    """Names the place of an index, by its row."""

    words: str
    first: int = 0

    def __call__(self, row: int) -> str:
        return self.words.format(self.first + row)


def read_indices(sampler: object, reading: Reading) -> EpochIndices:
    """Read a sampler of single indices to its end.

    Raises:
        Exception: what ``reading.fail`` makes, naming place, value, rule and remedy.
    """
    bound = _bound(sampler, reading.num_samples)
    if isinstance(sampler, range) and len(sampler) <= bound:
        indices = np.arange(sampler.start, sampler.stop, sampler.step, dtype=np.int64)
    elif isinstance(sampler, np.ndarray | torch.Tensor):
        indices = _whole(sampler, "the sampler", reading)
    else:
        parts: list[IndexArray] = [np.empty(0, dtype=np.int64)]
        count = 0
        stream = _stream(sampler, reading)
        while chunk := list(itertools.islice(stream, _CHUNK)):
            parts.append(_integers(chunk, _Place("index {} of the sampler", count), reading))
            count += len(chunk)
            _check_end(count, bound, reading)
        indices = np.concatenate(parts)
    if not len(indices):
        raise reading.fail(
            "the sampler yields no index, and an epoch needs at least one; one that can be read only once, such as an "
            "iterator, must be given as a list"
        )
    _check_range(indices, _Place("index {} of the sampler"), reading)
    return EpochIndices(_frozen(indices), _frozen(np.empty(0, dtype=np.int64)))


def read_batches(sampler: object, reading: Reading) -> EpochIndices:
    """Read a sampler of batches, each a list, tuple, range, array or tensor of indices, to its end.

    Raises:
        Exception: as :func:`read_indices`.
    """
    bound = _bound(sampler, reading.num_samples)
    parts: list[IndexArray] = []
    sizes: list[int] = []
    count = 0
    for number, batch in enumerate(_stream(sampler, reading)):
        part = _batch(batch, number, reading)
        parts.append(part)
        sizes.append(len(part))
        count += len(part)
        _check_end(count, bound, reading)
    if not sizes:
        raise reading.fail(
            "the batch sampler yields no batch, and an epoch needs at least one; one that can be read only once, such "
            "as an iterator, must be given as a list"
        )
    indices, rows = np.concatenate(parts), np.array(sizes, dtype=np.int64)
    ends = np.cumsum(rows)

    def place(row: int) -> str:
        number = int(np.searchsorted(ends, row, side="right"))
        return f"batch {number} of the batch sampler, row {row - int(ends[number] - rows[number])}"

    _check_range(indices, place, reading)
    return EpochIndices(_frozen(indices), _frozen(rows))


def _batch(batch: object, number: int, reading: Reading) -> IndexArray:
    where = f"batch {number} of the batch sampler"
    if isinstance(batch, np.ndarray | torch.Tensor) and batch.ndim:
        part = _whole(batch, where, reading)
    elif isinstance(batch, list | tuple | range):
        part = _integers(batch, _Place(where + ", row {}"), reading)
    else:
        raise reading.fail(
            f"{where} is {_shown(batch)}, and a batch sampler yields lists of indices; one that yields single indices "
            "belongs under sampling.sampler, with loader.batch_size"
        )
    if not len(part):
        raise reading.fail(f"{where} is empty, and a step needs at least one row; leave empty batches out")
    return part


def _stream(sampler: object, reading: Reading) -> Iterator[Any]:
    if isinstance(sampler, str | bytes | bytearray | set | frozenset | dict):
        raise reading.fail(f"the sampler is {_shown(sampler)}, which has no order of indices; give a list of them")
    if not isinstance(sampler, Iterable):
        raise reading.fail(
            f"the sampler is {_shown(sampler)}, which cannot be iterated; give an object whose __iter__ yields the "
            "indices of an epoch, such as a torch Sampler, or a list of them"
        )
    if isinstance(sampler, np.ndarray | torch.Tensor) and not sampler.ndim:
        raise _single(sampler, reading)
    # Not iter(): what it says of something else than an iterator could as well come from within the sampler.
    found: object = sampler.__iter__()
    if not isinstance(found, Iterator):
        raise reading.fail(
            f"__iter__ of the sampler, a {type(sampler).__qualname__}, returned {_shown(found)}, and an epoch is read "
            "from an iterator; let it yield the indices, or return iter(list_of_indices)"
        )
    return found


def _bound(sampler: object, num_samples: int) -> int:
    """Return how many indices are read at most: what the sampler says it has, or plenty."""
    length = 0
    if not isinstance(sampler, torch.Tensor):
        try:
            length = len(sampler)  # type: ignore[arg-type]  # whether it has one is the question
        except (TypeError, NotImplementedError, AttributeError):
            length = 0
    return max(_LEAST_BOUND, _BOUND_FACTOR * num_samples, length)


def _check_end(count: int, bound: int, reading: Reading) -> None:
    if count > bound:
        raise reading.fail(
            f"the sampler yielded {format_count(count)} indices and goes on, and an epoch of "
            f"{format_count(reading.num_samples)} samples is read for at most {format_count(bound)}; let its __iter__ "
            "end where an epoch ends, or give it a __len__ if it is that long"
        )


def _whole(array: "Array | torch.Tensor", where: str, reading: Reading) -> IndexArray:
    """Return an array or tensor of indices as int64."""
    values: Array = array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array
    if not values.ndim:
        raise _single(values, reading)
    if values.ndim != 1:
        remedy = "flatten it" if reading.batched else "a row for each batch belongs under sampling.batch_sampler"
        raise reading.fail(f"{where} is an array of shape {values.shape}, and indices stand in one dimension; {remedy}")
    if values.dtype.kind not in "iu":
        mask = "; of a mask give the indices, numpy.flatnonzero(mask)" if values.dtype.kind == "b" else ""
        raise reading.fail(f"{where} is an array of {values.dtype}, and indices are integers{mask or '; convert it'}")
    if values.dtype == np.uint64:
        beyond = np.flatnonzero(values > _INT64[-1])
        if len(beyond):
            raise _out_of_range(int(values[beyond[0]]), f"index {beyond[0]} of {where}", reading)
    return values.astype(np.int64)


def _integers(
    values: "list[Any] | tuple[Any, ...] | range", place: Callable[[int], str], reading: Reading
) -> IndexArray:
    """Return what stands in a list as int64."""
    kinds = {int} if isinstance(values, range) else set(map(type, values))
    if all(issubclass(kind, int | np.signedinteger) and kind is not bool for kind in kinds):
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            pass  # below, with its place
    return np.array([_integer(value, place, row, reading) for row, value in enumerate(values)], dtype=np.int64)


def _integer(value: object, place: Callable[[int], str], row: int, reading: Reading) -> int:
    if isinstance(value, torch.Tensor) and not value.ndim and value.dtype in _INTEGER_TENSORS:
        return int(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
        if number not in _INT64:
            raise _out_of_range(number, place(row), reading)
        return number
    if isinstance(value, np.ndarray | torch.Tensor) and value.ndim == 0:
        return int(_whole(value.ravel(), place(row), reading)[0])
    if isinstance(value, list | tuple | range | np.ndarray | torch.Tensor):
        if reading.batched:
            raise reading.fail(
                f"{place(row)} is {_shown(value)}, and a batch is a list of single indices; yield the inner lists, "
                "each as a batch of its own"
            )
        raise reading.fail(
            f"{place(row)} is {_shown(value)}, and a sampler yields single indices; one that yields batches belongs "
            "under sampling.batch_sampler"
        )
    raise reading.fail(
        f"{place(row)} is {_shown(value)}, and indices are integers; yield int(index), or of a mask the places where "
        "it is true"
    )


def _check_range(indices: IndexArray, place: Callable[[int], str], reading: Reading) -> None:
    # Seen as unsigned, a negative number is a huge one: one pass checks both ends.
    wrong = np.flatnonzero(indices.view(np.uint64) >= np.uint64(reading.num_samples))
    if len(wrong):
        row = int(wrong[0])
        raise _out_of_range(int(indices[row]), place(row), reading)


def _out_of_range(value: int, place: str, reading: Reading) -> Exception:
    last = reading.num_samples - 1
    counts = "; indices do not count from the end" if value < 0 else ""
    return reading.fail(
        f"{place} is {value}, and the samples are numbered 0 .. {last}{counts}; make the sampler for this data set"
    )


def _single(value: "Array | torch.Tensor", reading: Reading) -> Exception:
    number = value.tolist()
    listed = f"[[{number}]]" if reading.batched else f"[{number}]"
    return reading.fail(f"the sampler is the single number {number}, without a dimension; give a list, {listed}")


def _frozen(array: IndexArray) -> IndexArray:
    array.setflags(write=False)
    return array


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__qualname__})"
