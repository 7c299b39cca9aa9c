"""The cascade on the host: tiers are asked in order for what is still missing, and the source for the rest.

Every answer goes straight to the rows that the caller named, so any mix of hits and misses ends in the order asked
for. The source is read once, for all that no tier had, and what it gave is offered to the tiers. The readers of a
loader share one cascade.

Shape letters: ``K`` samples asked for, ``B`` rows of a buffer.
"""

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.staging.protocol import Tier, TierCount

__all__ = ["Cascade", "SourceCount"]


@final
@dataclass(frozen=True)
class SourceCount:
    """What was read from the source for batches.

    Attributes:
        num_reads: Calls.
        num_rows: Rows.
        num_bytes: Their bytes, as stored.
    """

    num_reads: int
    num_rows: int
    num_bytes: int


class Readable(Protocol):
    """What stands behind the tiers: a source, or whatever reads one."""

    spec: SampleSpec
    """The stored row."""

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Read samples into rows; see :meth:`flodl_pipe.sources.protocol.Source.read_into`."""
        ...


@final
class Cascade:
    """Tiers and the source behind them. Thread-safe.

    Args:
        source: The samples; for a ragged source see :mod:`flodl_pipe.staging.ragged_cascade`.
        tiers: Asked in this order.
        read_lock: Held around each read of a source that is not thread-safe.
    """

    def __init__(
        self,
        source: Readable,
        tiers: Sequence[Tier],
        *,
        read_lock: contextlib.AbstractContextManager[object],
    ) -> None:
        self._source = source
        self._tiers = tuple(tiers)
        self._read_lock = read_lock
        self._row_bytes = source.spec.row_bytes
        self._lock = threading.Lock()
        self._num_reads = self._num_rows = 0

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Read samples into rows: ``out[field][rows[i]] = sample indices[i]``.

        Args:
            indices: Samples wanted, int64, shape ``(K,)``; repeats are allowed.
            rows: Row that each goes to, int64, shape ``(K,)``, distinct.
            out: One C-contiguous array per stored field, shape ``(B, *field.shape)``; quickest where they are what the
                source's ``buffers`` returns.

        Raises:
            Exception: what the source raises, as it is; no tier is offered anything of such a read.
        """
        for tier in self._tiers:
            held = tier.read_into(indices, rows, out)
            num_hits = np.count_nonzero(held)
            if num_hits == len(indices):
                return
            if num_hits:
                missing = ~held
                indices, rows = indices[missing], rows[missing]
        with self._read_lock:
            self._source.read_into(indices, rows, out)
        with self._lock:
            self._num_reads += 1
            self._num_rows += len(indices)
        for tier in self._tiers:
            tier.offer(indices, rows, out)

    def source_count(self) -> SourceCount:
        """Return what the source was asked for so far."""
        with self._lock:
            return SourceCount(self._num_reads, self._num_rows, self._num_rows * self._row_bytes)

    def tier_counts(self) -> tuple[TierCount, ...]:
        """Return what each tier was asked for so far, in order."""
        return tuple(tier.count() for tier in self._tiers)

    def close(self) -> None:
        """Close all tiers; everything is read from the source then."""
        for tier in self._tiers:
            tier.close()
