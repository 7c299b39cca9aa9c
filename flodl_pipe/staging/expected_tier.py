"""One tier's expected hits, by arithmetic.

A tier holds a range of ranks, admits until full and never evicts, so a sample of its range is missed exactly until it
was taken in, and hits ever after. All that has to be known is the chance that it was not yet, when a row asks for it::

    expected misses = sum over batches of   rows x share of the range x P(absent at that batch)

    permutation, k repeats   P = u^e x C(M - 1 - s, k - 1) / C(M - 1, k - 1)
    draws with replacement   P = (1 - w)^(D e + s)
    filled ahead             P = 1 - progress of the fill;  times the above where offers are taken in too

with epoch ``e``, ``s`` picks of this epoch seen before the batch, ``M = N k`` picks of an epoch, ``u`` the chance that
an epoch leaves a sample out (its last picks dropped, or another rank's), ``w`` a sample's chance at each of ``D``
draws. For a permutation without dropped picks that is: first picks miss in epoch 0, later every epoch hits exactly K/N.

Shape letters: ``N`` samples, ``T`` batches looked at, ``W`` groups of samples that are drawn equally often.
"""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import numpy.typing as npt

__all__ = ["ExpectedTier", "TierPlan", "Workload"]

Floats = npt.NDArray[np.float64]

# Of an epoch with more batches every n-th stands for its neighbours; weights are sorted into that many groups.
_MAX_BATCHES = 8192
_MAX_GROUPS = 256


@final
@dataclass(frozen=True)
class TierPlan:
    """What a tier will hold.

    Attributes:
        first_rank: First rank of its range.
        num_rows: Rows of its range.
        fill: ``offers``: by what was missed. ``ahead``: by reading the range, in the background; nothing else is taken
            in. ``both``.
        fill_epochs: How long reading ahead takes, in epochs of the loop's time; 0 is before the first batch.
        lag_batches: Batches that are read between a batch being read and its rows being found: what is read ahead, and
            gathered together. With 0, the next batch finds them.
    """

    first_rank: int = 0
    num_rows: int = 0
    fill: Literal["offers", "ahead", "both"] = "offers"
    fill_epochs: float = 0.0
    lag_batches: int = 0


@final
@dataclass(frozen=True)
class Workload:
    """What is asked of the tiers in an epoch.

    Attributes:
        num_samples: ``N``.
        row_bytes: Bytes of a stored row.
        order: ``permutation``: each sample ``repeats`` times an epoch, shuffled; for one repeat any order without
            replacement. ``drawn``: with replacement, uniformly or by ``probabilities``.
        epoch_rows: Rows of an epoch, without dropped ones: of a permutation at most ``N x repeats``, and less where
            this rank has a share only.
        batch_rows: Rows of a batch; the last one may be shorter.
        repeats: Picks of each sample in an epoch of a permutation.
        probabilities: How often each sample is drawn, in any unit, *by rank*, shape ``(N,)``; None is uniform.
    """

    num_samples: int
    row_bytes: int
    order: Literal["permutation", "drawn"]
    epoch_rows: int
    batch_rows: int
    repeats: int = 1
    probabilities: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        if min(self.num_samples, self.epoch_rows, self.batch_rows, self.repeats) < 1:
            raise ValueError(f"samples, rows and repeats must be at least 1, got {self}")
        if self.order == "permutation" and self.epoch_rows > self.num_samples * self.repeats:
            raise ValueError(f"a permutation of {self.num_samples * self.repeats} picks has no {self.epoch_rows} rows")


@final
class ExpectedTier:
    """One tier under a workload, empty at the start."""

    def __init__(self, work: Workload, plan: TierPlan) -> None:
        """Take what is asked for and what the tier holds.

        Raises:
            ValueError: if probabilities do not fit the samples.
        """
        self._work, self._plan = work, plan
        self._sizes, self._chances = _groups(work, plan)
        num_batches = -(-work.epoch_rows // work.batch_rows)
        # The batches looked at, how many rows each stands for, and the picks seen before it.
        looked_at = min(num_batches, _MAX_BATCHES)
        batches = ((np.arange(looked_at) + 0.5) * num_batches / looked_at).astype(np.int64)
        self._rows = np.full(looked_at, work.batch_rows, dtype=np.float64)
        self._rows[-1] -= (num_batches * work.batch_rows - work.epoch_rows) if looked_at == num_batches else 0
        self._rows *= work.epoch_rows / self._rows.sum()
        self._seen = np.maximum(0, batches - plan.lag_batches) * float(work.batch_rows)
        self._times = (batches + 0.5) / num_batches

    def epoch(self, epoch: int) -> tuple[float, float, float]:
        """Return (rows found, rows taken in, rows read to fill) of an epoch; expectations."""
        if not self._plan.num_rows:
            return 0.0, 0.0, 0.0
        asked = np.outer(self._rows, self._sizes * self._chances)
        filled = self._filled(epoch)
        hits = float((asked * (1 - (1 - filled)[:, None] * self._untaken(epoch, picked=True))).sum())
        progress = [self._progress(float(edge)) for edge in (epoch, epoch + 1)]
        absent = [
            (1 - done) * float((self._sizes * self._left_out(edge)).sum())
            for done, edge in zip(progress, (epoch, epoch + 1), strict=True)
        ]
        return hits, absent[0] - absent[1], self._fill_rows(epoch, progress[1] - progress[0])

    def _progress(self, time: float) -> float:
        """Return the part of the range that was read ahead by a time, in epochs."""
        if self._plan.fill == "offers":
            return 0.0
        if self._plan.fill_epochs <= 0:
            return 1.0 if time > 0 else 0.0
        return min(1.0, time / self._plan.fill_epochs)

    def _filled(self, epoch: int) -> Floats:
        """Return :meth:`_progress` at each batch, shape ``(T,)``."""
        return np.array([self._progress(epoch + time) for time in self._times.tolist()])

    def _fill_rows(self, epoch: int, part: float) -> float:
        """Return the rows that are read ahead in an epoch, ``part`` of the range passing by."""
        if self._plan.fill == "offers":
            return 0.0
        if self._plan.fill_epochs <= 0:  # all at once, before anything was offered
            return float(self._plan.num_rows) if epoch == 0 else 0.0
        if part <= 0:
            return 0.0
        at_work = epoch + self._times <= self._plan.fill_epochs
        at_work[0] = True
        untaken = self._untaken(epoch, picked=False)[at_work].mean(axis=0)
        return part * float((self._sizes * untaken).sum())

    def _left_out(self, num_epochs: int) -> Floats:
        """Return the chance that so many epochs offered a sample not once, shape ``(W,)``."""
        work = self._work
        if self._plan.fill == "ahead":
            return np.ones(len(self._sizes))
        if work.order == "drawn":
            left_out: Floats = np.exp(num_epochs * float(work.epoch_rows) * np.log1p(-self._chances))
            return left_out
        picks = work.num_samples * work.repeats
        once = _none_of(np.array([float(work.epoch_rows)]), picks, work.repeats)
        return np.ones(len(self._sizes)) * once**num_epochs

    def _untaken(self, epoch: int, *, picked: bool) -> Floats:
        """Return the chance that a sample was not offered before each batch, shape ``(T, W)`` or ``(T, 1)``.

        Args:
            epoch: Which.
            picked: Whether it is known that the batch has one of its picks.
        """
        work = self._work
        if self._plan.fill == "ahead":
            return np.ones((len(self._seen), 1))
        before = self._left_out(epoch)
        if work.order == "drawn":
            untaken: Floats = before * np.exp(np.outer(self._seen, np.log1p(-self._chances)))
            return untaken
        picks, others = work.num_samples * work.repeats, work.repeats
        if picked:
            picks, others = picks - 1, others - 1
        return before * _none_of(self._seen, picks, others)[:, None]


def _none_of(seen: Floats, picks: int, chosen: int) -> Floats:
    """Return the chance that none of ``chosen`` places, out of ``picks``, is among the first ``seen``; same shape."""
    chance = np.ones_like(seen)
    for place in range(chosen):
        chance *= np.clip((picks - seen - place) / (picks - place), 0.0, 1.0)
    return chance


def _groups(work: Workload, plan: TierPlan) -> tuple[Floats, Floats]:
    """Return how many samples of a range are drawn equally often, and how often (per row), both of shape ``(W,)``."""
    num_rows, num_samples = plan.num_rows, work.num_samples
    if work.order == "permutation" or work.probabilities is None:
        # One sample alone has every draw; its logarithm must stay a number.
        return np.array([float(num_rows)]), np.array([min(1 / num_samples, 1 - 1e-12)])
    weights = np.asarray(work.probabilities, dtype=np.float64)
    if weights.shape != (num_samples,) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
        raise ValueError(f"probabilities must be {num_samples} finite numbers of at least 0, one above it")
    chances = np.sort(weights[plan.first_rank : plan.first_rank + num_rows] / weights.sum())
    chances = chances[chances > 0]
    if not len(chances):
        return np.zeros(1), np.zeros(1)
    logs = np.log(chances)
    span = max(float(logs[-1] - logs[0]), 1e-12)
    numbers = np.minimum(_MAX_GROUPS - 1, (logs - logs[0]) / span * _MAX_GROUPS).astype(np.int64)
    sizes = np.bincount(numbers, minlength=_MAX_GROUPS).astype(np.float64)
    sums = np.bincount(numbers, weights=chances, minlength=_MAX_GROUPS)
    there = sizes > 0
    return sizes[there], np.minimum(sums[there] / sizes[there], 1 - 1e-12)
