"""A Feistel network over a rectangle ``a x b``: rounds that add a keyed hash of one half to the other, in turn.

Its values are part of every order that is made of it, and pinned by the golden tests of those.

Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.

Shape letter: ``K`` items.
"""

from collections.abc import Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import WordArray

__all__ = ["Rectangle"]

_MULTIPLY_1, _MULTIPLY_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@final
class Rectangle:
    """A keyed bijection of ``[0, a * b)``, on ``(left, right)`` with ``item = left * b + right``.

    Args:
        a: Values of the left half, at most 2**31.
        b: Values of the right half, at most 2**31.
        keys: One word for each round.
    """

    def __init__(self, a: int, b: int, keys: Sequence[int]) -> None:
        self._a, self._b = a, b
        self._keys = [np.uint64(word) for word in keys]

    def forward(self, items: WordArray, words: WordArray | None = None) -> WordArray:
        """Return where each item goes, uint64, shape ``(K,)``.

        Args:
            items: uint64, shape ``(K,)``, each in ``[0, a * b)``.
            words: A word that goes into every round of an item, shape ``(K,)``; None: the keys alone decide.
        """
        left, right = np.divmod(items, np.uint64(self._b))
        shift, spare = np.empty_like(items), np.empty_like(items)
        for number, key in enumerate(self._keys):
            changed, other, size = (right, left, self._b) if number & 1 else (left, right, self._a)
            changed += _shift(other, words, size, key, shift, spare)
            # Modulo by subtraction: both terms are below `size`, and where nothing is to subtract the unsigned
            # difference wraps to a huge number, so the minimum is the remainder.
            np.subtract(changed, np.uint64(size), out=spare)
            np.minimum(changed, spare, out=changed)
        left *= np.uint64(self._b)
        left += right
        return left

    def backward(self, items: WordArray, words: WordArray | None = None) -> WordArray:
        """Return where each item came from; the inverse of :meth:`forward`."""
        left, right = np.divmod(items, np.uint64(self._b))
        shift, spare = np.empty_like(items), np.empty_like(items)
        for number in reversed(range(len(self._keys))):
            changed, other, size = (right, left, self._b) if number & 1 else (left, right, self._a)
            changed -= _shift(other, words, size, self._keys[number], shift, spare)
            np.add(changed, np.uint64(size), out=spare)
            np.minimum(changed, spare, out=changed)
        left *= np.uint64(self._b)
        left += right
        return left


def _shift(
    half: WordArray, words: WordArray | None, size: int, key: np.uint64, out: WordArray, spare: WordArray
) -> WordArray:
    """Round function: a keyed hash of one half, scaled to ``[0, size)`` by multiply-shift (``size <= 2**31``)."""
    if words is None:
        np.bitwise_xor(half, key, out=out)
    else:
        np.add(half, words, out=out)
        out ^= key
    out *= _MULTIPLY_1
    np.right_shift(out, np.uint64(32), out=spare)
    out ^= spare
    out *= _MULTIPLY_2
    out >>= np.uint64(31)
    out *= np.uint64(size)
    out >>= np.uint64(33)
    return out
