"""A keyed bijection of ``[0, n)``: the shuffle as a function, with its inverse, in memory independent of ``n``.

Two algorithms, chosen by size alone:

* up to 65,536 items an exact shuffle: the stable argsort of one keyed 64-bit hash per item (at most 1 MiB);
* above, a generalised Feistel network of six rounds over the rectangle ``a x b >= n`` with ``a = ceil(sqrt n)``.
  Because ``a * b - n < a``, only about ``1 / sqrt(n)`` of the points fall outside ``[0, n)`` and walk on ("cycle
  walking").

Six rounds: statistics over pairs of positions, orders of small sets and seeds could not tell five or more rounds from
Fisher-Yates; three and four rounds fail the pair tests. About 14 to 20 ns an index in blocks of 8,192 (AMD EPYC, 2
cores, 2026-11-29, ``tests/benchmarks/order.py``), in no memory; ``numpy.random.permutation`` of 50 million takes 400
MB.

The values are pinned by golden tests. Changing them is a breaking change: it must bump :data:`ALGORITHM`, which is part
of every cursor.

Sources: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (Feistel on a x b, cycle walking);
Luby and Rackoff, SIAM J. Computing 17 (1988), for why rounds matter.
"""

import math
from collections.abc import Callable
from typing import Protocol, final

import numpy as np

from flodl_pipe.arrays import IndexArray, WordArray
from flodl_pipe.keyed.absorb import GOLDEN_GAMMA, absorb, mix_words, spread
from flodl_pipe.keyed.feistel import Rectangle

__all__ = ["ALGORITHM", "EXACT_UP_TO", "MAX_ITEMS", "Permutation", "permutation"]

ALGORITHM = "f6v1"
"""Name of the values this module produces; part of every cursor."""

EXACT_UP_TO = 1 << 16
MAX_ITEMS = 1 << 62

_ROUNDS = 6
# Working set of a block (a handful of uint64 arrays) stays inside the L2 cache.
_BLOCK = 8192
_EXACT_DOMAIN, _FEISTEL_DOMAIN = 0x4A5, 0xFE15


class Permutation(Protocol):
    """A bijection of ``[0, n)`` onto itself."""

    n: int

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the item at each position, int64, same shape ``(K,)``; positions must lie in ``[0, n)``."""
        ...

    def inverse(self, items: IndexArray) -> IndexArray:
        """Return the position of each item, int64, same shape ``(K,)``; items must lie in ``[0, n)``."""
        ...


def permutation(n: int, *key: int) -> Permutation:
    """Return the permutation of ``n`` items that a key names.

    Args:
        n: Number of items, ``1 <= n <= 2**62``.
        key: Any tuple of non-negative integers, for example ``(seed, epoch)``; every tuple is another permutation.

    Raises:
        ValueError: if ``n`` is out of range or a key word is negative.

    >>> shuffle = permutation(6, 42, 0)
    >>> sorted(shuffle.at(np.arange(6)).tolist())
    [0, 1, 2, 3, 4, 5]
    >>> shuffle.inverse(shuffle.at(np.arange(6))).tolist()
    [0, 1, 2, 3, 4, 5]
    """
    if not 1 <= n <= MAX_ITEMS:
        raise ValueError(f"a permutation needs 1 to 2**62 items, got {n}")
    return _SortedHashes(n, key) if n <= EXACT_UP_TO else _Feistel(n, key)


@final
class _SortedHashes:
    """Exact-uniform up to the quality of a 64-bit hash: sort the items by it."""

    def __init__(self, n: int, key: tuple[int, ...]) -> None:
        self.n = n
        first, second = spread(absorb(_EXACT_DOMAIN, n, *key), 2)
        hashes = np.arange(n, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA) + np.uint64(first)
        mix_words(hashes)
        hashes ^= np.uint64(second)
        # Every step above is a bijection of words, so no two hashes are equal and any sort gives this order; NumPy's
        # quickest takes a sixth of the time of its stable one.
        self._items: IndexArray = np.argsort(mix_words(hashes)).astype(np.int64, copy=False)
        self._positions: IndexArray | None = None

    def at(self, positions: IndexArray) -> IndexArray:
        return self._items[positions]

    def inverse(self, items: IndexArray) -> IndexArray:
        if self._positions is None:
            positions = np.empty_like(self._items)
            positions[self._items] = np.arange(self.n)
            self._positions = positions
        return self._positions[items]


@final
class _Feistel:
    """Six Feistel rounds; what falls outside ``[0, n)`` walks on."""

    def __init__(self, n: int, key: tuple[int, ...]) -> None:
        self.n = n
        a = math.isqrt(n - 1) + 1
        self._rectangle = Rectangle(a, -(-n // a), spread(absorb(_FEISTEL_DOMAIN, n, *key), _ROUNDS))

    def at(self, positions: IndexArray) -> IndexArray:
        return self._walk(self._rectangle.forward, positions)

    def inverse(self, items: IndexArray) -> IndexArray:
        return self._walk(self._rectangle.backward, items)

    def _walk(self, step: Callable[[WordArray], WordArray], start: IndexArray) -> IndexArray:
        """Apply ``step`` until every value lies in ``[0, n)``, block by block."""
        words = np.ascontiguousarray(start).astype(np.uint64)
        limit = np.uint64(self.n)
        for first in range(0, words.size, _BLOCK):
            block = step(words[first : first + _BLOCK])
            outside = np.flatnonzero(block >= limit)
            while outside.size:
                walked = step(block[outside])
                block[outside] = walked
                outside = outside[walked >= limit]
            words[first : first + _BLOCK] = block
        return words.view(np.int64)
