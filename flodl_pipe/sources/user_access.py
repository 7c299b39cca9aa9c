"""How samples are got from what a user has: one by one, several from one call, or as whole columns.

Torch's ``Subset`` and ``ConcatDataset`` are gone through, down to what they are made of, so that a part of a dataset is
read as the dataset itself would be. A subclass that changes how samples are got is taken for what it says.

Shape letter: ``K`` samples asked for.
"""

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import repeat
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch.utils.data

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.door import demand_here
from flodl_pipe.sources.sample_values import RefusedValueError, as_array

__all__ = ["Access", "ItemsDataset", "MapDataset", "SampleDataset", "access_to", "says_thread_safe", "type_name"]


@runtime_checkable
class MapDataset(Protocol):
    """Torch's map-style dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> object: ...


@runtime_checkable
class ItemsDataset(MapDataset, Protocol):
    """A map-style dataset that returns several samples from one call, as a list."""

    def __getitems__(self, indices: list[int], /) -> object: ...


@runtime_checkable
class SampleDataset(Protocol):
    """``get`` in place of ``__getitem__``."""

    def __len__(self) -> int: ...
    def get(self, index: int, /) -> object:
        """Return one sample."""
        ...


class Access(Protocol):
    """Gets samples from a dataset. Pickles when the dataset does."""

    @property
    def way(self) -> str:
        """How, in words."""
        ...

    @property
    def one_by_one(self) -> bool:
        """Whether a failure is of one sample, and not of all that were asked for."""
        ...

    @property
    def is_fleeting(self) -> bool:
        """Whether what one call has returned may be overwritten by the next."""
        ...

    @property
    def thread_safe(self) -> bool | None:
        """Whether several threads may read at once; None where nobody has said so."""
        ...

    def fetch(self, indices: list[int], into: list[object], own: Callable[[object], object] | None = None) -> None:
        """Append the samples, in order. On an exception the next one is the one that failed, where one is.

        Args:
            indices: Samples wanted, distinct.
            into: What to append to.
            own: Applied to each sample before the next is asked for, where they are fleeting; None: nothing is.
        """
        ...

    def identity(self, indices: list[int]) -> Sequence[Hashable]:
        """Return what tells samples apart: two that are the same sample of the same dataset have the same."""
        ...

    def columns(self, indices: IndexArray) -> object | None:
        """Return the samples as one whose values have a leading axis of ``K``; None where that cannot be had."""
        ...


def access_to(dataset: object) -> Access | None:
    """Return how samples are got from something that has ``len()``; None where they cannot be."""
    kind = type(dataset)
    if isinstance(dataset, torch.utils.data.TensorDataset) and not _changes(kind, torch.utils.data.TensorDataset):
        return _Arrays(dataset)
    if kind in (np.ndarray, torch.Tensor):
        return _Arrays(dataset)
    if isinstance(dataset, list | tuple) and kind in (list, tuple):
        return _Listed(dataset)
    if kind is torch.utils.data.Subset:
        inner = access_to(dataset.dataset)  # type: ignore[attr-defined]
        if inner is not None:
            return _Chosen(dataset, inner)  # type: ignore[arg-type]
    if kind is torch.utils.data.ConcatDataset:
        found = [part for part in map(access_to, dataset.datasets) if part is not None]  # type: ignore[attr-defined]
        if len(found) == len(dataset.datasets):  # type: ignore[attr-defined]
            return _Joined(dataset, found)  # type: ignore[arg-type]
    if _is_table(dataset):
        return _Table(dataset)
    if isinstance(dataset, MapDataset) and _is_written(dataset):
        if isinstance(dataset, ItemsDataset) and _belong_together(kind):
            return _Together(dataset)
        return _OneByOne(dataset, by_get=False)
    if isinstance(dataset, SampleDataset):
        return _OneByOne(dataset, by_get=True)
    return None


def type_name(thing: object) -> str:
    """Return the qualified name of a thing's type.

    >>> type_name([]), type_name(np.float32(1))
    ('list', 'numpy.float32')
    """
    kind = type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _changes(kind: type, base: type) -> bool:
    """Whether a subclass has a way of its own to samples."""
    return any(getattr(kind, name, None) is not getattr(base, name, None) for name in ("__getitem__", "__getitems__"))


def _is_written(thing: MapDataset) -> bool:
    """Whether ``__getitem__`` is more than the stub that torch's base class has."""
    return getattr(type(thing), "__getitem__", None) is not torch.utils.data.Dataset.__getitem__


def _belong_together(kind: type) -> bool:
    """Whether ``__getitems__`` speaks for ``__getitem__``: not where a subclass has changed the latter alone."""
    order = [vars(base) for base in kind.__mro__]
    one = next((place for place, names in enumerate(order) if "__getitem__" in names), len(order))
    many = next((place for place, names in enumerate(order) if "__getitems__" in names), len(order))
    return many <= one


def _is_table(dataset: object) -> bool:
    """Whether it is a Hugging Face dataset, which gives columns of rows asked for by a list."""
    kind = type(dataset)
    return kind.__qualname__ == "Dataset" and kind.__module__ == "datasets.arrow_dataset"


def _rows(array: Array, indices: IndexArray) -> Array:
    """Gather rows. By NumPy: torch would start threads of its own in each of ours."""
    # `take` is quicker, but of an array that has gaps it copies all of it first.
    return array.take(indices, axis=0) if array.flags.c_contiguous else array[indices]


def says_thread_safe(dataset: object) -> bool | None:
    """Return what an attribute of a dataset says; None where it has none."""
    said = getattr(dataset, "thread_safe", None)
    return said if isinstance(said, bool) else None


class _Direct:
    """What is no part of another dataset; what it has is there, and stays as it is."""

    one_by_one = True
    is_fleeting = False
    thread_safe: bool | None = True

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def identity(self, indices: list[int]) -> list[int]:
        return indices

    def columns(self, indices: IndexArray) -> object | None:
        del indices
        return None


@final
class _OneByOne(_Direct):
    """One call a sample."""

    is_fleeting = True

    def __init__(self, dataset: MapDataset | SampleDataset, *, by_get: bool) -> None:
        super().__init__(dataset)
        self._by_get = by_get
        self.way = f"{'get' if by_get else '__getitem__'}, one call a sample"
        self.thread_safe = says_thread_safe(dataset)

    def fetch(self, indices: list[int], into: list[object], own: Callable[[object], object] | None = None) -> None:
        # Not kept: methods of built-in types do not all pickle.
        get = self._dataset.get if self._by_get else self._dataset.__getitem__
        add, demand = into.append, demand_here()
        for index in indices:
            if demand.is_ended:
                raise demand.error()
            add(get(index) if own is None else own(get(index)))


@final
class _Together(_Direct):
    """One call of ``__getitems__`` for all samples asked for."""

    way = "__getitems__, one call for many samples"
    one_by_one = False

    def __init__(self, dataset: ItemsDataset) -> None:
        super().__init__(dataset)
        self.thread_safe = says_thread_safe(dataset)

    def fetch(self, indices: list[int], into: list[object], own: Callable[[object], object] | None = None) -> None:
        del own
        name = type_name(self._dataset)
        samples = self._dataset.__getitems__(list(indices))
        if not isinstance(samples, list | tuple):
            raise SourceError(
                f"{name}.__getitems__ returned {type_name(samples)}; it returns a list of samples, one for each "
                "index; a dataset of whole batches has get_batch instead"
            )
        if len(samples) != len(indices):
            raise SourceError(
                f"{name}.__getitems__ returned {len(samples)} samples for {len(indices)} indices; it must return "
                "one for each, in their order"
            )
        into.extend(samples)


@final
class _Listed(_Direct):
    """A list or tuple of samples that are there."""

    way = "a list, one look-up for many samples"

    def fetch(self, indices: list[int], into: list[object], own: Callable[[object], object] | None = None) -> None:
        del own
        if len(indices) == 1:
            into.append(self._dataset[indices[0]])
        elif indices:
            into.extend(operator.itemgetter(*indices)(self._dataset))


@final
class _Arrays(_Direct):
    """Arrays or tensors whose rows are the samples: alone, or side by side in a TensorDataset."""

    way = "arrays in memory, one gather for many samples"

    def fetch(self, indices: list[int], into: list[object], own: Callable[[object], object] | None = None) -> None:
        del own
        into.extend(map(self._dataset.__getitem__, indices))

    def columns(self, indices: IndexArray) -> object | None:
        dataset = self._dataset
        try:
            if isinstance(dataset, torch.utils.data.TensorDataset):
                return tuple(_rows(as_array(tensor), indices) for tensor in dataset.tensors)
            return _rows(as_array(dataset), indices)
        except RefusedValueError:  # no array any more, which its samples show with their place
            return None


@final
class _Table(_Direct):
    """A Hugging Face dataset: columns of the rows asked for."""

    way = "columns of a Hugging Face dataset, one call for many samples"
    one_by_one = False

    def fetch(self, indices: list[int], into: list[object], own: Callable[[object], object] | None = None) -> None:
        del own
        into.extend(self._dataset.__getitems__(indices))

    def columns(self, indices: IndexArray) -> object | None:
        columns: object = self._dataset[indices.tolist()]
        return columns


@final
class _Chosen:
    """Some samples of another dataset: torch's ``Subset``."""

    def __init__(self, subset: "torch.utils.data.Subset[object]", inner: Access) -> None:
        self._subset, self._inner = subset, inner
        self.way = f"a subset; {inner.way}"
        self.one_by_one, self.thread_safe = inner.one_by_one, inner.thread_safe
        self.is_fleeting = inner.is_fleeting

    def identity(self, indices: list[int]) -> Sequence[Hashable]:
        return self._inner.identity(self._inside(indices))

    def fetch(self, indices: list[int], into: list[object], own: Callable[[object], object] | None = None) -> None:
        self._inner.fetch(self._inside(indices), into, own)

    def _inside(self, indices: list[int]) -> list[int]:
        chosen: Any = self._subset.indices
        if isinstance(chosen, np.ndarray | torch.Tensor):
            inside: list[int] = chosen[indices].tolist()
            return inside
        return [chosen[index] for index in indices]  # as they are: what they mean is the inner dataset's

    def columns(self, indices: IndexArray) -> object | None:
        return self._inner.columns(np.asarray(self._inside(indices.tolist())))


@final
class _Joined:
    """Several datasets one after the other: torch's ``ConcatDataset``."""

    def __init__(self, joined: "torch.utils.data.ConcatDataset[object]", parts: Sequence[Access]) -> None:
        self._joined, self._parts = joined, parts
        ways = dict.fromkeys(part.way for part in parts)
        self.way = f"{len(parts)} datasets in turn; {'; '.join(ways)}"
        self.one_by_one = all(part.one_by_one for part in parts)
        self.is_fleeting = any(part.is_fleeting for part in parts)
        said = {part.thread_safe for part in parts}
        self.thread_safe = said.pop() if len(said) == 1 else False if False in said else None

    def identity(self, indices: list[int]) -> list[Hashable]:
        found: list[Hashable] = [None] * len(indices)
        for number, places, inside in self._by_part(indices):
            for place, one in zip(places, self._parts[number].identity(inside), strict=True):
                found[place] = (number, one)
        return found

    def fetch(self, indices: list[int], into: list[object], own: Callable[[object], object] | None = None) -> None:
        samples: list[object] = [None] * len(indices)
        for number, places, inside in self._by_part(indices):
            found: list[object] = []
            try:
                self._parts[number].fetch(inside, found, own)
            except BaseException:
                into.extend(repeat(None, places[min(len(found), len(places) - 1)]))  # the one that failed comes next
                raise
            for place, sample in zip(places, found, strict=True):
                samples[place] = sample
        into.extend(samples)

    def _by_part(self, indices: list[int]) -> Iterator[tuple[int, list[int], list[int]]]:
        """Yield each part that samples are in, their places among those asked for, and their indices in the part.

        A dataset that is there twice is one part.
        """
        ends = self._joined.cumulative_sizes
        first: dict[int, int] = {}
        for number, dataset in enumerate(self._joined.datasets):
            first.setdefault(id(dataset), number)
        # A subset may count from the end.
        indices = [index + ends[-1] if index < 0 else index for index in indices]
        numbers = np.searchsorted(ends, indices, side="right")
        by_part: dict[int, tuple[list[int], list[int]]] = {}
        for place, number in enumerate(numbers.tolist()):
            own = first[id(self._joined.datasets[number])]
            places, inside = by_part.setdefault(own, ([], []))
            places.append(place)
            inside.append(indices[place] - (ends[number - 1] if number else 0))
        for number, (places, inside) in by_part.items():
            yield number, places, inside

    def columns(self, indices: IndexArray) -> None:
        del indices
