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
# For lanes 0 and 2, which a round multiplies.
_MULTIPLY = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
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
    # Lanes 0 and 2 in one array, 1 and 3 in another: an operation does both of a kind, and a round takes seven.
    even = np.stack([low & _LOW, high & _LOW])
    odd = np.stack([low >> _HALF, high >> _HALF])
    keys = np.stack([key & _LOW, key >> _HALF])
    mixed = np.empty_like(even)
    for round_number in range(_ROUNDS):
        if round_number:
            keys += _WEYL
            keys &= _LOW
        even *= _MULTIPLY
        swapped = even[::-1]
        np.right_shift(swapped, _HALF, out=mixed)
        mixed ^= odd
        mixed ^= keys
        np.bitwise_and(swapped, _LOW, out=odd)
        even, mixed = mixed, even
    return np.stack([even[0], odd[0], even[1], odd[1]])
