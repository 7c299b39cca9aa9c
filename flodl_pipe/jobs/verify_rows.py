"""Delivered batches as numbers that can be compared: what each row is, and a hash of each of its fields.

A row's hash covers the bytes of its tensors after collation and transforms. Rows that collation has padded are hashed
up to their own length (``attention_mask``), and zeros at a row's end do not count: how wide a padded batch is depends
on the rows that are together in it, which is not the stream's business. Nor is what fills the place of a row that is
marked invalid: its values are not looked at.

Shape letters: ``B`` rows of a batch, ``F`` fields.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
import torch

from flodl_pipe.arrays import BoolArray, IndexArray, WordArray
from flodl_pipe.batch.batch import Batch
from flodl_pipe.keyed.absorb import GOLDEN_GAMMA, absorb, absorb_words, mix_words

__all__ = ["Rows", "assemble", "batch_sums", "rows_of"]

_DOMAIN = 0x7E2F5
_MASK = "attention_mask"


@final
@dataclass(frozen=True)
class Rows:
    """The rows of one step.

    Attributes:
        samples: Sample of each row, int64, shape ``(B,)``.
        repeats: Repeat of each row, int64, shape ``(B,)``.
        valid: Whether it counts, bool, shape ``(B,)``.
        hashes: uint64, shape ``(B, F)``; 0 for a field that cannot be hashed, and for invalid rows.
        names: Names of the fields.
        skipped: Those that cannot be hashed: nested tensors.
    """

    samples: IndexArray
    repeats: IndexArray
    valid: BoolArray
    hashes: WordArray
    names: tuple[str, ...]
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.samples)

    def equal(self, other: "Rows") -> bool:
        """Return whether everything is the same."""
        return (
            self.names == other.names
            and np.array_equal(self.samples, other.samples)
            and np.array_equal(self.repeats, other.repeats)
            and np.array_equal(self.valid, other.valid)
            and np.array_equal(self.hashes, other.hashes)
        )


def rows_of(batch: Batch) -> Rows:
    """Return what a batch holds, as numbers."""
    keys = batch.pick_keys
    count = len(keys)
    mask = batch[_MASK] if batch.has(_MASK) and not batch[_MASK].is_nested else None
    skipped = tuple(name for name, tensor in batch.items() if tensor.is_nested)
    hashes = np.zeros((count, len(batch)), dtype=np.uint64)
    for place, (name, tensor) in enumerate(batch.items()):
        if name not in skipped:
            hashes[:, place] = _hashes(_within(tensor, mask), count, place)
    valid = np.ones(count, dtype=np.bool_) if batch.valid is None else batch.valid.cpu().numpy().copy()
    hashes[~valid] = 0
    return Rows(keys.sample, keys.repeat, valid, hashes, batch.names, skipped)


def assemble(parts: list[Rows], weights: list[float], num_rows: int) -> tuple[Rows, list[int]]:
    """Return the global batch that ranks hold together, in rank order, and the rank of each row.

    A rank whose share of a short last step is empty has one row of weight zero that stands for nothing: it is left out.

    Args:
        parts: The rows of each rank.
        weights: The weight of each rank's batch.
        num_rows: Rows that the step should have.
    """
    too_many = sum(map(len, parts)) - num_rows
    empty = [r for r, part in enumerate(parts) if len(part) == 1 and not part.valid[0] and not weights[r]]
    left_out = set(empty[len(empty) - too_many :]) if 0 < too_many <= len(empty) else set()
    kept = [(rank, part) for rank, part in enumerate(parts) if rank not in left_out]
    first = parts[0]
    together = Rows(
        np.concatenate([part.samples for _, part in kept]),
        np.concatenate([part.repeats for _, part in kept]),
        np.concatenate([part.valid for _, part in kept]),
        np.concatenate([part.hashes for _, part in kept]),
        first.names,
        first.skipped,
    )
    return together, [rank for rank, part in kept for _ in range(len(part))]


def batch_sums(rows: Rows, *, epoch: int, position: int) -> WordArray:
    """Return the sum over a step's rows of a hash of all that :class:`Rows` holds, uint64, shape ``(2,)``.

    Args:
        rows: The rows.
        epoch: Epoch number.
        position: Where the step begins.
    """
    count = len(rows)
    state = absorb_words(absorb(_DOMAIN, epoch), np.arange(position, position + count, dtype=np.uint64))
    for words in (rows.samples, rows.repeats, rows.valid, *rows.hashes.T):
        state = absorb_words(state, words.astype(np.uint64))
    second = mix_words(state * np.uint64(GOLDEN_GAMMA))
    total: WordArray = np.stack([state, second]).sum(axis=1, dtype=np.uint64)
    return total


def _within(tensor: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return a padded field with zeros beyond each row's length; another field as it is."""
    if mask is None or tensor.shape[: mask.dim()] != mask.shape:
        return tensor
    wide = mask.bool().reshape(*mask.shape, *(1,) * (tensor.dim() - mask.dim()))
    return torch.where(wide, tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device))


def _hashes(tensor: torch.Tensor, count: int, field: int) -> WordArray:
    """Return one word per row, from the bytes of a tensor of ``B`` rows, or of the one row without a batch axis."""
    raw = tensor.detach().cpu().contiguous().reshape(count, -1)
    data = raw.view(torch.uint8).numpy() if raw.numel() else np.zeros((count, 0), dtype=np.uint8)
    rest = -data.shape[1] % 8
    if rest:
        data = np.concatenate([data, np.zeros((count, rest), dtype=np.uint8)], axis=1)
    words = np.ascontiguousarray(data).view(np.uint64)
    total = np.full(count, absorb(_DOMAIN, field), dtype=np.uint64)
    total += (words * _odd(words.shape[1])).sum(axis=1, dtype=np.uint64)
    return mix_words(total)


@lru_cache(maxsize=32)
def _odd(count: int) -> WordArray:
    """Return the first ``count`` of an endless row of keyed odd numbers."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA)
    found = mix_words(steps + np.uint64(absorb(_DOMAIN, 1))) | np.uint64(1)
    found.setflags(write=False)
    return found
