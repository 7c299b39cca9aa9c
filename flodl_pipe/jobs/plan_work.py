"""What a loader on paper will move, epoch by epoch: an outline in terms of :mod:`flodl_pipe.staging.expect`.

Ranges of tiers overlap where memory is plenty: a RAM cache that holds everything stands behind a pool that holds half.
So ranks are cut where a tier begins or ends, and in each piece the tiers are asked in turn
(:mod:`flodl_pipe.jobs.plan_spans`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, final

import numpy as np

from flodl_pipe.jobs.plan_spans import Floats, Held, Span
from flodl_pipe.loader.outline import Outline
from flodl_pipe.sampling.batch_sampler import BatchSamplerOrder
from flodl_pipe.sampling.drawn import DrawnOrder
from flodl_pipe.sampling.mixture_order import MixtureOrder
from flodl_pipe.sampling.sampler_order import SamplerOrder
from flodl_pipe.sampling.weighted import WeightedOrder
from flodl_pipe.sources.ordering import Mixed, MixedPart
from flodl_pipe.sources.protocol import BundledSource
from flodl_pipe.staging.expect import EpochWork
from flodl_pipe.staging.expected_tier import Workload
from flodl_pipe.staging.ranking import Ranking

__all__ = ["Piece", "Uploads", "epochs_of", "pieces_of", "why_not_foretold"]

_NUMBER_BYTES = 8
# Sums of expectations leave a rest.
_NO_ROWS = 1e-9


@final
@dataclass(frozen=True)
class Uploads:
    """What crosses the bus to a device.

    Attributes:
        row_bytes: Bytes of a row as it is uploaded.
        has_digest: Whether a word for each row's hash goes with it.
        in_order: Whether rows of a pool that is complete are gathered in the order of the batch: it is one slab.
    """

    row_bytes: int
    has_digest: bool = False
    in_order: bool = False

    def num_bytes(self, rows: float, found: float, filled: float, taken: float) -> float:
        """Return the bytes of an epoch: rows, and the numbers that say where rows lie and go to.

        Args:
            rows: Rows of its batches.
            found: Of them, in the pool.
            filled: Rows that are uploaded only to fill the pool.
            taken: Uploaded rows that the pool takes in.
        """
        is_mixed = found > 0.5 and (found < rows - 0.5 or not self.in_order)
        numbers = found + 2 * (taken + filled) + rows * (self.has_digest + is_mixed)
        return (rows - found + filled) * self.row_bytes + numbers * _NUMBER_BYTES


@final
@dataclass(frozen=True)
class Piece:
    """Ranks whose samples are drawn by one rule.

    Attributes:
        end_rank: The rank after its last one; the first one is where the piece before ends.
        work: What is asked of them.
    """

    end_rank: int
    work: Workload


def why_not_foretold(found: Outline) -> str:
    """Return why nobody can say beforehand how often samples come; empty where that can be said."""
    if isinstance(found.order, SamplerOrder | BatchSamplerOrder):
        return "a sampler of your own decides how often a sample comes"
    if found.source.spec.is_ragged:
        return "rows have different lengths, and no tier keeps them"
    return ""


def epoch_rows(found: Outline) -> int:
    """Return the rows that this rank's batches of an epoch hold."""
    steps = found.steps
    count = steps.num_steps()
    last = steps.step(count - 1)
    return (count - 1) * steps.batch_rows + last.num_rows


def pieces_of(found: Outline, ranking: Ranking) -> list[Piece]:
    """Return what an order asks of samples, by rank."""
    order, source = found.order, found.source
    num_samples, rows = len(source), epoch_rows(found)
    batch_rows, row_bytes = found.steps.batch_rows, source.spec.row_bytes
    if isinstance(order, WeightedOrder):
        weights = order.weights[ranking.samples(0, num_samples)]
        return [Piece(num_samples, Workload(num_samples, row_bytes, "drawn", rows, batch_rows, probabilities=weights))]
    if isinstance(order, DrawnOrder):
        return [Piece(num_samples, Workload(num_samples, row_bytes, "drawn", rows, batch_rows))]
    ordering = source.ordering if isinstance(source, BundledSource) else None
    if isinstance(order, MixtureOrder) and isinstance(ordering, Mixed):
        rates = [
            float(weight) / max(1, part.num_samples)
            for part, weight in zip(ordering.parts, ordering.schedule[0].weights, strict=True)
        ]
        ranked = sorted(zip(ordering.parts, rates, strict=True), key=lambda pair: -pair[1])
        chances = np.concatenate([np.full(part.num_samples, rate) for part, rate in ranked])
        pieces, end = [], 0
        for part, _ in ranked:
            end += part.num_samples
            rule = _rule(part)
            pieces.append(Piece(end, Workload(num_samples, row_bytes, rule, rows, batch_rows, probabilities=chances)))
        return pieces
    repeats, num_samples = order.num_repeats or 1, len(ranking)  # under lanes, this rank's own
    rows = min(rows, num_samples * repeats)
    return [Piece(num_samples, Workload(num_samples, row_bytes, "permutation", rows, batch_rows, repeats=repeats))]


def _rule(part: MixedPart) -> Literal["drawn", "passes"]:
    return "drawn" if part.drawn else "passes"


def epochs_of(
    pieces: Sequence[Piece],
    pool: Held,
    ram: Held,
    disk: Held,
    num_epochs: int,
    *,
    uploads: Uploads | None,
) -> list[EpochWork]:
    """Return the expected work of epochs ``0 .. num_epochs - 1``, tiers being empty at the start.

    Args:
        pieces: What is asked for.
        pool: The sample pool.
        ram: The RAM cache, or the resident set of a CPU.
        disk: The disk stage.
        num_epochs: How many epochs.
        uploads: What crosses the bus; None where batches stay on the host.
    """
    tiers = (pool, ram, disk)
    work = pieces[0].work
    cuts = {0, *(piece.end_rank for piece in pieces)}
    cuts |= {rank for tier in tiers if tier.num_rows for rank in (tier.first_rank, tier.end_rank)}
    spans = []
    for first, end in pairwise(sorted(cuts)):
        here = [tier if tier.first_rank <= first < tier.end_rank else None for tier in tiers]
        if any(here):
            rule = next(piece.work for piece in pieces if first < piece.end_rank)
            spans.append(Span(rule, first, end, here))
    return [_epoch(epoch, work, spans, tiers, uploads) for epoch in range(num_epochs)]


def _epoch(
    epoch: int, work: Workload, spans: Sequence[Span], tiers: tuple[Held, Held, Held], uploads: Uploads | None
) -> EpochWork:
    row_bytes, rows = work.row_bytes, work.epoch_rows
    found, taken, filled = np.zeros(3), np.zeros(3), np.zeros(3)
    for span in spans:
        span_found, span_taken, span_filled = span.epoch(epoch)
        found += span_found
        taken += span_taken
        filled += span_filled
    found += _missed_early(tiers, work, epoch)
    # What fills the pool is read like any row: from the RAM cache where that is there, else from the source.
    ram = tiers[1]
    pool_fill = float(filled[0])
    from_ram = (
        pool_fill
        if ram.ahead and ram.num_rows >= tiers[0].num_rows and ram.fill_epochs <= tiers[0].fill_epochs
        else 0.0
    )
    source = max(0.0, rows - float(found.sum()))
    if source < _NO_ROWS * rows:
        source = 0.0
    link = 0.0 if uploads is None else uploads.num_bytes(rows, float(found[0]), pool_fill, float(taken[0]))
    return EpochWork(
        epoch=epoch,
        num_rows=rows,
        pool_rows=float(found[0]),
        ram_rows=float(found[1]),
        disk_rows=float(found[2]),
        source_rows=source,
        source_bytes=source * row_bytes,
        fill_bytes=(pool_fill - from_ram) * row_bytes + float(filled[1]) * _bytes_per_fill(ram, row_bytes),
        disk_read_bytes=float(found[2]) * row_bytes,
        disk_written_bytes=float(taken[2]) * row_bytes,
        link_bytes=link,
        pool_admitted_rows=float(taken[0]),
        ram_admitted_rows=float(taken[1]),
        disk_admitted_rows=float(taken[2]),
    )


def _missed_early(tiers: tuple[Held, Held, Held], work: Workload, epoch: int) -> Floats:
    """Return how many rows more each tier finds because the pool was smaller when they were uploaded: they come again.

    The pool finds them not; the tiers behind it do where they hold them, for they were read before.
    """
    pool, moved = tiers[0], np.zeros(3)
    when = 1 if work.order == "permutation" and work.repeats == 1 else 0
    first, end = pool.early_end, pool.end_rank
    if epoch != when or first >= end:
        return moved
    moved[0] = -pool.early_rows * (end - first) / work.num_samples
    for number, tier in enumerate(tiers[1:], start=1):
        if tier.num_rows:  # ranges behind the pool lie apart
            shared = max(0, min(end, tier.end_rank) - max(first, tier.first_rank))
            moved[number] = -moved[0] * shared / (end - first)
    return moved


def _bytes_per_fill(tier: Held, row_bytes: int) -> float:
    return tier.fill_bytes / tier.num_rows if tier.num_rows else float(row_bytes)
