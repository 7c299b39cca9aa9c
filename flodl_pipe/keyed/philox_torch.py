"""Philox4x32-10 and the absorbing of key words in torch: the values of the NumPy versions, on any device.

A 64-bit word is an int64 of the same bits, because torch's unsigned types lack most operations. Products and sums wrap
modulo 2**64, as two's complement does by itself; a right shift would fill with the sign, so it is masked. All of it is
integer arithmetic: the values equal those of :mod:`flodl_pipe.keyed.philox` and :mod:`flodl_pipe.keyed.absorb` bit by
bit, whatever the device.

Shape letter: ``R`` rows.
"""

import torch

from flodl_pipe.keyed.absorb import GOLDEN_GAMMA

__all__ = ["absorb_words", "mix_words", "philox4x32", "signed"]


def signed(word: int) -> int:
    """Return the int64 with the bits of a word in ``[0, 2**64)``.

    >>> signed(2**64 - 1), signed(7)
    (-1, 7)
    """
    return word - (1 << 64) if word >> 63 else word


_ROUNDS = 10
_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF

# SplitMix64's finaliser and the start of a round, as in absorb.
_MIX_1, _MIX_2 = signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)
_GAMMA, _ROUND = signed(GOLDEN_GAMMA), signed(0x13198A2E03707344)


def philox4x32(key: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """Return four 32-bit random words for each (key, counter).

    Args:
        key: int64 of 64-bit words, shape ``(R,)``.
        counter: int64 of 64-bit words, shape ``(R, 2)`` or one that expands to it, on the device of ``key``: 128-bit
            counter as (low, high) words.

    Returns:
        int64 tensor of shape ``(4, R)`` on the same device, every element in ``[0, 2**32)``.
    """
    low, high = counter.expand(len(key), 2).unbind(1)
    lanes = [low & _LOW, _high_half(low), high & _LOW, _high_half(high)]
    keys = [key & _LOW, _high_half(key)]
    for round_number in range(_ROUNDS):
        if round_number:
            keys = [(lane + weyl) & _LOW for lane, weyl in zip(keys, _WEYL, strict=True)]
        product_0 = lanes[0] * _MULTIPLY[0]
        product_1 = lanes[2] * _MULTIPLY[1]
        lanes = [
            _high_half(product_1) ^ lanes[1] ^ keys[0],
            product_1 & _LOW,
            _high_half(product_0) ^ lanes[3] ^ keys[1],
            product_0 & _LOW,
        ]
    return torch.stack(lanes)


def absorb_words(key: int | torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Absorb one more word per row, as :func:`flodl_pipe.keyed.absorb.absorb_words` does.

    Args:
        key: Key of the words before: one in ``[0, 2**64)`` for all rows, or int64 of the shape of ``words``.
        words: int64 of 64-bit words, any shape.

    Returns:
        New int64 tensor of the same shape and device: one key per row.
    """
    state = mix_words(words ^ (signed(key) if isinstance(key, int) else key))
    return mix_words(state * _GAMMA + _ROUND)


def _high_half(words: torch.Tensor) -> torch.Tensor:
    return (words >> 32) & _LOW


def mix_words(words: torch.Tensor) -> torch.Tensor:
    """Return a bijective scramble of every element: :func:`flodl_pipe.keyed.absorb.mix_words`, into a new tensor."""
    words = (words ^ _shifted(words, 30)) * _MIX_1
    words = (words ^ _shifted(words, 27)) * _MIX_2
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, places: int) -> torch.Tensor:
    """Shift right and fill with zeros."""
    return (words >> places) & ((1 << (64 - places)) - 1)
