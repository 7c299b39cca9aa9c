"""One part of a mixture, draw after draw: its samples in passes of its own.

The ``k``-th draw of a part of ``N`` samples is place ``k mod N`` of its pass ``k div N``, over the whole run: passes do
not begin anew with the loader's epochs, so no sample comes again before all have been. Every pass has a keyed shuffle
of its own, or storage order, or the part is drawn with replacement and has no passes.

Large parts keep the shuffles of their last passes. Small ones have many passes in a few thousand draws; theirs are made
together, by sorting one row of hashes per pass.

Shape letter: ``K`` draws asked for.
"""

from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray, WordArray
from flodl_pipe.keyed.absorb import absorb, absorb_words
from flodl_pipe.keyed.permute import Permutation, permutation
from flodl_pipe.sampling.drawn import draw

__all__ = ["PartPasses"]

_DOMAIN = 0x9A27
_SMALL = 1024
_SAMPLE = np.uint64(_SMALL - 1)
_PASSES_KEPT = 2


@final
class PartPasses:
    """The samples of one part. Thread-safe.

    Args:
        num_samples: Samples of the part.
        number: Which part of the mixture it is.
        seed: Run seed.
        shuffle: Whether each pass has an order of its own; otherwise storage order.
        drawn: Whether samples are drawn with replacement.
    """

    def __init__(self, num_samples: int, number: int, seed: int, *, shuffle: bool, drawn: bool) -> None:
        self.num_samples = num_samples
        self._key = (_DOMAIN, seed, number)
        self._shuffle = shuffle
        self._drawn = drawn
        # Replaced as a whole, so that threads need no lock: at worst two of them make the same shuffle.
        self._kept: tuple[tuple[int, Permutation], ...] = ()

    def at(self, draws: IndexArray) -> IndexArray:
        """Return the sample of each draw, int64, shape ``(K,)``.

        Args:
            draws: Draws of this part, counted over the whole run, int64, shape ``(K,)`` with ``K >= 1``.
        """
        if self._drawn:
            return draw(self.num_samples, absorb(*self._key), draws)
        first, last = int(draws.min()) // self.num_samples, int(draws.max()) // self.num_samples
        if not self._shuffle:
            return draws - first * self.num_samples if first == last else draws % self.num_samples
        if self.num_samples <= _SMALL:
            return self._sorted(draws, first, last)
        if first == last:
            return self._of(first).at(draws - first * self.num_samples)
        passes, places = np.divmod(draws, self.num_samples)
        samples = np.empty_like(draws)
        for number in np.unique(passes).tolist():
            here = np.flatnonzero(passes == number)
            samples[here] = self._of(number).at(places[here])
        return samples

    def _of(self, number: int) -> Permutation:
        for kept, shuffle in self._kept:
            if kept == number:
                return shuffle
        shuffle = permutation(self.num_samples, *self._key, number)
        self._kept = ((number, shuffle), *self._kept[: _PASSES_KEPT - 1])
        return shuffle

    def _sorted(self, draws: IndexArray, first: int, last: int) -> IndexArray:
        passes, places = np.divmod(draws, self.num_samples)
        if last - first < len(draws):
            numbers, rows = np.arange(first, last + 1), passes - first
        else:
            numbers, rows = np.unique(passes, return_inverse=True)
        samples = np.arange(self.num_samples, dtype=np.uint64)
        keys = np.repeat(absorb_words(absorb(*self._key), numbers.view(np.uint64)), self.num_samples)
        words = absorb_words(keys, np.tile(samples, len(numbers))).reshape(len(numbers), self.num_samples)
        # Hashes that end in their own sample number: no ties, so any sorting algorithm gives the same.
        words &= ~_SAMPLE
        words |= samples
        words.sort(axis=1)
        found: WordArray = words[rows, places] & _SAMPLE
        return found.view(np.int64)
