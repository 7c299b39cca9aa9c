"""One tier's expected hits, by arithmetic.

A tier holds a range of ranks, admits until full and never evicts, so a sample of its range is missed exactly until it
was taken in, and hits ever after. All that has to be known is the chance that it was not yet, when a row asks for it::

    expected misses = sum over batches of   rows x share of the range x P(absent at that batch)

    permutation, k repeats   P = u^e x C(M - 1 - s, k - 1) / C(M - 1, k - 1)
    draws with replacement   P = (1 - w)^(D e + s)
    passes                   P = 1 until a sample's first pass is over, after 1 / w rows; then 0
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
_MAX_BATCHES = 2048
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
        fill_bytes: What reading the whole range ahead takes, where rows share bytes (overlapping windows); None is its
            rows' bytes.
    """

    first_rank: int = 0
    num_rows: int = 0
    fill: Literal["offers", "ahead", "both"] = "offers"
    fill_epochs: float = 0.0
    lag_batches: int = 0
    fill_bytes: int | None = None


@final
@dataclass(frozen=True)
class Workload:
    """What is asked of the tiers in an epoch.

    Attributes:
        num_samples: ``N``.
        row_bytes: Bytes of a stored row.
        order: ``permutation``: each sample ``repeats`` times an epoch, shuffled; for one repeat any order without
            replacement. ``drawn``: with replacement, uniformly or by ``probabilities``. ``passes``: parts that are
            mixed by rates, each gone through without replacement again and again; a sample's rate in
            ``probabilities``.
        epoch_rows: Rows of an epoch, without dropped ones: of a permutation at most ``N x repeats``, and less where
            this rank has a share only.
        batch_rows: Rows of a batch; the last one may be shorter.
        repeats: Picks of each sample in an epoch of a permutation.
        probabilities: How often each sample is drawn, in any unit, *by rank*, so heaviest first, shape ``(N,)``; None
            is uniform.
    """

    num_samples: int
    row_bytes: int
    order: Literal["permutation", "drawn", "passes"]
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
        fill_bytes = plan.num_rows * work.row_bytes if plan.fill_bytes is None else plan.fill_bytes
        self._fill_row_bytes = fill_bytes / max(1, plan.num_rows)
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
        """Return (rows found, rows taken in, bytes read to fill) of an epoch; expectations."""
        if not self._plan.num_rows:
            return 0.0, 0.0, 0.0
        asked = np.outer(self._rows, self._sizes * self._chances)
        filled = self._progress(epoch + self._times)
        hits = float((asked * (1 - (1 - filled) * self._untaken(epoch, picked=True))).sum())
        done = self._progress(np.array([epoch, epoch + 1.0]))
        absent = [float((self._sizes * (1 - done[end]) * self._left_out(epoch + end)).sum()) for end in (0, 1)]
        return hits, absent[0] - absent[1], self._fill_rows(epoch) * self._fill_row_bytes

    def _progress(self, times: Floats) -> Floats:
        """Return the part of each group that was read ahead by each time (in epochs), shape ``(T, W)``.

        The range is read front to back, and groups lie in it in their order.
        """
        if self._plan.fill == "offers":
            return np.zeros((len(times), len(self._sizes)))
        whole = np.minimum(1.0, times / self._plan.fill_epochs) if self._plan.fill_epochs > 0 else 1.0 * (times > 0)
        begins = np.cumsum(self._sizes) - self._sizes
        return np.clip((whole[:, None] * self._plan.num_rows - begins) / self._sizes, 0.0, 1.0)

    def _fill_rows(self, epoch: int) -> float:
        """Return the rows that are read ahead in an epoch: those that the fill passes by and that are not there."""
        steps = np.diff(self._progress(epoch + np.linspace(0, 1, len(self._times) + 1)), axis=0)
        return float((steps * self._untaken(epoch, picked=False) * self._sizes).sum())

    def _left_out(self, num_epochs: int) -> Floats:
        """Return the chance that so many epochs offered a sample not once, shape ``(W,)``."""
        work = self._work
        if self._plan.fill == "ahead":
            return np.ones(len(self._sizes))
        seen = num_epochs * float(work.epoch_rows)
        if work.order == "drawn":
            left_out: Floats = np.exp(seen * np.log1p(-self._chances))
            return left_out
        if work.order == "passes":
            return np.maximum(0.0, 1 - seen * self._chances)
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
        if work.order == "passes":
            seen = epoch * float(work.epoch_rows) + self._seen[:, None]
            if picked:  # the part of the batch's rows that belong to the first pass
                return np.clip((1 / np.maximum(self._chances, 1e-300) - seen) / work.batch_rows, 0.0, 1.0)
            return np.maximum(0.0, 1 - seen * self._chances)
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
    chances = weights[plan.first_rank : plan.first_rank + num_rows] / weights.sum()
    drawn = chances[chances > 0]
    if not len(drawn):
        return np.array([float(num_rows)]), np.zeros(1)
    logs = np.log(drawn)
    low, high = float(logs.min()), float(logs.max())
    # Heaviest first, as they are ranked.
    numbers = np.minimum(_MAX_GROUPS - 1, (high - logs) / max(high - low, 1e-12) * _MAX_GROUPS).astype(np.int64)
    sizes = np.bincount(numbers, minlength=_MAX_GROUPS + 1).astype(np.float64)
    sums = np.bincount(numbers, weights=drawn, minlength=_MAX_GROUPS + 1)
    sizes[-1] = num_rows - len(drawn)  # those that are never drawn are read ahead all the same
    there = sizes > 0
    return sizes[there], np.minimum(sums[there] / sizes[there], 1 - 1e-12)
