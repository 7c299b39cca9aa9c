"""A user's batch sampler: its lists are the global batches of an epoch's steps, one after the other.

A list is what all ranks train on in one step: it is taken first and shared out second, like any global batch, so the
same batch sampler gives the same steps on any number of ranks. The order is the lists in a row; the steps are cut where
one list ends and the next begins, so batches may differ in size.

Every rank has one step for every batch. In a batch smaller than the number of ranks, a rank whose share is empty takes
one row of weight zero, as in the short last step of :mod:`flodl_pipe.sampling.steps`.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.errors import ConfigError, ResumeError
from flodl_pipe.sampling.orders import EpochOrder
from flodl_pipe.sampling.sampler_epochs import SamplerEpochs
from flodl_pipe.sampling.sampler_order import ListedOrder
from flodl_pipe.sampling.shares import cut
from flodl_pipe.sampling.steps import DropLast, RankStep

__all__ = ["BatchSamplerOrder", "BatchSteps"]


@final
class BatchSamplerOrder:
    """The order that a batch sampler gives; an :class:`flodl_pipe.sampling.orders.Order` that knows its batches.

    Args:
        batch_sampler: A torch ``BatchSampler``, another object that can be iterated anew for every epoch and yields
            lists of indices, or a list of such lists. It is copied, and stays as it is.
        num_samples: Samples of the data set, at least 1.
        seed: Run seed, ``0 <= seed < 2**64``; held for the whole run.
        shared: Objects that are not copied where the batch sampler holds them, such as the data set.

    Attributes:
        num_batches: Batches of an epoch, the same in every epoch.
        largest_batch: Rows of an epoch's largest batch, the same in every epoch.

    Raises:
        ConfigError: at ``sampling.batch_sampler``, if it cannot be copied, a batch is empty or holds what are no
            samples of the data set, or it does not give the same batches twice.
        ValueError: if the seed is out of range.

    >>> order = BatchSamplerOrder([[3, 1], [0, 1, 2]], 4, seed=42)
    >>> order.epoch(0).at(0, 5).tolist(), order.sizes(0).tolist()
    ([3, 1, 0, 1, 2], [2, 3])
    """

    def __init__(self, batch_sampler: object, num_samples: int, seed: int, *, shared: Sequence[object] = ()) -> None:
        self._epochs = SamplerEpochs(batch_sampler, num_samples, seed, batched=True, shared=shared)
        self.num_picks = self._epochs.num_picks
        self.num_repeats: int | None = None
        self.num_batches = self._epochs.num_batches
        self.largest_batch = self._epochs.largest
        self.seed = seed
        self.tag = f"batch sampler {self._epochs.identity}"
        self.held_bytes = self._epochs.held_bytes

    @property
    def draws_globally(self) -> bool:
        """Whether it draws from the process's global random states, which are set and put back while it is read."""
        return self._epochs.draws_globally

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch, its batches in a row; see :class:`flodl_pipe.sampling.orders.Order`.

        Raises:
            LoaderError: if the batch sampler yields in this epoch what are no samples, or other numbers of indices or
                batches, or another largest batch, than in epoch 0.
            ValueError: if ``epoch`` is not in ``0 .. 2**64 - 1``.
        """
        return ListedOrder(self._epochs.read(epoch).indices)

    def sizes(self, epoch: int) -> IndexArray:
        """Return the rows of each batch of an epoch, int64, shape ``(num_batches,)``, read-only.

        Raises:
            LoaderError: as :meth:`epoch`.
            ValueError: as :meth:`epoch`.
        """
        return self._epochs.read(epoch).sizes


@final
class BatchSteps:
    """The steps of a batch sampler, for one rank; an :class:`flodl_pipe.sampling.steps.EpochSteps`.

    Args:
        order: The batch sampler's order.
        rank: This process, ``0 <= rank < world_size``.
        world_size: Number of ranks.
        ratios: How much each rank takes, exact; None: equal shares. Every rank has a row where there are enough.
        unit: Rows that are never cut apart: two where a transform looks at pairs.
        epoch: Which epoch's batches.

    Attributes:
        num_picks: Positions in an epoch.
        global_batch: Rows of the largest batch, over all ranks; the same in every epoch.
        drop_last: False: whatever the batch sampler yields is delivered.

    Raises:
        ConfigError: if the largest batch has fewer rows than the ranks need.
        LoaderError: if the batch sampler has other numbers in this epoch than in epoch 0.
        ValueError: if ``epoch`` is not in ``0 .. 2**64 - 1``, or there is not one positive ratio for each rank.
    """

    def __init__(
        self,
        order: BatchSamplerOrder,
        rank: int = 0,
        world_size: int = 1,
        *,
        ratios: Sequence[int | Fraction] | None = None,
        unit: int = 1,
        epoch: int = 0,
    ) -> None:
        if order.largest_batch < world_size * unit and world_size > 1:
            each = "" if unit == 1 else f", which need {unit} rows each, since a transform looks at so many together"
            raise ConfigError.at(
                "sampling.batch_sampler",
                f"its largest batch has {order.largest_batch} rows for {world_size} ranks{each}; a batch is what all "
                f"ranks share in one step, so make batches of at least {world_size * unit} rows",
            )
        self.num_picks = order.num_picks
        self.global_batch = order.largest_batch
        self.drop_last: DropLast = False
        self.rank = rank
        self.world_size = world_size
        self._order = order
        self._epoch = epoch
        self._ratios = (1,) * world_size if ratios is None else tuple(ratios)
        if len(self._ratios) != world_size:
            raise ValueError(f"one ratio is needed for each of {world_size} ranks, got {len(self._ratios)}")
        self._unit = unit
        sizes = order.sizes(epoch)
        self._bounds: IndexArray = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        self._shares = {size: self._cut(size) for size in np.unique(sizes).tolist()}

    def of_epoch(self, epoch: int) -> "BatchSteps":
        """Return the steps of an epoch, whose batches may have other sizes.

        Raises:
            LoaderError: if the batch sampler has other numbers in that epoch than in epoch 0.
        """
        return self if epoch == self._epoch else self._like(self.rank, epoch)

    def of_rank(self, rank: int) -> "BatchSteps":
        """Return the same steps as another rank has them."""
        return self._like(rank, self._epoch)

    def _like(self, rank: int, epoch: int) -> "BatchSteps":
        return BatchSteps(self._order, rank, self.world_size, ratios=self._ratios, unit=self._unit, epoch=epoch)

    def with_global_batch(self, global_batch: int) -> "BatchSteps":
        """Return these steps, whose global batch cannot be another.

        Raises:
            ConfigError: if ``global_batch`` is not theirs.
        """
        if global_batch == self.global_batch:
            return self
        raise ConfigError.at(
            "loader.global_batch_size",
            f"a global batch of {global_batch} rows was asked for, but the batch sampler decides how many rows a step "
            f"has ({self.global_batch} in its largest); change the batch sampler, and start anew if a run's is another",
        )

    @property
    def is_even(self) -> bool:
        """Whether all batches have the same number of rows, in every epoch."""
        # Their number, their sum and the largest are those of every epoch.
        return self._order.num_batches * self.global_batch == self.num_picks

    @property
    def batch_rows(self) -> int:
        """Rows of this rank in the largest batch."""
        return self._shares[self.global_batch][1]

    @property
    def max_rows(self) -> int:
        """Most rows this rank ever gets in a step, in any epoch; a bound where batches differ in size."""
        if self.is_even:
            return self._shares[self.global_batch][1]
        # A smaller batch may give a rank one row more than the largest does, but never more than its part, rounded up.
        part = self.global_batch // self._unit * Fraction(self._ratios[self.rank]) / sum(self._ratios, Fraction(0))
        rest = self._unit - 1 if self.rank == self.world_size - 1 else 0
        return math.ceil(part) * self._unit + rest

    def num_steps(self, position: int = 0) -> int:
        """Return how many steps are left in the epoch from ``position`` on.

        Raises:
            ResumeError: if no batch begins there.
        """
        return len(self._bounds) - 1 - self._batch_at(position)

    def step(self, index: int, position: int = 0) -> RankStep:
        """Return this rank's part of the ``index``-th step counted from ``position``.

        Raises:
            ResumeError: if no batch begins at ``position``.
            IndexError: if the epoch has no such step.
        """
        number = self._batch_at(position) + index
        if not 0 <= number < len(self._bounds) - 1:
            raise IndexError(f"step {index} from position {position} lies beyond the {len(self._bounds) - 1} batches")
        begin, end = int(self._bounds[number]), int(self._bounds[number + 1])
        first, num_rows = self._shares[end - begin]
        if not num_rows:
            return RankStep(begin, begin + 1, 0, 0.0, end)
        start = begin + first
        return RankStep(start, start + num_rows, num_rows, num_rows * self.world_size / (end - begin), end)

    def _batch_at(self, position: int) -> int:
        number = int(np.searchsorted(self._bounds, position))
        if number < len(self._bounds) and self._bounds[number] == position:
            return number
        if not 0 <= position <= self.num_picks:
            raise ResumeError(
                f"position {position} lies outside the epoch of {self.num_picks} samples; the state was edited or "
                "belongs to another batch sampler, resume from another one"
            )
        begin = self._bounds[number - 1]
        raise ResumeError(
            f"no batch of epoch {self._epoch} begins at position {position}: one goes from {begin} to "
            f"{self._bounds[number] - 1}; resume with the batch sampler that the state was saved with, or at "
            f"position {begin}"
        )

    def _cut(self, num_rows: int) -> tuple[int, int]:
        """Return (first row, number of rows) of this rank in a step of ``num_rows``."""
        shares = cut(num_rows, self._ratios, minimum=1, unit=self._unit)
        return sum(shares[: self.rank]), shares[self.rank]
