"""Weighted draws with replacement: each sample as likely as its weight says, each position for itself.

Weights become whole numbers, and those become running totals. The draw at a position is a keyed 64-bit hash of it,
scaled to ``[0, total)``; the sample is the one whose stretch of the running totals it falls into::

    weights   0.5   0     1     0.5          draw in [0, 8)   0 1 | 2 3 4 5 | 6 7
    totals    2     2     6     8            sample           0   | 2       | 3

A weight is multiplied by a power of two and rounded to the nearest whole number, at least 1 unless it is 0. The power
is the largest that certainly keeps the total of at most 2**62. Multiplying by powers of two, rounding and adding whole
numbers is exact on every machine, whatever it adds up first, and so is the search: equal weights give equal draws
everywhere. Rounding moves a weight by at most 1 in ``2**60`` of the total; a weight of 0 is never drawn.

Costs 8 bytes a sample. A draw is a search in them: some 25 ns with 1,000 samples, 90 with 10**6, 440 with 10**7, where
the running totals no longer fit the cache (2-core AMD EPYC, 2026-11-29, ``tests/benchmarks/order.py``).

Shape letters: ``N`` samples, ``K`` positions asked for.
"""

import hashlib
from typing import NoReturn, final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.errors import ConfigError, LoaderError
from flodl_pipe.keyed.absorb import absorb
from flodl_pipe.keyed.permute import MAX_ITEMS
from flodl_pipe.sampling.drawn import ALGORITHM as DRAWS
from flodl_pipe.sampling.drawn import draw
from flodl_pipe.sampling.orders import EpochOrder

__all__ = ["ALGORITHM", "WeightedOrder"]

ALGORITHM = "w1"
"""Name of the values this module produces; part of every cursor."""

_DOMAIN = 0x3E16
# Running totals stay at most 2**62: about 2**61 or less before rounding, which adds at most 1 a sample.
_TOTAL_BITS = 61
_MANTISSA_BITS = 53
_HALF, _LOW = np.int64(32), np.int64(0xFFFFFFFF)


@final
class WeightedOrder:
    """Draws with replacement in proportion to weights, keyed by ``(seed, epoch, position)``.

    Args:
        weights: Weight of each sample, integers or floats of at least 0, not all 0, shape ``(N,)``. They need not add
            up to anything; 0 means that a sample is never drawn.
        num_picks: Draws of an epoch, ``1 <= num_picks <= 2**62``.
        seed: Run seed, ``0 <= seed < 2**64``; held for the whole run.
        num_samples: Samples of the source, ``N``.

    Raises:
        ConfigError: if weights are not as above.
        ValueError: if another argument is out of range.

    >>> order = WeightedOrder(np.array([0.0, 1.0, 3.0]), 8, seed=42, num_samples=3)
    >>> order.epoch(0).at(0, 8).tolist()
    [1, 2, 2, 2, 2, 2, 1, 1]
    """

    def __init__(self, weights: Array, num_picks: int, seed: int, *, num_samples: int) -> None:
        if not 1 <= num_picks <= MAX_ITEMS:
            raise ValueError(f"an order of draws needs 1 to 2**62 picks, got {num_picks}")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed must be in 0 .. 2**64 - 1, got {seed}")
        self._totals = _running_totals(_checked(weights, num_samples))
        self.num_samples = num_samples
        self.num_picks = num_picks
        self.num_repeats: int | None = None
        self.seed = seed
        digest = hashlib.blake2b(self._totals.astype("<i8", copy=False).data, digest_size=8).hexdigest()
        self.tag = f"weighted {ALGORITHM} {DRAWS} samples={num_samples} picks={num_picks} weights={digest} seed={seed}"

    @property
    def weights(self) -> IndexArray:
        """Weight of each sample in whole numbers, int64, shape ``(N,)``."""
        return np.diff(self._totals, prepend=np.int64(0))

    @property
    def held_bytes(self) -> int:
        """Bytes held for the whole run."""
        return self._totals.nbytes

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the draws of an epoch; see :class:`flodl_pipe.sampling.orders.Order`."""
        if not 0 <= epoch < 1 << 64:
            raise ValueError(f"epoch must be in 0 .. 2**64 - 1, got {epoch}")
        return _WeightedDraws(self._totals, self.num_picks, absorb(_DOMAIN, self.seed, epoch))


@final
class _WeightedDraws:
    def __init__(self, totals: IndexArray, num_picks: int, key: int) -> None:
        self._totals = totals
        self._num_picks = num_picks
        self._key = key

    def at(self, start: int, stop: int) -> IndexArray:
        if not 0 <= start <= stop <= self._num_picks:
            raise ValueError(f"positions {start} .. {stop} do not lie within the epoch of {self._num_picks} picks")
        return self.pick(np.arange(start, stop, dtype=np.int64))

    def pick(self, positions: IndexArray) -> IndexArray:
        found = draw(int(self._totals[-1]), self._key, positions)
        # Ascending draws find what the last one has brought into the cache: less than half the time, sorting included.
        ascending = np.argsort(found)
        samples = np.empty_like(found)
        samples[ascending] = np.searchsorted(self._totals, found[ascending], side="right")
        return samples

    def where(self, picks: IndexArray) -> NoReturn:
        raise LoaderError(
            f"{len(picks)} picks were to be found in an order of weighted draws, where a sample stands at several "
            "positions of an epoch or at none; ask for the samples at positions instead"
        )


def _checked(weights: Array, num_samples: int) -> Array:
    """Return weights as float64, shape ``(N,)``.

    Raises:
        ConfigError: naming the first weight that cannot be one.
    """
    given = np.asarray(weights)
    if given.ndim != 1 or given.dtype.kind not in "iuf":
        raise _error(
            f"must be a one-dimensional array of numbers, got {given.dtype} of shape {given.shape}; give one integer "
            "or float per sample"
        )
    if len(given) != num_samples:
        raise _error(
            f"{len(given):,} weights were given for {num_samples:,} samples, and each needs one; make them for this "
            "source, with 0 for samples that are not to be drawn"
        )
    values = given.astype(np.float64)
    wrong = ~np.isfinite(values) | (values < 0)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise _error(
            f"sample {place} has the weight {given[place]}, and a weight is a finite number of at least 0; use 0 for a "
            f"sample that is not to be drawn ({int(wrong.sum()):,} of {num_samples:,} are wrong)"
        )
    if not values.any():
        raise _error(
            f"all {num_samples:,} weights are 0, so that nothing can be drawn; give some sample a weight above 0"
        )
    return values


def _running_totals(weights: Array) -> IndexArray:
    """Return the running totals of weights as whole numbers, int64, shape ``(N,)``, the last at most ``2**62``.

    Args:
        weights: float64, shape ``(N,)``, finite, at least 0, not all 0.
    """
    # First as multiples of the last bit of the largest, rounded down, for about their total: a sum of floats would
    # depend on the order in which a machine adds.
    _, exponent = np.frexp(weights.max())
    whole = np.floor(np.ldexp(weights, _MANTISSA_BITS - int(exponent))).astype(np.int64)
    total = (int((whole >> _HALF).sum()) << 32) + int((whole & _LOW).sum())
    power = _MANTISSA_BITS - int(exponent) + _TOTAL_BITS - total.bit_length()
    whole = np.rint(np.ldexp(weights, power)).astype(np.int64)
    whole[(whole == 0) & (weights > 0)] = 1
    return np.cumsum(whole)


def _error(message: str) -> ConfigError:
    return ConfigError.at("sampling.weights", message)
