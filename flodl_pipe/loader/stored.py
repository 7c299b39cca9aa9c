"""Stored rows, from the resident set once it is there and from the source until then, and what is done with them."""

import threading
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray, WordArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import StagingError
from flodl_pipe.keyed.digest import row_hashes
from flodl_pipe.loader.lookahead import Rows
from flodl_pipe.loader.resident import ResidentSet
from flodl_pipe.loader.source_reads import Picks, SourceReads
from flodl_pipe.sources.protocol import BundledSource, RaggedSource, Source
from flodl_pipe.staging.cascade import Cascade
from flodl_pipe.staging.ragged_cascade import RaggedCascade

__all__ = ["StoredRows", "as_items", "in_steps", "part_of"]


@final
class StoredRows:
    """Reads stored rows, hashes and delivers them; shared by the readers of a loader.

    Args:
        source: Where rows come from.
        names: Names of the delivered fields in a batch, in the source's order of fields.
        resident: The resident set, asked first once it is ready; None when streaming.
        reads: Reads the source.
        cascade: Reads tiers, and for what they lack the source.
        as_stored: Whether rows are delivered as they are stored, for a device to deliver.
    """

    def __init__(
        self,
        source: Source,
        names: Sequence[str],
        *,
        resident: ResidentSet | None,
        reads: SourceReads,
        cascade: Cascade | RaggedCascade,
        as_stored: bool = False,
    ) -> None:
        self._source = source
        self._bundled = source if isinstance(source, BundledSource) else None
        self._ragged = source if isinstance(source, RaggedSource) and source.spec.is_ragged else None
        self._as_stored = as_stored
        delivered = source.spec if as_stored else source.delivered
        self._names = list(zip(delivered.names, names, strict=True))
        self._cascade = cascade
        self._resident = resident
        self._reads = reads
        self._scratch = threading.local()

    def read(self, indices: IndexArray, picks: Picks | None = None) -> Columns:
        """Return the stored rows of some samples; arrays are valid until this thread's next call.

        Args:
            indices: The samples.
            picks: What they are read for, where the source is impure; None: pick 0.

        Raises:
            StagingError: if there is no memory for them.
            Exception: what the source raises.
        """
        if self._resident is not None and self._resident.is_ready:
            return dict(self._resident.gather(indices))
        cascade = self._cascade
        if isinstance(cascade, RaggedCascade):
            return self._reads.read_rows(indices, picks) if self._reads.is_impure else cascade.read_rows(indices)
        num_rows = len(indices)
        try:
            stored = self._buffers(num_rows)
        except MemoryError as error:
            raise StagingError(
                f"no memory for {num_rows:,} stored rows of {self._source.spec.row_bytes:,} bytes ({error}); lower "
                "loader.batch_size, or lift the limit on memory (ulimit -v, the control group's)"
            ) from error
        rows = np.arange(num_rows, dtype=np.int64)
        if self._reads.is_impure:
            self._reads.read_into(indices, rows, stored, picks)
        else:
            cascade.read_into(indices, rows, stored)
        return dict(stored)

    def hashes(self, stored: Columns, epoch: int, rows: Rows) -> WordArray:
        """Return the hash of each row, uint64, shape ``(rows, 2)``."""
        return row_hashes(
            stored.values(), epoch=epoch, positions=rows.positions, samples=rows.samples, repeats=rows.repeats
        )

    def deliver(self, stored: Columns, views: Mapping[str, Array]) -> None:
        """Deliver stored rows of fixed shapes to arrays, by the names of a batch. Leading axes must agree."""
        if self._as_stored:
            for own, shown in self._names:
                np.copyto(views[shown], stored[own])  # type: ignore[arg-type]
            return
        self._source.deliver(stored, {own: views[shown] for own, shown in self._names})  # type: ignore[arg-type]

    def delivered(self, stored: Columns, spec: SampleSpec) -> Columns:
        """Return delivered rows in arrays of their own.

        Args:
            stored: The stored rows.
            spec: Delivered fields under the names of a batch.
        """
        if self._ragged is not None:
            made = self._ragged.deliver_rows(stored)
            return {shown: made[own] for own, shown in self._names}
        num_rows = len(next(iter(stored.values())))
        out = spec.empty(num_rows)
        self.deliver(stored, out)
        return dict(out)

    def _buffers(self, num_rows: int) -> dict[str, Array]:
        if self._bundled is not None:
            return self._bundled.buffers(num_rows)
        kept: dict[str, Array] | None = getattr(self._scratch, "fields", None)
        if kept is None or len(next(iter(kept.values()))) < num_rows:
            kept = self._scratch.fields = self._source.spec.empty(num_rows)
        return {name: array[:num_rows] for name, array in kept.items()}


def part_of(stored: Columns, rows: slice) -> Columns:
    """Return consecutive rows of stored ones, as views."""
    return {
        name: column.slice(rows.start, rows.stop) if isinstance(column, Ragged) else column[rows]
        for name, column in stored.items()
    }


def in_steps(stored: Columns, num_steps: int) -> Columns:
    """Return stored rows of several steps with an axis of steps before that of rows."""
    return {
        name: array.reshape(num_steps, len(array) // num_steps, *array.shape[1:])
        for name, array in stored.items()
        if isinstance(array, np.ndarray)
    }


def as_items(array: Array) -> Array:
    """Return rows as opaque items, shape ``(rows,)``."""
    flat = array.reshape(len(array), -1)
    return flat.view(f"V{flat.shape[1] * flat.itemsize}")[:, 0]
