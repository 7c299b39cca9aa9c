"""How rows are read from a user's dataset: sample by sample, samples together, or a whole batch at once.

A reader asks the dataset, checks what comes back against the layout learned from the first sample, and copies it into
rows at once, so a dataset may return the same buffer again and again. An exception of the dataset's own goes on as it
is, with a note that names the samples.

Shape letters: ``K`` samples asked for, ``B`` rows of a buffer.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, final, runtime_checkable

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.ragged_layout import RowCollector, learn_layout
from flodl_pipe.sources.sample_layout import SampleLayout

__all__ = [
    "BatchDataset",
    "BatchReader",
    "ItemsDataset",
    "ItemsReader",
    "MapDataset",
    "RaggedReader",
    "SampleDataset",
    "SampleReader",
    "UserReader",
    "type_name",
]


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


@runtime_checkable
class BatchDataset(Protocol):
    """A dataset that returns whole batches."""

    def __len__(self) -> int: ...
    def get_batch(self, indices: IndexArray, /) -> object:
        """Return the fields of samples ``indices``, int64, shape ``(K,)``: each value has ``K`` rows."""
        ...


class UserReader(Protocol):
    """Reads samples of a user's dataset into rows. Pickles when the dataset does."""

    layout: SampleLayout
    """What every sample holds."""

    way: str
    """How the dataset is read, in words."""

    def num_samples(self) -> int:
        """Return the dataset's length now."""
        ...

    def read(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Copy samples into rows; as :meth:`flodl_pipe.sources.protocol.Source.read_into`, for ``K`` of at least 1."""
        ...


@runtime_checkable
class RaggedReader(UserReader, Protocol):
    """Reads samples with ragged fields, too."""

    def collect(self, indices: IndexArray) -> Columns:
        """Return samples; as :meth:`flodl_pipe.sources.protocol.RaggedSource.read_rows`."""
        ...


@final
class SampleReader:
    """One call a sample.

    Args:
        dataset: Has ``__getitem__`` or ``get``.
        num_samples: Its length.
        by_get: Whether ``get`` is called: a dataset may have both.
        ragged: See :func:`~.ragged_layout.learn_layout`.

    Raises:
        SourceError: if sample 0 is none.
    """

    def __init__(
        self, dataset: MapDataset | SampleDataset, num_samples: int, *, by_get: bool, ragged: Sequence[str] | None
    ) -> None:
        self._dataset, self._by_get = dataset, by_get
        self._name = type_name(dataset)
        self.way = f"{'get' if by_get else '__getitem__'}, one call a sample"
        self.layout = learn_layout(self._one, num_samples, self._name, ragged)

    def _one(self, index: int) -> object:
        with _noted(self._name, lambda: [index]):
            return self._getter()(index)

    def _getter(self) -> Callable[[int], object]:
        # Not kept: methods of built-in types do not all pickle.
        dataset = self._dataset
        if self._by_get and isinstance(dataset, SampleDataset):
            return dataset.get
        assert isinstance(dataset, MapDataset)
        return dataset.__getitem__

    def num_samples(self) -> int:
        """Return the dataset's length now."""
        return len(self._dataset)

    def read(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Copy samples into rows; see :class:`UserReader`."""
        targets, write, get = self.layout.targets(out), self.layout.write, self._getter()
        index = -1
        with _noted(self._name, lambda: [index]):  # once a read: a block costs more than many a sample
            for index, row in zip(indices.tolist(), rows.tolist(), strict=True):
                write(get(index), index, row, targets)

    def collect(self, indices: IndexArray) -> Columns:
        """Return samples; see :class:`RaggedReader`."""
        rows, get = RowCollector(self.layout, len(indices)), self._getter()
        index = -1
        with _noted(self._name, lambda: [index]):
            for index in indices.tolist():
                rows.add(get(index), index)
        return rows.columns()


@final
class ItemsReader:
    """One call of ``__getitems__`` for all samples asked for.

    Args:
        dataset: The dataset.
        num_samples: Its length.
        ragged: See :func:`~.ragged_layout.learn_layout`.

    Raises:
        SourceError: if sample 0 is none.
    """

    way = "__getitems__, one call for many samples"

    def __init__(self, dataset: ItemsDataset, num_samples: int, *, ragged: Sequence[str] | None) -> None:
        self._dataset = dataset
        self._name = type_name(dataset)
        self.layout = learn_layout(lambda index: self._samples([index])[0], num_samples, self._name, ragged)

    def _samples(self, indices: list[int]) -> Sequence[object]:
        with _noted(self._name, lambda: indices):
            samples = self._dataset.__getitems__(list(indices))
        if not isinstance(samples, list | tuple):
            raise SourceError(
                f"{self._name}.__getitems__ returned {type_name(samples)}; it returns a list of samples, one for each "
                "index; a dataset of whole batches has get_batch instead"
            )
        if len(samples) != len(indices):
            raise SourceError(
                f"{self._name}.__getitems__ returned {len(samples)} samples for {len(indices)} indices; it must return "
                "one for each, in their order"
            )
        return samples

    def num_samples(self) -> int:
        """Return the dataset's length now."""
        return len(self._dataset)

    def read(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Copy samples into rows; see :class:`UserReader`."""
        targets = self.layout.targets(out)
        wanted = indices.tolist()
        for index, row, sample in zip(wanted, rows.tolist(), self._samples(wanted), strict=True):
            self.layout.write(sample, index, row, targets)

    def collect(self, indices: IndexArray) -> Columns:
        """Return samples; see :class:`RaggedReader`."""
        rows, wanted = RowCollector(self.layout, len(indices)), indices.tolist()
        for index, sample in zip(wanted, self._samples(wanted) if wanted else [], strict=True):
            rows.add(sample, index)
        return rows.columns()


@final
class BatchReader:
    """One call of ``get_batch`` for all samples asked for.

    Args:
        dataset: A dataset of at least one sample.
        num_samples: Its length.

    Raises:
        SourceError: if the first batch is none.
    """

    way = "get_batch, one call for many samples"

    def __init__(self, dataset: BatchDataset, num_samples: int) -> None:
        self._dataset = dataset
        self._name = type_name(dataset)
        # Two samples: with one, an axis that happens to be 1 could pass for the rows.
        first = np.arange(min(num_samples, 2), dtype=np.int64)
        self.layout = SampleLayout.of_batch(self._fields(first), len(first), self._name)

    def _fields(self, indices: IndexArray) -> object:
        with _noted(self._name, indices.tolist):
            return self._dataset.get_batch(indices.copy())  # a dataset may sort them in place

    def num_samples(self) -> int:
        """Return the dataset's length now."""
        return len(self._dataset)

    def read(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Copy samples into rows; see :class:`UserReader`."""
        self.layout.write_batch(self._fields(indices), indices, rows, out)


def type_name(thing: object) -> str:
    """Return the qualified name of a thing's type.

    >>> type_name([]), type_name(np.float32(1))
    ('list', 'numpy.float32')
    """
    kind = type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@contextlib.contextmanager
def _noted(owner: str, asked: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Let the dataset's exceptions through with a note; only StopIteration, which would end the loop, is wrapped."""
    try:
        yield
    except SourceError:  # says where it is
        raise
    except Exception as error:
        indices = asked()
        some = ", ".join(map(str, indices[:8])) + (f" and {len(indices) - 8} more" if len(indices) > 8 else "")
        note = f"while reading {'sample' if len(indices) == 1 else 'samples'} {some} of {owner}"
        if isinstance(error, StopIteration):
            raise SourceError(f"{note}: the dataset raised StopIteration; a dataset ends at its len()") from error
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
