"""How the places of one block are dealt to the parts of a mixture: exact quotas, in keyed order, by arithmetic.

A few arrangements of a block's places are shuffled once (up to 64 of them). Each block of the run takes one of them and
a place in it to begin at, both keyed by the block's number, and reads it in a circle::

    arrangement     a b a a c a b a        begins at place 5:     a b a a b a a c
    seen before     how many of each part stand before each place, so a place knows which of its part's it is

So every block holds each part exactly as often as its quota says, every place of a block is as likely to be any
part's as the quotas say, and what stands at a place is found in a few array look-ups, without the rest of its block.

Without a seed there is one arrangement, the even interleaving, read from its beginning in every block.

Shape letters: ``K`` places asked for, ``A`` arrangements, ``P`` parts.
"""

from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray, WordArray
from flodl_pipe.keyed.absorb import absorb, absorb_words

__all__ = ["MAX_BLOCK", "MAX_TABLE", "Arrangements"]

MAX_BLOCK = 1 << 16
"""Most places of a block."""

MAX_TABLE = 1 << 23
"""Most places of a block times parts: 4 bytes each are held."""

_DOMAIN = 0x313C5
_MAX_ARRANGEMENTS = 64
# Entries of all arrangements together, where one does not take more: 1 MiB, so that look-ups stay in the cache.
_TABLE = 1 << 18
_HALF = np.uint64(32)
_SLOT = np.uint64(MAX_BLOCK - 1)


@final
class Arrangements:
    """The arrangements of blocks with the same quotas.

    Args:
        quotas: Places of each part in a block; they add up to at most :data:`MAX_BLOCK`.
        seed: Run seed; None: the even interleaving.
    """

    def __init__(self, quotas: tuple[int, ...], seed: int | None) -> None:
        self.quotas = quotas
        self._block = block = sum(quotas)
        self._num_parts = num_parts = len(quotas)
        self._key = None if seed is None else absorb(_DOMAIN, 0, seed)
        self._quotas: IndexArray = np.array(quotas, dtype=np.int64)
        if seed is None:
            parts = _even(quotas)[np.newaxis]
        else:
            count = max(1, min(_MAX_ARRANGEMENTS, _TABLE // (block * num_parts)))
            parts = _shuffled(quotas, count, absorb(_DOMAIN, 1, seed))
        self._parts = parts.reshape(-1)
        self._num_places = parts.size
        before = np.zeros((*parts.shape, num_parts), dtype=np.int32)
        for part in range(num_parts):
            np.cumsum(parts[:, :-1] == part, axis=1, dtype=np.int32, out=before[:, 1:, part])
        self._before = before.reshape(-1)

    def at(self, blocks: IndexArray, offsets: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Return what stands at places of blocks.

        Args:
            blocks: Number of each block, int64, shape ``(K,)``.
            offsets: Place within it, int64, shape ``(K,)``.

        Returns:
            The part at each place, and how many of that part's stand before it in its block; int64, shape ``(K,)``.
        """
        begins = self._begins(blocks)
        turned = begins % self._block
        places = turned + offsets
        places -= self._block * (places >= self._block)
        places += begins - turned
        parts = self._parts[places].astype(np.int64)
        seen = self._before[places * self._num_parts + parts].astype(np.int64)
        seen -= self._before[begins * self._num_parts + parts]
        # Behind the arrangement's end the count began anew; only then is it below that at the place of beginning.
        seen += self._quotas[parts] * (seen < 0)
        return parts, seen

    def counts(self, block: int, offset: int) -> tuple[int, ...]:
        """Return how many of each part's places stand before a place of a block."""
        begin = int(self._begins(np.array([block], dtype=np.int64))[0])
        turned = begin % self._block
        place = turned + offset
        wraps = place >= self._block
        place += begin - turned - (self._block if wraps else 0)
        rows = self._before.reshape(-1, self._num_parts)
        seen = rows[place].astype(np.int64) - rows[begin] + (self._quotas if wraps else 0)
        return tuple(seen.tolist())

    def place_of(self, block: int, part: int, which: int) -> int:
        """Return the place in a block of one part's ``which``-th, counted from 0."""
        offsets = np.arange(self._block, dtype=np.int64)
        parts, seen = self.at(np.full(self._block, block, dtype=np.int64), offsets)
        return int(np.flatnonzero((parts == part) & (seen == which))[0])

    def _begins(self, blocks: IndexArray) -> IndexArray:
        """Return where each block begins in the table, int64, shape ``(K,)``."""
        if self._key is None:
            return np.zeros(len(blocks), dtype=np.int64)
        first, last = int(blocks.min()), int(blocks.max())
        if last - first >= len(blocks):
            return self._keyed(blocks)
        return self._keyed(np.arange(first, last + 1, dtype=np.int64))[blocks - first]

    def _keyed(self, blocks: IndexArray) -> IndexArray:
        words: WordArray = absorb_words(self._key or 0, blocks.view(np.uint64))
        words >>= _HALF
        words *= np.uint64(self._num_places)
        words >>= _HALF
        return words.view(np.int64)


def _labels(quotas: tuple[int, ...]) -> IndexArray:
    return np.repeat(np.arange(len(quotas), dtype=np.uint16), quotas)


def _shuffled(quotas: tuple[int, ...], count: int, key: int) -> IndexArray:
    """Return ``count`` keyed shuffles of a block's places, shape ``(count, block)``."""
    block = sum(quotas)
    words = absorb_words(key, np.arange(count * block, dtype=np.uint64)).reshape(count, block)
    # Sorting hashes that end in their own place number: no ties, so any sorting algorithm gives the same.
    words &= ~_SLOT
    words |= np.arange(block, dtype=np.uint64)
    words.sort(axis=1)
    return _labels(quotas)[(words & _SLOT).view(np.int64)]


def _even(quotas: tuple[int, ...]) -> IndexArray:
    """Return the even interleaving: the ``r``-th place of a part lies near ``(r + 1/2) / quota`` of the block."""
    labels = _labels(quotas)
    places: IndexArray = np.array(quotas, dtype=np.int64)
    sizes = places[labels]
    rank: IndexArray = np.arange(len(labels)) - (places.cumsum() - places)[labels]
    # Two different quotients are at least 2**-34 apart, so 40 bits order them as fractions; equal ones stay equal.
    at: IndexArray = (2 * rank + 1) * (1 << 40) // (2 * sizes)
    even: IndexArray = labels[np.lexsort((labels, at))]
    return even
