"""The read probe of ``job=plan``: the first rows that a run would ask for, read and thrown away, timed.

It is bounded twice, by bytes and by time, and begins with one row, so that a source that takes seconds for a sample is
asked for one sample only. What it finds is what the page cache and the disk give at that moment.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.loader.outline import Outline
from flodl_pipe.sampling.orders import samples_of
from flodl_pipe.sources.impure import ImpureSource
from flodl_pipe.sources.protocol import BundledSource, RaggedSource, Source

__all__ = ["MAX_BYTES", "MAX_S", "ReadProbe", "probe_reads"]

MAX_BYTES = 64 << 20
"""Most bytes that are read."""
MAX_S = 1.0
"""Seconds after which no further read begins."""


@final
@dataclass(frozen=True)
class ReadProbe:
    """What a probe found.

    Attributes:
        num_rows: Rows read in the order's order; 0 where nothing was measured.
        num_bytes: Their bytes, as stored.
        took_s: Seconds for them, by one thread.
        fill_bytes_per_s: Bytes a second of the same source read front to back; 0.0 where that was not measured.
        why: Why nothing was measured; empty where it was.
    """

    num_rows: int = 0
    num_bytes: int = 0
    took_s: float = 0.0
    fill_bytes_per_s: float = 0.0
    why: str = ""

    @property
    def row_s(self) -> float:
        """Seconds a row takes one thread; 0.0 where nothing was measured."""
        return self.took_s / self.num_rows if self.num_rows else 0.0


def probe_reads(
    found: Outline,
    *,
    fills: bool,
    max_bytes: int = MAX_BYTES,
    max_s: float = MAX_S,
    clock: Callable[[], float] = time.perf_counter,
) -> ReadProbe:
    """Read the first rows of epoch 0, and where tiers are filled ahead some rows front to back too.

    Args:
        found: What a loader would be made of.
        fills: Whether a tier would be filled ahead: half of the time and the bytes are for that then.
        max_bytes: Most bytes to read.
        max_s: Seconds after which no further read begins.
        clock: Returns seconds.
    """
    source, order = found.source, found.order
    if isinstance(source, ImpureSource):
        return ReadProbe(why="the data set is random on purpose, and reading it draws from its generators")
    row_bytes = max(1, source.spec.row_bytes)
    if row_bytes > max_bytes:
        return ReadProbe(why="one row is larger than what a probe reads")
    parts = 2 if fills else 1
    most_rows = max(1, max_bytes // row_bytes // parts)
    epoch, num_picks = order.epoch(0), found.steps.of_epoch(0).num_picks
    chunk = max(1, found.plan.group_steps * found.steps.max_rows // found.plan.step_parts)

    def shuffled(start: int, stop: int) -> IndexArray:
        return samples_of(order, np.arange(start, stop, dtype=np.int64), epoch.at(start, stop))[0]

    def in_storage_order(start: int, stop: int) -> IndexArray:
        return np.arange(start, stop, dtype=np.int64)

    try:
        rows, num_bytes, took_s = _read(source, shuffled, min(most_rows, num_picks), chunk, max_s / parts, clock)
        fill_bytes_per_s = 0.0
        if fills:
            limit = min(most_rows, len(source))
            _, fill_bytes, fill_s = _read(source, in_storage_order, limit, max(chunk, 1024), max_s / parts, clock)
            fill_bytes_per_s = fill_bytes / max(fill_s, 1e-9)
    except Exception as error:  # noqa: BLE001 - a run raises it at its step, with a remedy; a plan goes on
        return ReadProbe(why=f"reading failed ({error})")
    return ReadProbe(rows, num_bytes, took_s, fill_bytes_per_s)


def _read(
    source: Source,
    samples: Callable[[int, int], IndexArray],
    num_rows: int,
    chunk: int,
    max_s: float,
    clock: Callable[[], float],
) -> tuple[int, int, float]:
    """Read rows, twice as many with each call up to ``chunk``; return how many, their bytes, and the time."""
    ragged = source if isinstance(source, RaggedSource) and source.spec.is_ragged else None
    done, num_bytes, took_s, count = 0, 0, 0.0, 1
    while done < num_rows and took_s < max_s:
        count = min(count, num_rows - done)
        wanted = samples(done, done + count)
        began = clock()
        if ragged is not None:
            columns = ragged.read_rows(wanted).values()
            num_bytes += sum(one.values.nbytes if isinstance(one, Ragged) else one.nbytes for one in columns)
        else:
            out = source.buffers(count) if isinstance(source, BundledSource) else source.spec.empty(count)
            source.read_into(wanted, np.arange(count, dtype=np.int64), out)
            num_bytes += count * source.spec.row_bytes
        took_s += clock() - began
        done += count
        # No call may take much longer than what is left: a source that is slow goes on in small ones.
        left = int((max_s - took_s) * done / max(took_s, 1e-9))
        count = max(1, min(2 * count, chunk, left))
    return done, num_bytes, took_s
