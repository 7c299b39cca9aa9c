"""The first difference between a combination and the reference, and where it begins."""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.jobs.verify_combinations import Combination, Setting
from flodl_pipe.jobs.verify_rows import Rows

__all__ = ["TOLERANCE", "Difference", "compare_rows", "compare_values"]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 2e-2}
"""Floating-point results may differ by this, relative to the larger of 1 and the value: libraries round differently
when rows are cut differently. Everything else is exact."""


@final
@dataclass(frozen=True)
class Difference:
    """What differs, and where.

    Attributes:
        what: In words: row, sample, field, byte.
        where: In words: combination, leg, epoch, step; empty before :meth:`at`.
        cause: The exception behind it, if it is one.
    """

    what: str
    where: str = ""
    cause: BaseException | None = None

    def at(
        self, combination: Combination, setting: Setting, leg: int, leg_start: int, epoch: int, step: int
    ) -> "Difference":
        """Return the difference with its place."""
        how = str(combination)
        if leg:
            how += f", resumed for the {('second', 'third', 'fourth')[leg - 1]} leg at step {leg_start} as {setting}"
        return replace(self, where=f"{how}: epoch {epoch}, step {step}")

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def compare_rows(wanted: Rows, found: Rows, owners: list[int]) -> Difference | None:
    """Return the first difference in what the rows are; None if only their values can differ.

    Args:
        wanted: The reference's.
        found: The combination's, over all ranks.
        owners: Rank of each row of ``found``.
    """
    if wanted.names != found.names:
        return Difference(f"the batch has fields {', '.join(found.names)}, expected {', '.join(wanted.names)}")
    if len(wanted) != len(found):
        return Difference(f"the ranks have {len(found)} rows together, expected {len(wanted)}")
    differs = (wanted.samples != found.samples) | (wanted.repeats != found.repeats) | (wanted.valid != found.valid)
    if not differs.any():
        return None
    row = int(np.argmax(differs))
    mine, theirs = (
        f"sample {rows.samples[row]} repeat {rows.repeats[row]}{'' if rows.valid[row] else ' (marked invalid)'}"
        for rows in (found, wanted)
    )
    return Difference(f"row {row} of the global batch ({_of(owners, row)}): got {mine}, expected {theirs}")


def compare_values(
    wanted: Batch, found: list[Batch], rows: Rows, wanted_rows: Rows, owners: list[int]
) -> tuple[Difference | None, float]:
    """Return the first difference in values, or None and the largest that is within the tolerance.

    Args:
        wanted: The reference's batch.
        found: The batch of each rank.
        rows: What they hold together.
        wanted_rows: What the reference's holds.
        owners: Rank of each row.
    """
    largest = 0.0
    for row in np.flatnonzero((rows.hashes != wanted_rows.hashes).any(axis=1)).tolist():
        rank = owners[row]
        inside = row - owners.index(rank)
        for place in np.flatnonzero(rows.hashes[row] != wanted_rows.hashes[row]).tolist():
            name = rows.names[place]
            one, other = _row(wanted, place, row), _row(found[rank], place, inside)
            close = _distance(one, other)
            if close is None:
                return Difference(
                    f"row {row} of the global batch ({_of(owners, row)}), sample {rows.samples[row]}, field {name!r}: "
                    f"{_first_byte(one, other)}"
                ), largest
            largest = max(largest, close)
    return None, largest


def _row(batch: Batch, place: int, row: int) -> torch.Tensor:
    """Return a row of a field; of a sample without a batch axis, all there is."""
    tensor = batch.values()[place]
    return tensor[row] if tensor.shape[:1] == (batch.size,) else tensor


def _of(owners: list[int], row: int) -> str:
    return f"rank {owners[row]}, its row {row - owners.index(owners[row])}"


def _distance(one: torch.Tensor, other: torch.Tensor) -> float | None:
    """Return by how much two floating-point rows differ, relative to 1 or the value; None if by too much."""
    allowed = TOLERANCE.get(one.dtype)
    if allowed is None or one.dtype != other.dtype or one.shape != other.shape:
        return None
    a, b = one.detach().cpu().double(), other.detach().cpu().double()
    same = (a == b) | (a.isnan() & b.isnan())
    if same.all():
        return 0.0
    distance = ((a - b).abs() / a.abs().clamp(min=1.0))[~same].max().item()
    return distance if distance <= allowed else None


def _first_byte(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.dtype != other.dtype or (one.shape != other.shape and one.dim() < 1):
        return f"got {other.dtype} {tuple(other.shape)}, expected {one.dtype} {tuple(one.shape)}"
    a, b = (_bytes(tensor) for tensor in (one, other))
    width = min(len(a), len(b))
    differs = a[:width] != b[:width]
    shapes = "" if one.shape == other.shape else f" (shapes {tuple(other.shape)} and {tuple(one.shape)})"
    if not differs.any():
        return f"got {len(b):,} bytes, expected {len(a):,}{shapes}"
    at = int(np.argmax(differs))
    return f"byte {at:,} of {len(a):,} is the first to differ: got 0x{b[at]:02x}, expected 0x{a[at]:02x}{shapes}"


def _bytes(tensor: torch.Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, dtype=np.uint8)
