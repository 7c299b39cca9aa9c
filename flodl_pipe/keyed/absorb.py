"""Deriving keys: words are absorbed one after the other, never added.

With ``seed + epoch`` as a key, run seed 7 at epoch 1 would replay run seed 8 at epoch 0. Here a 64-bit state takes in
one word at a time through a bijective mixer, so ``(7, 1)``, ``(8, 0)`` and ``(0, 8)`` have nothing in common.

The mixer is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014). Everything is integer arithmetic modulo 2**64, so the values are the same on every machine.
"""

import numpy as np

from flodl_pipe.arrays import WordArray

__all__ = ["GOLDEN_GAMMA", "absorb", "absorb_words", "mix", "mix_words", "spread"]

_MASK = (1 << 64) - 1
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio, odd: SplitMix64's increment."""

# The first 64 fractional bits of pi: a start that nobody chose.
_START = 0x243F6A8885A308D3
_ROUND = 0x13198A2E03707344


def mix(word: int) -> int:
    """Return a bijective scramble of a 64-bit word."""
    word &= _MASK
    word = ((word ^ (word >> 30)) * _MULTIPLY_1) & _MASK
    word = ((word ^ (word >> 27)) * _MULTIPLY_2) & _MASK
    return word ^ (word >> 31)


def mix_words(words: WordArray) -> WordArray:
    """Apply :func:`mix` to every element, in place, and return the array."""
    shifted = words >> np.uint64(30)
    words ^= shifted
    words *= np.uint64(_MULTIPLY_1)
    np.right_shift(words, np.uint64(27), out=shifted)
    words ^= shifted
    words *= np.uint64(_MULTIPLY_2)
    np.right_shift(words, np.uint64(31), out=shifted)
    words ^= shifted
    return words


def absorb(*words: int) -> int:
    """Return a 64-bit key for a tuple of words.

    Args:
        words: Integers in ``[0, 2**64)``; tuples of another length or order are other keys.

    Raises:
        ValueError: if a word does not fit 64 bits: cut to size, two seeds could become one.

    >>> absorb(7, 1) != absorb(8, 0) and absorb(2**32, 5) != absorb(5, 2**32)
    True
    """
    state = _START
    for word in words:
        if not 0 <= word <= _MASK:
            raise ValueError(f"key words must be in 0 .. 2**64 - 1, got {word}")
        state = (mix(state ^ word) * GOLDEN_GAMMA + _ROUND) & _MASK
    return mix(state)


def absorb_words(key: int | WordArray, words: WordArray) -> WordArray:
    """Absorb one more word per row.

    Args:
        key: 64-bit key of the words before: one for all rows, or uint64 of the shape of ``words``.
        words: uint64, any shape.

    Returns:
        New uint64 array of the same shape: one key per row.
    """
    state = mix_words(words ^ (np.uint64(key) if isinstance(key, int) else key))
    state *= np.uint64(GOLDEN_GAMMA)
    state += np.uint64(_ROUND)
    return mix_words(state)


def spread(key: int, count: int) -> list[int]:
    """Return ``count`` 64-bit words derived from one key: SplitMix64's output sequence."""
    return [mix(key + (index + 1) * GOLDEN_GAMMA) for index in range(count)]
