"""The cascade for samples of different lengths: tiers and the source answer with rows, which are put in order again.

Shape letters: ``K`` samples asked for.
"""

import contextlib
import threading
from collections.abc import Sequence
from typing import Protocol, final

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, IndexArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.staging.cascade import SourceCount
from flodl_pipe.staging.protocol import TierCount

__all__ = ["RaggedCascade", "RaggedTier", "columns_bytes"]


class RaggedTier(Protocol):
    """Holds some samples of a ragged source. Thread-safe; a miss is an answer, never a wait."""

    name: str

    def read_ragged(self, indices: IndexArray) -> tuple[BoolArray, Columns]:
        """Return which samples are held, shape ``(K,)``, and those, in the order asked for; never raises for loss."""
        ...

    def offer_ragged(self, indices: IndexArray, stored: Columns) -> None:
        """Take in samples that were read elsewhere, if they are wanted. Never raises."""
        ...

    def count(self) -> TierCount:
        """Return what was asked of it so far."""
        ...

    def close(self) -> None:
        """Give everything back; later reads are misses."""
        ...


class RaggedReadable(Protocol):
    """What stands behind the tiers: a ragged source, or whatever reads one."""

    def read_rows(self, indices: IndexArray) -> Columns:
        """Return samples as stored; see :meth:`flodl_pipe.sources.protocol.RaggedSource.read_rows`."""
        ...


@final
class RaggedCascade:
    """Tiers and the ragged source behind them. Thread-safe.

    Args:
        source: The samples.
        tiers: Asked in this order.
        read_lock: Held around each read of a source that is not thread-safe.
    """

    def __init__(
        self,
        source: RaggedReadable,
        tiers: Sequence[RaggedTier],
        *,
        read_lock: contextlib.AbstractContextManager[object],
    ) -> None:
        self._source = source
        self._tiers = tuple(tiers)
        self._read_lock = read_lock
        self._lock = threading.Lock()
        self._num_reads = self._num_rows = self._num_bytes = 0

    def read_rows(self, indices: IndexArray) -> Columns:
        """Return samples as stored, in the order asked for; the arrays are the caller's.

        Args:
            indices: Samples wanted, int64, shape ``(K,)``; repeats are allowed.

        Raises:
            Exception: what the source raises, as it is; no tier is offered anything of such a read.
        """
        found: list[tuple[IndexArray, Columns]] = []
        missing = np.arange(len(indices), dtype=np.int64)
        for tier in self._tiers:
            held, stored = tier.read_ragged(indices[missing])
            if held.any():
                found.append((missing[held], stored))
                missing = missing[~held]
        if len(missing) or not found:
            wanted = indices[missing]
            with self._read_lock:
                stored = self._source.read_rows(wanted)
            with self._lock:
                self._num_reads += 1
                self._num_rows += len(wanted)
                self._num_bytes += columns_bytes(stored)
            for tier in self._tiers:
                tier.offer_ragged(wanted, stored)
            found.append((missing, stored))
        return _merged(found)

    def source_count(self) -> SourceCount:
        """Return what the source was asked for so far."""
        with self._lock:
            return SourceCount(self._num_reads, self._num_rows, self._num_bytes)

    def tier_counts(self) -> tuple[TierCount, ...]:
        """Return what each tier was asked for so far, in order."""
        return tuple(tier.count() for tier in self._tiers)

    def close(self) -> None:
        """Close all tiers; everything is read from the source then."""
        for tier in self._tiers:
            tier.close()


def columns_bytes(stored: Columns) -> int:
    """Return the bytes of rows, without their offsets."""
    return sum(column.values.nbytes if isinstance(column, Ragged) else column.nbytes for column in stored.values())


def _merged(found: Sequence[tuple[IndexArray, Columns]]) -> Columns:
    """Put rows that were found apart where they belong: those of ``places[i]`` to place ``i`` of what was asked for."""
    if len(found) == 1:
        return found[0][1]
    places = np.concatenate([places for places, _ in found])
    order = np.empty_like(places)
    order[places] = np.arange(len(places))
    return {name: _joined([stored[name] for _, stored in found], order) for name in found[0][1]}


def _joined(columns: Sequence[Array | Ragged], order: IndexArray) -> Array | Ragged:
    ragged = [column for column in columns if isinstance(column, Ragged)]
    if not ragged:
        rows: Array = np.concatenate([column for column in columns if not isinstance(column, Ragged)])[order]
        return rows
    offsets = np.zeros(len(order) + 1, dtype=np.int64)
    np.cumsum(np.concatenate([column.lengths for column in ragged]), out=offsets[1:])
    return Ragged(np.concatenate([column.values for column in ragged]), offsets).take(order)
