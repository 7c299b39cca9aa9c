"""Ranks that the same tiers hold: what each of the tiers finds, takes in and reads ahead there.

All tiers of a pipeline are offered the same rows, hence one adds to those before it only what a fill has brought that
was not asked for yet::

    found by the first j tiers = asked x (1 - P(never offered) x P(no fill of them was there))
    found by tier j            = that - the same for j - 1
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import numpy.typing as npt

from flodl_pipe.staging.expected_tier import ExpectedTier, TierPlan, Workload

__all__ = ["Floats", "Held", "Span"]

Floats = npt.NDArray[np.float64]


@final
@dataclass(frozen=True)
class Held:
    """A tier, as far as its hits depend on it.

    Attributes:
        first_rank: First rank of its range.
        num_rows: Ranks of its range; 0 where it is off.
        offers: Whether it takes in what was read.
        ahead: Whether it is filled ahead, front to back.
        fill_epochs: How long that takes, in epochs of the loop.
        fill_bytes: What filling reads where nothing was offered.
        in_one: Whether nothing is found before it is whole.
        lag_batches: Batches between a row's being read and its being found; see
            :class:`~flodl_pipe.staging.expected_tier.TierPlan`.
        early_rows: Rows that are read while it may hold ``early_end`` ranks only.
        early_end: The rank after the last one that it may hold at first.
    """

    first_rank: int = 0
    num_rows: int = 0
    offers: bool = False
    ahead: bool = False
    fill_epochs: float = 0.0
    fill_bytes: int = 0
    in_one: bool = False
    lag_batches: int = 0
    early_rows: int = 0
    early_end: int = 0

    @property
    def end_rank(self) -> int:
        """The rank after its last one."""
        return self.first_rank + self.num_rows


@final
class Span:
    """Ranks ``first .. end - 1``, which the same tiers hold and one rule draws."""

    def __init__(self, work: Workload, first: int, end: int, tiers: Sequence[Held | None]) -> None:
        self._work, self._first, self._end = work, first, end
        self._tiers = tiers
        self._asked = ExpectedTier(work, TierPlan(first, end - first, "ahead"))
        self._unions: list[list[tuple[int, ExpectedTier]]] = []
        before: list[Held] = []
        for tier in tiers:
            if tier is not None:
                before.append(tier)
            self._unions.append(self._union(before) if before else [])
        self._alone = [None if tier is None else self._union([tier]) for tier in tiers]

    def _union(self, tiers: Sequence[Held]) -> list[tuple[int, ExpectedTier]]:
        """Return ranges, each with a sign, whose hits are those that some of the tiers find; without tiers in one."""
        lags = [tier.lag_batches for tier in tiers if tier.offers]
        fills = [tier for tier in tiers if tier.ahead and not tier.in_one]
        lag = min(lags, default=0)
        if not fills:
            return [(1, ExpectedTier(self._work, TierPlan(self._first, self._end - self._first, lag_batches=lag)))] * (
                1 if lags else 0
            )
        fill = fills[0]
        kind: Literal["ahead", "both"] = "both" if lags else "ahead"
        # A range that is read front to back: what lies before this span is filled before it.
        signed = []
        for sign, end in ((1, self._end), (-1, self._first)):
            if end > fill.first_rank:
                part = (end - fill.first_rank) / fill.num_rows
                plan = TierPlan(fill.first_rank, end - fill.first_rank, kind, fill.fill_epochs * part, lag)
                signed.append((sign, ExpectedTier(self._work, plan)))
        return signed

    def epoch(self, epoch: int) -> tuple[Floats, Floats, Floats]:
        """Return for each tier rows found, rows taken in by offers, and rows filled ahead."""
        asked = self._asked.epoch(epoch)[0]
        found, taken, filled = np.zeros(3), np.zeros(3), np.zeros(3)
        before, there = 0.0, 0.0
        for number, tier in enumerate(self._tiers):
            if tier is None:
                continue
            there = max(there, _there(tier, epoch))
            hits = sum(sign * one.epoch(epoch)[0] for sign, one in self._unions[number])
            hits += there * (asked - hits)
            found[number], before = max(0.0, hits - before), max(before, hits)
            alone = [(sign, one.epoch(epoch)) for sign, one in self._alone[number] or ()]
            taken[number] = sum(sign * one[1] for sign, one in alone)
            if tier.in_one and tier.offers:  # what was left out by then
                filled[number] = self._left(number, tier.fill_epochs) * float(epoch <= tier.fill_epochs < epoch + 1)
            elif tier.in_one:
                filled[number] = (self._end - self._first) * (_there_at(tier, epoch + 1) - _there_at(tier, epoch))
            elif tier.ahead:
                filled[number] = sum(sign * one[2] for sign, one in alone) / max(1, self._work.row_bytes)
        return found, taken, filled

    def _left(self, number: int, time: float) -> float:
        """Return how many ranks were not offered by a time, in epochs."""
        part, whole = math.modf(time)
        taken = [
            sum(sign * one.epoch(epoch)[1] for sign, one in self._alone[number] or ())
            for epoch in range(int(whole) + 1)
        ]
        return max(0.0, self._end - self._first - sum(taken[:-1]) - part * taken[-1])


def _there(tier: Held, epoch: int) -> float:
    """Return for which part of an epoch a tier that is there in one piece is there."""
    return min(1.0, max(0.0, epoch + 1 - tier.fill_epochs)) if tier.in_one else 0.0


def _there_at(tier: Held, time: float) -> float:
    """Return how much of a tier was read by a time, in epochs."""
    return min(1.0, time / tier.fill_epochs) if tier.fill_epochs > 0 else float(time > 0)
