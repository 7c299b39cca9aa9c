"""A few samples that stand for all: always the same ones for the same number of samples and the same key."""

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.keyed.absorb import absorb, spread

__all__ = ["keyed_choice"]

_DOMAIN = 0xF3C4


def keyed_choice(num_samples: int, count: int, key: int = 0) -> IndexArray:
    """Return at most ``count`` different samples, ascending: the first, the last, and a keyed choice between them.

    Args:
        num_samples: Samples there are, at least 1.
        count: How many to choose, at least 2.
        key: Another key is another choice, ``0 <= key < 2**64``.

    Returns:
        int64, shape ``(K,)`` with ``1 <= K <= count``; every sample when there are no more than ``count``.

    >>> keyed_choice(4, 16).tolist(), len(keyed_choice(1000, 16))
    ([0, 1, 2, 3], 16)
    """
    if num_samples <= count:
        return np.arange(num_samples, dtype=np.int64)
    chosen = {0, num_samples - 1}
    # More words than needed: two may fall on one sample.
    for word in spread(absorb(_DOMAIN, key, num_samples), 4 * count):
        if len(chosen) == count:
            break
        chosen.add(word % num_samples)
    return np.array(sorted(chosen), dtype=np.int64)
