"""The draws of :class:`PickKeys` computed on a device: the same numbers, where a transform needs many of them.

A few draws per row are cheaper from NumPy and a copy; one per pixel or token is not, and would have to cross the bus.
:mod:`flodl_pipe.keyed.pick_keys` itself knows nothing of torch.

Shape letter: ``B`` rows of a batch.
"""

import numpy as np
import torch

from flodl_pipe.arrays import IndexArray
from flodl_pipe.keyed.absorb import absorb
from flodl_pipe.keyed.philox_torch import absorb_words, philox4x32
from flodl_pipe.keyed.pick_keys import PickKeys

__all__ = ["integers", "uniform", "words"]

# That of the pick keys.
_DOMAIN = 0x91C5


def words(keys: PickKeys, count: int, device: torch.device | str, stream: int = 0) -> torch.Tensor:
    """Return ``count`` 32-bit random words per row: those of :meth:`PickKeys.words`.

    Args:
        keys: Keys of ``B`` rows.
        count: Words per row, at least 1.
        device: Where to compute them.
        stream: Which numbers of a transform's own, where it draws for several purposes.

    Returns:
        int64 tensor of shape ``(B, count)``, every element in ``[0, 2**32)``.
    """
    num_blocks = -(-count // 4)
    start = absorb(_DOMAIN, keys.seed, keys.epoch, keys.stream, stream)
    key = absorb_words(absorb_words(start, _on(keys.sample, device)), _on(keys.repeat, device))
    counter = torch.zeros((num_blocks, len(keys), 2), dtype=torch.int64, device=device)
    counter[..., 0] = torch.arange(num_blocks, device=device)[:, None]
    lanes = philox4x32(key.repeat(num_blocks), counter.view(-1, 2)).view(4, num_blocks, len(keys))
    return lanes.permute(2, 1, 0).reshape(len(keys), 4 * num_blocks)[:, :count].contiguous()


def uniform(keys: PickKeys, count: int, device: torch.device | str, stream: int = 0) -> torch.Tensor:
    """Return the numbers of :meth:`PickKeys.uniform`, float32, shape ``(B, count)``, on ``device``."""
    return (words(keys, count, device, stream) >> 8).to(torch.float32) * 2**-24


def integers(keys: PickKeys, high: int, count: int, device: torch.device | str, stream: int = 0) -> torch.Tensor:
    """Return the integers of :meth:`PickKeys.integers`, int64, shape ``(B, count)``, on ``device``.

    Raises:
        ValueError: if ``high`` is not in ``1 .. 2**32``.
    """
    if not 1 <= high <= 1 << 32:
        raise ValueError(f"high must be in 1 .. 2**32, got {high}")
    return ((words(keys, count, device, stream) * high) >> 32) & 0xFFFFFFFF


def _on(values: IndexArray, device: torch.device | str) -> torch.Tensor:
    """Return a copy on a device; the array may be read-only or a strided view."""
    return torch.tensor(np.ascontiguousarray(values), dtype=torch.int64, device=device)
