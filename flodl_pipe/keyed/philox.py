"""Counter-based random words: Philox4x32-10.

A counter-based generator is a function ``(key, counter) -> words``. Draw number 5 of sample 17 in epoch 3 is computed
directly; there is no state that a reader thread, a restart or another rank could have advanced differently.

32-bit lanes are used, rather than NumPy's Philox4x64, because the 32 x 32 -> 64 bit products it needs exist on every
device torch runs on.

Source: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011; the known answers of the
authors' Random123 library are in the tests.
"""

import numpy as np

from flodl_pipe.arrays import WordArray

__all__ = ["philox4x32"]

_ROUNDS = 10
_MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(key: WordArray, counter: WordArray) -> WordArray:
    """Return four 32-bit random words for each (key, counter).

    Args:
        key: uint64, shape ``(R,)``: low half is the first key lane, high half the second.
        counter: uint64, shape ``(R, 2)`` or broadcastable to it: 128-bit counter as (low, high) words.

    Returns:
        uint64 array of shape ``(4, R)``, every element below 2**32.
    """
    rows = key.shape[0]
    low, high = np.broadcast_to(counter, (rows, 2)).T
    lanes = [low & _LOW, low >> _HALF, high & _LOW, high >> _HALF]
    keys = [key & _LOW, key >> _HALF]
    for round_number in range(_ROUNDS):
        if round_number:
            keys = [(lane + np.uint64(weyl)) & _LOW for lane, weyl in zip(keys, _WEYL, strict=True)]
        product_0 = lanes[0] * _MULTIPLY[0]
        product_1 = lanes[2] * _MULTIPLY[1]
        lanes = [
            (product_1 >> _HALF) ^ lanes[1] ^ keys[0],
            product_1 & _LOW,
            (product_0 >> _HALF) ^ lanes[3] ^ keys[1],
            product_0 & _LOW,
        ]
    return np.stack(lanes)
