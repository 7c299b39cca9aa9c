"""Batches of samples of similar length, without a pass over the data: pools of a shuffle, each sorted by length.

::

    shuffle   | pool 0                | pool 1                | rest     the epoch's uniform shuffle, cut into pools
    sorted    | 4 5 5 | 7 8 9 | ...   | 4 4 6 | 7 7 8 | ...   |          each by (length, place in the shuffle)
    batches   | 7 8 9 | 4 5 5 | ...   | ... in keyed order    | rest     slices of `rows`, shuffled within the pool

A pool holds ``pool_batches`` batches; an epoch's last pool holds what would be a small pool of its own too, up to twice
as many. The rest that fills no batch stands at the end: the last positions of the shuffle, so that with
``drop_last=true`` each sample is as likely to be left out as any other, long or short.

A place is a function of ``(seed, epoch, position)``: a position tells its pool, and a pool is computed in one piece (50
batches of 32: 0.1 ms) and kept for the next positions of it. Batches are cut at multiples of ``rows``, a constant of
the order, so a run that is resumed with another global batch meets the same order, with batches that span two lengths.

Holds 1 to 8 bytes a sample, as many as the longest length needs.

The values are pinned by golden tests; another algorithm needs another :data:`ALGORITHM`, which is part of the tag.

Shape letters: ``N`` samples, ``K`` positions asked for, ``P`` picks of a pool.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.errors import ConfigError
from flodl_pipe.keyed.permute import ALGORITHM as SHUFFLE
from flodl_pipe.keyed.permute import MAX_ITEMS, permutation
from flodl_pipe.sampling.orders import EpochOrder
from flodl_pipe.sampling.recent import Recent, by_number

__all__ = ["ALGORITHM", "BucketedOrder", "rows_in"]

ALGORITHM = "l1"
"""Name of the values this module produces; part of every cursor."""

_DOMAIN = 0xB0C7
_ROWS = re.compile(rf"bucketed {ALGORITHM} .*\brows=([1-9][0-9]*) ")


def rows_in(tag: str) -> int | None:
    """Return the rows of a batch that the tag of a :class:`BucketedOrder` names; None for another order's tag.

    A run that is resumed needs them: the order was made for the batch of its first start.

    >>> rows_in(BucketedOrder(np.arange(100), 42, rows=8).tag), rows_in("uniform f6v1 picks=100 seed=42")
    (8, None)
    """
    found = _ROWS.match(tag)
    return int(found[1]) if found else None


@final
class BucketedOrder:
    """A shuffle whose batches hold samples of similar length, keyed by ``(seed, epoch)``.

    Args:
        lengths: Length of each sample, integers of at least 0, shape ``(N,)``.
        seed: Run seed, ``0 <= seed < 2**64``; held for the whole run.
        rows: Rows of a batch, over all ranks, at least 1.
        pool_batches: Batches of a pool, at least 1. More pad less and leave less to chance.
        num_repeats: How often each sample comes in an epoch.
        num_samples: Samples of the source; None: as many as there are lengths.

    Raises:
        ConfigError: if lengths are not as above.
        ValueError: if another argument is out of range.
    """

    def __init__(
        self,
        lengths: Array,
        seed: int,
        *,
        rows: int,
        pool_batches: int = 50,
        num_repeats: int = 1,
        num_samples: int | None = None,
    ) -> None:
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed must be in 0 .. 2**64 - 1, got {seed}")
        for name, value in (("rows", rows), ("batches of a pool", pool_batches), ("repeats", num_repeats)):
            if value < 1:
                raise ValueError(f"bucketing needs at least 1 of {name}, got {value}")
        self._lengths = _checked(lengths, num_samples)
        self.num_picks = len(self._lengths) * num_repeats
        if self.num_picks > MAX_ITEMS:
            raise ValueError(f"an order needs 1 to 2**62 picks, got {self.num_picks}")
        self.num_repeats: int | None = num_repeats
        self.seed = seed
        self.rows = rows
        self.pool_batches = pool_batches
        digest = hashlib.blake2b(self._lengths.astype("<u8").data, digest_size=8).hexdigest()
        augmented = f" augment={num_repeats}" if num_repeats > 1 else ""
        self.tag = (
            f"bucketed {ALGORITHM} {SHUFFLE} picks={self.num_picks}{augmented} rows={rows} pool={pool_batches} "
            f"lengths={digest} seed={seed}"
        )

    @property
    def held_bytes(self) -> int:
        """Bytes held for the whole run."""
        return self._lengths.nbytes

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch; see :class:`flodl_pipe.sampling.orders.Order`."""
        return _BucketedEpoch(self, self._lengths, epoch)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """One pool: what stands at its places, and the place of what the shuffle has at its positions.

    Attributes:
        picks: Pick at each place, int64, shape ``(P,)``.
        places: Place of each position of the shuffle, both counted from the pool's begin, int64, shape ``(P,)``.
    """

    picks: IndexArray
    places: IndexArray


@final
class _BucketedEpoch:
    def __init__(self, order: BucketedOrder, lengths: Array, epoch: int) -> None:
        self._shuffle = permutation(order.num_picks, order.seed, epoch)
        self._lengths = lengths
        self._num_repeats = order.num_repeats or 1
        self._rows = order.rows
        self._pool_picks = order.rows * order.pool_batches
        num_batches = order.num_picks // order.rows
        self._num_pools = max(1, num_batches // order.pool_batches)
        self._num_batched = num_batches * order.rows
        self._key = (_DOMAIN, order.seed, epoch)
        self._recent = Recent[_Pool]()

    def at(self, start: int, stop: int) -> IndexArray:
        num_picks = self._shuffle.n
        if not 0 <= start <= stop <= num_picks:
            raise ValueError(f"positions {start} .. {stop} do not lie within the epoch of {num_picks} picks")
        return self.pick(np.arange(start, stop, dtype=np.int64))

    def pick(self, positions: IndexArray) -> IndexArray:
        picks = np.empty(len(positions), dtype=np.int64)
        for number, here in by_number(self._pools_of(positions)):
            within = positions[here]
            if number < 0:
                picks[here] = self._shuffle.at(within)
            else:
                pool = self._recent.get(number, self._pool)
                picks[here] = pool.picks[within - number * self._pool_picks]
        return picks

    def where(self, picks: IndexArray) -> IndexArray:
        positions = self._shuffle.inverse(picks)
        for number, here in by_number(self._pools_of(positions)):
            if number >= 0:
                begin = number * self._pool_picks
                places = self._recent.get(number, self._pool).places
                positions[here] = places[positions[here] - begin] + begin
        return positions

    def _pools_of(self, positions: IndexArray) -> IndexArray:
        """Return the pool of each position, -1 for the rest that fills no batch; int64, shape ``(K,)``."""
        pools = np.minimum(positions // self._pool_picks, self._num_pools - 1)
        pools[positions >= self._num_batched] = -1
        return pools

    def _pool(self, number: int) -> _Pool:
        begin = number * self._pool_picks
        end = self._num_batched if number == self._num_pools - 1 else begin + self._pool_picks
        shuffled = self._shuffle.at(np.arange(begin, end, dtype=np.int64))
        samples = shuffled if self._num_repeats == 1 else shuffled // self._num_repeats
        # Stable: of equal lengths, what comes first in the shuffle comes first, which is as good as a keyed draw.
        by_length = np.argsort(self._lengths[samples], kind="stable")
        batches = permutation((end - begin) // self._rows, *self._key, number)
        taken = batches.at(np.arange(batches.n, dtype=np.int64))
        offsets = by_length.reshape(-1, self._rows)[taken].reshape(-1)
        places = np.empty_like(offsets)
        places[offsets] = np.arange(len(offsets))
        return _Pool(shuffled[offsets], places)


def _checked(lengths: Array, num_samples: int | None) -> Array:
    """Return lengths in the narrowest unsigned type that holds them, shape ``(N,)``.

    Raises:
        ConfigError: naming the first that cannot be one.
    """
    given = np.asarray(lengths)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise _error(
            f"must be a one-dimensional array of integers, got {given.dtype} of shape {given.shape}; give one length "
            "per sample"
        )
    wanted = len(given) if num_samples is None else num_samples
    if len(given) != wanted or not wanted:
        raise _error(
            f"{len(given):,} lengths were given for {wanted:,} samples, and each of at least one sample needs one; "
            "make them for this source"
        )
    if given.min() < 0:
        place = int(np.argmax(given < 0))
        raise _error(f"sample {place} has the length {given[place]}, and a length is at least 0; mend the lengths")
    return given.astype(np.min_scalar_type(int(given.max())))


def _error(message: str) -> ConfigError:
    return ConfigError.at("sampling.lengths", message)
