"""How rows are read from a user's dataset: sample by sample, samples together, or a whole batch at once.

A reader asks the dataset for a chunk of samples, checks what comes back against the layout learned from the first one,
and copies it into rows. A dataset that returns the same memory again and again is noticed, and then read sample by
sample. An exception of the dataset's own goes on as it is, with a note that names the samples.

Shape letters: ``K`` samples asked for, ``B`` rows of a buffer.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Protocol, final, runtime_checkable

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.ragged_layout import RowCollector, learn_layout
from flodl_pipe.sources.sample_layout import SampleLayout
from flodl_pipe.sources.user_access import Access, type_name

__all__ = ["BatchDataset", "BatchReader", "RaggedReader", "SampleReader", "UserReader"]

# Samples that are held as the dataset gave them, until they are copied.
_TOGETHER_ROWS = 256
_TOGETHER_BYTES = 4 << 20


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
    """Reads samples by themselves, many at a time.

    Args:
        dataset: The dataset.
        num_samples: Its length.
        access: How samples are got from it.
        ragged: See :func:`~.ragged_layout.learn_layout`.

    Raises:
        SourceError: if sample 0 is none.
    """

    def __init__(self, dataset: Sized, num_samples: int, access: Access, *, ragged: Sequence[str] | None) -> None:
        self._dataset, self._access = dataset, access
        self._name = type_name(dataset)
        self.way = access.way
        self._owns: Callable[[object], object] | None = None
        self._by_columns = True  # until it shows that it cannot be
        self.layout = learn_layout(lambda index: self._samples([index])[0], num_samples, self._name, ragged)
        self._chunk_rows = self._most_rows = 1 << 62  # what a dataset returns from one call it is asked for by one
        if access.one_by_one:
            self._most_rows = max(1, min(_TOGETHER_ROWS, _TOGETHER_BYTES // max(1, self.layout.spec.row_bytes)))
            # One that returns the same memory again and again mostly shows it at once.
            self._chunk_rows = min(2, self._most_rows)

    def _samples(self, indices: list[int], own: Callable[[object], object] | None = None) -> list[object]:
        found: list[object] = []

        def asked() -> list[int]:
            return indices[len(found) : len(found) + 1] if self._access.one_by_one else indices

        with _noted(self._name, asked):
            self._access.fetch(indices, found, own)
        return found

    def num_samples(self) -> int:
        """Return the dataset's length now."""
        return len(self._dataset)

    def read(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Copy samples into rows; see :class:`UserReader`."""
        targets = self.layout.targets(out)
        if self._by_columns:
            with _noted(self._name, indices.tolist):
                columns = self._access.columns(indices)
            self._by_columns = columns is not None and self.layout.write_columns(columns, rows, targets)
            if self._by_columns:
                return
        first, which = self._once(indices)
        if first is None:
            self._read(indices, rows, targets)
            return
        self._read(indices[first], rows[first], targets)
        again = rows[first[which]]
        for target in targets:
            target[rows] = target[again]

    def collect(self, indices: IndexArray) -> Columns:
        """Return samples; see :class:`RaggedReader`."""
        first, which = self._once(indices)
        wanted = indices if first is None else indices[first]
        rows = RowCollector(self.layout, len(wanted))

        def add(samples: list[object], indices: list[int], low: int) -> bool:
            del low  # one after the other
            return rows.add(samples, indices, is_fleeting=self._access.is_fleeting)

        self._chunks(wanted, add)
        if first is None:
            return rows.columns()
        columns = rows.columns().items()
        return {name: found.take(which) if isinstance(found, Ragged) else found[which] for name, found in columns}

    def _once(self, indices: IndexArray) -> tuple[IndexArray | None, IndexArray]:
        """Return where each sample is asked for first, and which of those each is; None where none is asked for twice.

        Two indices may be one sample: of a subset that has it twice, or the same dataset joined with itself.
        """
        names = self._access.identity(indices.tolist())
        if len(set(names)) == len(names):
            return None, indices
        once = dict(zip(reversed(names), reversed(range(len(names))), strict=True))
        first = np.sort(np.array([*once.values()], dtype=np.int64))
        return first, np.searchsorted(first, np.array([once[name] for name in names], dtype=np.int64))

    def _read(self, indices: IndexArray, rows: IndexArray, targets: Sequence[Array]) -> None:
        def write(samples: list[object], indices: list[int], low: int) -> bool:
            own_rows, is_fleeting = rows[low : low + len(samples)], self._access.is_fleeting
            return self.layout.write_many(samples, indices, own_rows, targets, is_fleeting=is_fleeting)

        self._chunks(indices, write)

    def _chunks(self, indices: IndexArray, copy: Callable[[list[object], list[int], int], bool]) -> None:
        """Ask for samples, and copy them.

        Args:
            indices: Samples that are all different ones.
            copy: Copies samples of some indices, the first of which is at a place among all; returns whether it could:
                not where two of them share memory.
        """
        low = 0
        while low < len(indices):
            wanted = indices[low : low + self._chunk_rows].tolist()
            done = copy(self._samples(wanted, self._owns), wanted, low)
            if not done and self._owns is None:
                # The dataset returns the same memory again: these are asked for anew, and what comes is copied at once.
                self._owns = self.layout.own
                continue
            if not done:  # values that cannot be copied so
                self._chunk_rows = self._most_rows = 1
                for place, index in enumerate(wanted):
                    copy(self._samples([index]), [index], low + place)
            if self._chunk_rows < self._most_rows:
                self._chunk_rows = min(4 * self._chunk_rows, self._most_rows)
            low += len(wanted)


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
