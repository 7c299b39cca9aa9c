"""Draws with replacement: which sample stands at a position, each chosen for itself.

The draw at a position is a keyed 64-bit hash of the position, scaled to ``[0, num_samples)`` by the upper half of a
128-bit product, so no sample is off the uniform probability by more than ``2**-64``. Integer arithmetic only; nothing
is advanced or stored. About 5 ns an index in blocks of 8,192 (6 ns beyond 2**32 samples; 2-core AMD EPYC,
2026-11-29, ``tests/benchmarks/mixture.py``).

The values are pinned by golden tests; another algorithm needs another :data:`ALGORITHM`, which is part of the tag.
"""

from typing import NoReturn, final

import numpy as np

from flodl_pipe.arrays import IndexArray, WordArray
from flodl_pipe.errors import LoaderError
from flodl_pipe.keyed.absorb import absorb, absorb_words
from flodl_pipe.keyed.permute import MAX_ITEMS
from flodl_pipe.sampling.orders import EpochOrder

__all__ = ["ALGORITHM", "DrawnOrder", "draw"]

ALGORITHM = "d64v1"
"""Name of the values this module produces; part of every cursor."""

_DOMAIN = 0xD4A3
# Working set of a block (a handful of uint64 arrays) stays inside the L2 cache.
_BLOCK = 8192
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


def draw(num_samples: int, key: int, counters: IndexArray) -> IndexArray:
    """Return uniform draws, one per counter.

    Args:
        num_samples: Samples to draw from, ``1 <= num_samples <= 2**62``.
        key: 64-bit key of the sequence.
        counters: Which draws of the sequence, int64, at least 0, shape ``(K,)``.

    Returns:
        Samples, int64, shape ``(K,)``, each in ``[0, num_samples)``.
    """
    counted = np.ascontiguousarray(counters).view(np.uint64)
    samples = np.empty(counted.size, dtype=np.uint64)
    for first in range(0, counted.size, _BLOCK):
        words = absorb_words(key, counted[first : first + _BLOCK])
        samples[first : first + _BLOCK] = _scaled(words, num_samples)
    return samples.view(np.int64)


def _scaled(words: WordArray, size: int) -> WordArray:
    """Return the upper 64 bits of ``words * size``; changes ``words``."""
    size_high, size_low = np.uint64(size >> 32), np.uint64(size & 0xFFFFFFFF)
    low = words & _LOW
    words >>= _HALF  # now the upper halves
    carried = low * size_low
    carried >>= _HALF
    if not size_high:
        words *= size_low
        words += carried
        words >>= _HALF
        return words
    # Schoolbook multiplication in halves of 32 bits; every sum below fits 64 bits.
    upper_low = words * size_low
    low *= size_high
    carried += upper_low & _LOW
    carried += low & _LOW
    carried >>= _HALF
    words *= size_high
    words += upper_low >> _HALF
    words += low >> _HALF
    words += carried
    return words


@final
class DrawnOrder:
    """Uniform draws with replacement, keyed by ``(seed, epoch, position)``.

    Args:
        num_samples: Samples to draw from, ``1 <= num_samples <= 2**62``.
        num_picks: Draws of an epoch, ``1 <= num_picks <= 2**62``.
        seed: Run seed, ``0 <= seed < 2**64``; held for the whole run.

    Raises:
        ValueError: if an argument is out of range.

    >>> DrawnOrder(100, 8, seed=42).epoch(0).at(2, 6).tolist()
    [25, 19, 92, 53]
    """

    def __init__(self, num_samples: int, num_picks: int, seed: int) -> None:
        for name, value in (("samples", num_samples), ("picks", num_picks)):
            if not 1 <= value <= MAX_ITEMS:
                raise ValueError(f"an order of draws needs 1 to 2**62 {name}, got {value}")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed must be in 0 .. 2**64 - 1, got {seed}")
        self.num_samples = num_samples
        self.num_picks = num_picks
        self.num_repeats: int | None = None
        self.seed = seed
        self.tag = f"drawn {ALGORITHM} samples={num_samples} picks={num_picks} seed={seed}"

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the draws of an epoch; see :class:`flodl_pipe.sampling.orders.Order`."""
        if not 0 <= epoch < 1 << 64:
            raise ValueError(f"epoch must be in 0 .. 2**64 - 1, got {epoch}")
        return _Draws(self.num_samples, self.num_picks, absorb(_DOMAIN, self.seed, epoch))


@final
class _Draws:
    def __init__(self, num_samples: int, num_picks: int, key: int) -> None:
        self._num_samples = num_samples
        self._num_picks = num_picks
        self._key = key

    def at(self, start: int, stop: int) -> IndexArray:
        if not 0 <= start <= stop <= self._num_picks:
            raise ValueError(f"positions {start} .. {stop} do not lie within the epoch of {self._num_picks} picks")
        return self.pick(np.arange(start, stop, dtype=np.int64))

    def pick(self, positions: IndexArray) -> IndexArray:
        return draw(self._num_samples, self._key, positions)

    def where(self, picks: IndexArray) -> NoReturn:
        raise LoaderError(
            f"{len(picks)} picks were to be found in an order of draws with replacement, where a sample stands at "
            "several positions of an epoch or at none; ask for the samples at positions instead"
        )
