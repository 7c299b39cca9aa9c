"""A shuffle that stays near: for disks that seek slowly and for shards behind a network.

::

    storage   | run 0 | run 1 | run 2 | run 3 | run 4 |       runs: shards, or even stretches
    sequence  | run 3 | run 0 | run 4 | run 1 | run 2 |       in an order of each epoch's own
    blocks    |     block 0     |     block 1   |  ...        cut into blocks of so many positions
    order     |    permuted     |   permuted    |  ...        each by a key of its own

While a block is being served, only its runs are read. A sample does not leave its block, so how well this mixes depends
on how many runs a block has; ``docs/orders.md`` has figures.

Everything is a function of ``(seed, epoch, position)``. Up to 65,536 positions a block is an exact shuffle, computed at
once in some 2 ms and kept for the next positions of it; larger ones are computed index by index.

The values are pinned by golden tests; another algorithm needs another :data:`ALGORITHM`, which is part of the tag.

Shape letters: ``K`` positions asked for, ``R`` runs.
"""

import hashlib
from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.keyed.permute import ALGORITHM as SHUFFLE
from flodl_pipe.keyed.permute import MAX_ITEMS, Permutation, permutation
from flodl_pipe.sampling.orders import EpochOrder
from flodl_pipe.sampling.recent import Recent, by_number
from flodl_pipe.sampling.runs import EvenRuns, Runs, UnevenRuns

__all__ = ["ALGORITHM", "RUNS_OF_A_BLOCK", "BlockedOrder"]

ALGORITHM = "b1"
"""Name of the values this module produces; part of every cursor."""

RUNS_OF_A_BLOCK = 128
"""Even runs that a block is made of: enough that a batch of a few hundred comes from all over the data, few enough that
a run is a read worth its latency (512 samples of a block of 65,536: 1 MiB of token windows of 2 KiB)."""

_RUNS_DOMAIN, _BLOCK_DOMAIN = 0xB70C, 0xB10C


@final
class BlockedOrder:
    """Runs in shuffled order, shuffled again within blocks, keyed by ``(seed, epoch)``.

    Args:
        num_samples: Samples of the source, at least 1.
        seed: Run seed, ``0 <= seed < 2**64``; held for the whole run.
        block_samples: Positions of a block, at least 1.
        run_starts: First sample of each run (of each shard), int64, not descending, the first 0, shape ``(R,)``; runs
            may be empty. None: even runs, :data:`RUNS_OF_A_BLOCK` to a block, in memory independent of the number of
            samples.
        num_repeats: How often each sample comes in an epoch. Its repeats stand in one run.

    Raises:
        ValueError: if an argument is out of range.

    >>> order = BlockedOrder(12, 42, block_samples=6, run_starts=np.array([0, 3, 6, 9]))
    >>> order.epoch(0).at(0, 12).tolist()
    [6, 1, 7, 0, 8, 2, 11, 10, 4, 3, 5, 9]
    """

    def __init__(
        self,
        num_samples: int,
        seed: int,
        *,
        block_samples: int = 65_536,
        run_starts: IndexArray | None = None,
        num_repeats: int = 1,
    ) -> None:
        if num_samples < 1 or num_repeats < 1 or num_samples * num_repeats > MAX_ITEMS:
            raise ValueError(f"an order needs 1 to 2**62 picks, got {num_samples} samples x {num_repeats} repeats")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed must be in 0 .. 2**64 - 1, got {seed}")
        if not 1 <= block_samples <= MAX_ITEMS:
            raise ValueError(f"a block needs 1 to 2**62 positions, got {block_samples}")
        self.num_picks = num_samples * num_repeats
        self.num_repeats: int | None = num_repeats
        self.seed = seed
        self.block_samples = block_samples
        run_samples = max(1, block_samples // (RUNS_OF_A_BLOCK * num_repeats))
        self._run_picks = min(run_samples, num_samples) * num_repeats
        self._starts = None if run_starts is None else _starts(run_starts, num_samples) * num_repeats
        if self._starts is None:
            runs = f"even {run_samples}"
        else:
            digest = hashlib.blake2b(self._starts.astype("<i8", copy=False).data, digest_size=8).hexdigest()
            runs = f"{len(self._starts)}:{digest}"
        augmented = f" augment={num_repeats}" if num_repeats > 1 else ""
        self.tag = (
            f"blocked {ALGORITHM} {SHUFFLE} picks={self.num_picks}{augmented} block={block_samples} runs={runs} "
            f"seed={seed}"
        )

    @property
    def held_bytes(self) -> int:
        """Bytes held for the whole run: 8 for each run that was given. An epoch takes 24 more of each."""
        return 0 if self._starts is None else self._starts.nbytes

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch; see :class:`flodl_pipe.sampling.orders.Order`."""
        if self._starts is None:
            num_runs = -(-self.num_picks // self._run_picks)
            shuffle = permutation(num_runs, _RUNS_DOMAIN, self.seed, epoch)
            runs: Runs = EvenRuns(self.num_picks, self._run_picks, shuffle)
        else:
            shuffle = permutation(len(self._starts), _RUNS_DOMAIN, self.seed, epoch)
            runs = UnevenRuns(self._starts, self.num_picks, shuffle)
        return _BlockedEpoch(runs, self.num_picks, self.block_samples, (_BLOCK_DOMAIN, self.seed, epoch))


@final
class _BlockedEpoch:
    def __init__(self, runs: Runs, num_picks: int, block_picks: int, key: tuple[int, int, int]) -> None:
        self._runs = runs
        self._num_picks = num_picks
        self._block_picks = block_picks
        self._key = key
        self._recent = Recent[Permutation]()

    def at(self, start: int, stop: int) -> IndexArray:
        if not 0 <= start <= stop <= self._num_picks:
            raise ValueError(f"positions {start} .. {stop} do not lie within the epoch of {self._num_picks} picks")
        return self.pick(np.arange(start, stop, dtype=np.int64))

    def pick(self, positions: IndexArray) -> IndexArray:
        return self._runs.at(self._within_blocks(positions, inverse=False))

    def where(self, picks: IndexArray) -> IndexArray:
        return self._within_blocks(self._runs.inverse(picks), inverse=True)

    def _within_blocks(self, places: IndexArray, *, inverse: bool) -> IndexArray:
        """Permute each block, or undo it, int64, shape ``(K,)``."""
        blocks, offsets = np.divmod(places, self._block_picks)
        for block, here in by_number(blocks):
            shuffle = self._recent.get(block, self._shuffle)
            given = offsets[here]
            offsets[here] = shuffle.inverse(given) if inverse else shuffle.at(given)
        blocks *= self._block_picks
        blocks += offsets
        return blocks

    def _shuffle(self, block: int) -> Permutation:
        size = min(self._block_picks, self._num_picks - block * self._block_picks)
        return permutation(size, *self._key, block)


def _starts(run_starts: IndexArray, num_samples: int) -> IndexArray:
    """Return the starts of runs that hold a sample, int64, ascending from 0."""
    starts = np.asarray(run_starts)
    if starts.ndim != 1 or starts.dtype.kind not in "iu" or not len(starts):
        raise ValueError(f"run_starts must be integers of shape (R,), got {starts.dtype} of shape {starts.shape}")
    starts = starts.astype(np.int64)
    if starts[0] or (np.diff(starts) < 0).any() or starts[-1] > num_samples:
        raise ValueError(
            f"run_starts must ascend from 0 to at most the {num_samples} samples, got {starts[0]} .. {starts[-1]}"
            + (", descending somewhere" if (np.diff(starts) < 0).any() else "")
        )
    return np.unique(starts[starts < num_samples])
