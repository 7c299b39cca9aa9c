"""The row hashes of :mod:`flodl_pipe.keyed.digest` computed on a device, where the stored rows lie.

What a row is, its epoch, position, sample and repeat, is absorbed on the host and comes along as one word a row; the
bytes are hashed where they are, and two words come back. Words are int64 of the same bits: products and sums wrap, and
shifts are masked (:mod:`flodl_pipe.keyed.philox_torch`). It is integer arithmetic that every device has, so the values
are the same bit by bit.

Shape letter: ``B`` rows.
"""

from collections.abc import Iterable
from functools import lru_cache

import torch

from flodl_pipe.keyed.absorb import GOLDEN_GAMMA
from flodl_pipe.keyed.digest import content_multipliers
from flodl_pipe.keyed.philox_torch import absorb_words, mix_words, signed

__all__ = ["content_words", "row_hash_sums"]

_WORD_BYTES = 8
# Rows are multiplied in groups of no more bytes, so that what a product takes stays small beside a batch.
_GROUP_BYTES = 64 << 20


def content_words(rows: torch.Tensor) -> torch.Tensor:
    """Return one word for the bytes of each row: the sum of its 64-bit words times odd constants, plus its length.

    Args:
        rows: One stored field, uint8, shape ``(B, row_bytes)``.

    Returns:
        New int64 tensor of shape ``(B,)`` on the same device.
    """
    num_rows, row_bytes = rows.shape
    num_words = -(-row_bytes // _WORD_BYTES)
    if not num_words or not num_rows:
        return torch.full((num_rows,), row_bytes, dtype=torch.int64, device=rows.device)
    multipliers = _multipliers(num_words, rows.device)
    step = max(1, _GROUP_BYTES // (num_words * _WORD_BYTES))
    groups = [rows[first : first + step] for first in range(0, num_rows, step)]
    sums = [(_words(group, num_words) * multipliers).sum(dim=1) for group in groups]
    return (sums[0] if len(sums) == 1 else torch.cat(sums)) + row_bytes


def row_hash_sums(
    states: torch.Tensor, fields: Iterable[torch.Tensor], valid: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the sums of the hashes of rows: of :func:`flodl_pipe.keyed.digest.row_hashes`, along the rows.

    Args:
        states: What :func:`flodl_pipe.keyed.digest.row_states` returned for the rows, as int64, shape ``(B,)``.
        fields: The stored fields on the same device, in order, each uint8 of shape ``(B, row_bytes)``.
        valid: Which rows count, bool, shape ``(B,)``; None: all.

    Returns:
        New int64 tensor of shape ``(2,)``: the words of the two sums.
    """
    state = states
    for rows in fields:
        state = absorb_words(state, content_words(rows))
    hashes = torch.stack([state, mix_words(state * signed(GOLDEN_GAMMA))])
    if valid is not None:
        hashes = hashes * valid.to(torch.int64)
    return hashes.sum(dim=1)


def _words(rows: torch.Tensor, num_words: int) -> torch.Tensor:
    """Return rows as 64-bit words, the last one filled with zeros: int64, shape ``(B, num_words)``."""
    row_bytes = rows.shape[1]
    if row_bytes != num_words * _WORD_BYTES:
        rows = torch.nn.functional.pad(rows, (0, num_words * _WORD_BYTES - row_bytes))
    elif rows.storage_offset() % _WORD_BYTES or not rows.is_contiguous():
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows.view(torch.int64)


@lru_cache(maxsize=8)
def _multipliers(num_words: int, device: torch.device) -> torch.Tensor:
    values = [signed(word) for word in content_multipliers(num_words).tolist()]
    return torch.tensor(values, dtype=torch.int64, device=device)
