"""Many keyed bijections side by side: member ``i`` of a family permutes items of its own, by a key of its own.

Members are asked for row by row: a batch that takes one item from each of 512 members is one call. All members have the
same number of items, or the first ones ``step`` more.

Two algorithms, chosen by size alone, as in :mod:`flodl_pipe.keyed.permute`:

* up to 65,536 items over all members an exact shuffle: hashes of each member's items, sorted (at most 1 MiB);
* above, a Feistel network over the rectangle ``a x b`` that holds the largest member. A smaller one walks on where it
  meets an item that it lacks. Members differ by a word that goes into every round.

Ten rounds, four more than for one large set, and 24 up to 32 items: small rectangles mix slowly. Of 375,000 to 1.5
million members, neither all orders of 2 to 8 items nor places, neighbours and members side by side at 9 to 2,000 could
be told from Fisher-Yates; ten rounds can at 5 to 8 items. 28 to 46 ns an index in blocks of 8,192 (AMD EPYC, 2 cores,
2026-11-30, ``tests/benchmarks/order.py``).

The values are pinned by golden tests. Changing them must bump :data:`ALGORITHM`, which is part of cursors.

Shape letter: ``K`` rows asked for.
"""

import math
from collections.abc import Callable
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from flodl_pipe.arrays import IndexArray, WordArray
from flodl_pipe.keyed.absorb import GOLDEN_GAMMA, absorb, absorb_words, mix_words, spread
from flodl_pipe.keyed.feistel import Rectangle
from flodl_pipe.keyed.permute import EXACT_UP_TO, MAX_ITEMS

__all__ = ["ALGORITHM", "MAX_MEMBERS", "Permutations", "permutations"]

ALGORITHM = "m1"
"""Name of the values this module produces; part of cursors."""

MAX_MEMBERS = 1 << 31

_ROUNDS, _ROUNDS_OF_FEW, _FEW = 10, 24, 32
# As in the shuffle of one set: the working set of a block stays inside the L2 cache.
_BLOCK = 8192
_EXACT_DOMAIN, _FEISTEL_DOMAIN = 0x3A4A5, 0x3AFE1


class Permutations(Protocol):
    """A bijection of ``[0, n_i)`` onto itself for each member ``i``."""

    def at(self, members: IndexArray, positions: IndexArray) -> IndexArray:
        """Return the item at a position of each member named, int64, shape ``(K,)``.

        Args:
            members: Which members, int64, shape ``(K,)``.
            positions: A position of each, int64, shape ``(K,)``; must lie in ``[0, n_i)``.
        """
        ...

    def inverse(self, members: IndexArray, items: IndexArray) -> IndexArray:
        """Return the position of an item of each member named, int64, shape ``(K,)``; see :meth:`at`."""
        ...


def permutations(num_members: int, num_items: int, *key: int, num_larger: int = 0, step: int = 1) -> Permutations:
    """Return the family of permutations that a key names.

    Args:
        num_members: Members, 1 to 2**31.
        num_items: Items of each, at least 1.
        key: Any tuple of non-negative integers; every tuple is another family.
        num_larger: Members from 0 on that have ``step`` items more, fewer than all.
        step: See there, at least 1.

    Raises:
        ValueError: if a number is out of range, or there are more than 2**62 items in all.

    >>> family = permutations(3, 4, 42, num_larger=1)
    >>> [sorted(family.at(np.full(n, i), np.arange(n)).tolist()) for i, n in enumerate((5, 4, 4))]
    [[0, 1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3]]
    """
    if not 1 <= num_members <= MAX_MEMBERS:
        raise ValueError(f"a family of permutations needs 1 to 2**31 members, got {num_members}")
    if num_items < 1 or step < 1 or not 0 <= num_larger < num_members:
        raise ValueError(
            f"members need at least 1 item, steps likewise, and fewer than all are larger; got {num_items} items, "
            f"step {step}, {num_larger} of {num_members} larger"
        )
    count = num_members * num_items + num_larger * step
    if count > MAX_ITEMS:
        raise ValueError(f"a family of permutations has at most 2**62 items, got {count}")
    sizes = num_members, num_items, num_larger, step
    return _SortedHashes(*sizes, key) if count <= EXACT_UP_TO else _Feistel(*sizes, key)


@final
class _SortedHashes:
    """Exact-uniform up to the quality of a 64-bit hash: sort each member's items by it."""

    def __init__(self, num_members: int, num_items: int, num_larger: int, step: int, key: tuple[int, ...]) -> None:
        most = num_items + (step if num_larger else 0)
        words = absorb_words(
            absorb(_EXACT_DOMAIN, num_members, num_items, num_larger, step, *key), _members(num_members)
        )
        hashes = np.arange(most, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA) + words[:, np.newaxis]
        mix_words(hashes)
        hashes ^= mix_words(words ^ np.uint64(GOLDEN_GAMMA))[:, np.newaxis]
        mix_words(hashes)
        # Every step above is a bijection of words: no two hashes of a member are equal, and any sort gives this order.
        order = np.argsort(hashes, axis=1).astype(np.int32)
        if num_larger:
            # Smaller members lack the last items: those that they have move up, in their order.
            smaller = order[num_larger:]
            order[num_larger:, :num_items] = smaller[smaller < num_items].reshape(-1, num_items)
        self._items = order
        self._positions: npt.NDArray[np.int32] | None = None
        self._num_items, self._num_larger = num_items, num_larger

    def at(self, members: IndexArray, positions: IndexArray) -> IndexArray:
        return self._items[members, positions].astype(np.int64)

    def inverse(self, members: IndexArray, items: IndexArray) -> IndexArray:
        if self._positions is None:
            positions = np.empty_like(self._items)
            places = np.broadcast_to(np.arange(self._items.shape[1], dtype=np.int32), self._items.shape)
            for part, width in ((slice(0, self._num_larger), None), (slice(self._num_larger, None), self._num_items)):
                np.put_along_axis(positions[part, :width], self._items[part, :width], places[part, :width], axis=1)
            self._positions = positions
        return self._positions[members, items].astype(np.int64)


@final
class _Feistel:
    """Ten Feistel rounds; what a member lacks walks on."""

    def __init__(self, num_members: int, num_items: int, num_larger: int, step: int, key: tuple[int, ...]) -> None:
        most = num_items + (step if num_larger else 0)
        self._num_items, self._num_larger, self._step = num_items, num_larger, step
        # Even: with both sides odd, every round would be an even permutation, and half of all could not come out.
        a = 2 * ((math.isqrt(most - 1) + 2) // 2)
        word = absorb(_FEISTEL_DOMAIN, num_members, num_items, num_larger, step, *key)
        self._words = absorb_words(word, _members(num_members))
        num_rounds = _ROUNDS if most > _FEW else _ROUNDS_OF_FEW
        self._rectangle = Rectangle(a, -(-most // a), spread(word, num_rounds))

    def at(self, members: IndexArray, positions: IndexArray) -> IndexArray:
        return self._walk(self._rectangle.forward, members, positions)

    def inverse(self, members: IndexArray, items: IndexArray) -> IndexArray:
        return self._walk(self._rectangle.backward, members, items)

    def _walk(
        self, turn: Callable[[WordArray, WordArray], WordArray], members: IndexArray, start: IndexArray
    ) -> IndexArray:
        """Apply ``turn`` until every value is an item of its member, block by block."""
        found = np.ascontiguousarray(start).astype(np.uint64)
        for first in range(0, found.size, _BLOCK):
            numbers = members[first : first + _BLOCK]
            words = self._words[numbers]
            limits = np.full(len(numbers), self._num_items, dtype=np.uint64)
            if self._num_larger:
                limits[numbers < self._num_larger] += np.uint64(self._step)
            block = turn(found[first : first + _BLOCK], words)
            outside = np.flatnonzero(block >= limits)
            while outside.size:
                walked = turn(block[outside], words[outside])
                block[outside] = walked
                outside = outside[walked >= limits[outside]]
            found[first : first + _BLOCK] = block
        return found.view(np.int64)


def _members(num_members: int) -> WordArray:
    return np.arange(num_members, dtype=np.uint64)
