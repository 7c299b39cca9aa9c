"""Slabs of device memory with rows of stored fields, and the torch work that moves rows out of them and into them.

A slab holds consecutive ranks, one uint8 tensor ``(rows, row_bytes)`` for each stored field. Rows are moved as the
widest integers that a row is a whole number of: for the copy kernels an element is an element, however wide.

Shape letters: ``B`` rows of a batch, ``H`` of them that are held.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from flodl_pipe.arrays import IndexArray
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.devices.protocol import Device, Stream

__all__ = ["Admission", "GatherPlan", "Slab", "copy_in", "gather"]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@final
class Slab:
    """Memory for the rows of ranks ``first`` to ``first + num_rows - 1``.

    Args:
        device: Where.
        spec: The stored fields.
        stream: The stream whose work the memory is for.
        first: First rank.
        num_rows: Number of ranks, at least 1.

    Attributes:
        fields: For each stored field a uint8 tensor of shape ``(num_rows, row_bytes)``.

    Raises:
        DeviceMemoryError: if the device has not memory enough; then none is kept.
    """

    def __init__(self, device: Device, spec: SampleSpec, stream: Stream, first: int, num_rows: int) -> None:
        self.first, self.num_rows = first, num_rows
        self.num_bytes = num_rows * spec.row_bytes
        self.fields: dict[str, torch.Tensor] = {}
        for field in spec:
            size = num_rows * field.row_bytes
            memory = device.allocate(size, stream) if size else torch.empty(0, dtype=torch.uint8)
            self.fields[field.name] = memory.view(num_rows, field.row_bytes)

    def drop(self) -> None:
        """Let go of its memory, whoever still holds the slab."""
        self.fields = {}

    @property
    def is_dropped(self) -> bool:
        """Whether its memory is gone."""
        return not self.fields

    @property
    def end(self) -> int:
        """The rank after the last one."""
        return self.first + self.num_rows

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Those of its tensors that take memory."""
        return [tensor for tensor in self.fields.values() if tensor.numel()]


@final
@dataclass(frozen=True, eq=False)
class GatherPlan:
    """How the rows of a batch come together from what is held and what has to be uploaded.

    Attributes:
        num_rows: ``B``.
        missing: Which rows of the batch have to be uploaded, in this order: int64, ascending.
        index: Numbers that the device needs for it, int64, 1-D; may be empty. Upload them with the rows.
        slabs: Where held rows come from: slab, and how many rows.
        is_ordered: Whether held rows, slab by slab, followed by the uploaded ones are in order already.
    """

    num_rows: int
    missing: IndexArray
    index: IndexArray
    slabs: tuple[tuple[Slab, int], ...]
    is_ordered: bool

    @property
    def num_hits(self) -> int:
        """``H``: rows that are held."""
        return self.num_rows - len(self.missing)

    @property
    def is_void(self) -> bool:
        """Whether memory that it counts on is gone: the pool shrank meanwhile."""
        return any(slab.is_dropped for slab, _ in self.slabs)

    @classmethod
    def of(cls, ranks: IndexArray, held: IndexArray, missing: IndexArray, slabs: Sequence[Slab]) -> "GatherPlan":
        """Plan a batch.

        Args:
            ranks: Rank of each row, int64, shape ``(B,)``.
            held: Rows that are held, int64, shape ``(H,)``, ascending.
            missing: The others, ascending.
            slabs: All slabs, ascending.
        """
        num_rows = len(ranks)
        if not len(held):
            return cls(num_rows, missing, np.empty(0, dtype=np.int64), (), is_ordered=True)
        held, counts = _by_slab(held, ranks, slabs)
        firsts = np.repeat(np.array([slab.first for slab in slabs], dtype=np.int64), counts)
        index = ranks[held] - firsts
        order = np.concatenate([held, missing]) if len(missing) else held
        is_ordered = bool((order == np.arange(num_rows)).all())
        if not is_ordered:
            places = np.empty(num_rows, dtype=np.int64)
            places[order] = np.arange(num_rows)
            index = np.concatenate([index, places])
        used = tuple((slab, count) for slab, count in zip(slabs, counts.tolist(), strict=True) if count)
        return cls(num_rows, missing, index, used, is_ordered)


@final
@dataclass(frozen=True, eq=False)
class Admission:
    """Uploaded rows that a pool takes in.

    Attributes:
        ranks: Their ranks, int64, slab by slab.
        index: Numbers that the device needs for it, int64, 1-D: for each slab the rows of the upload, then the rows of
            the slab. May be empty. Upload them with the rows.
        slabs: Where they go: slab, and how many rows.
        run: Where rows and ranks are both runs, which goes without numbers: first row of the upload; else None.
        is_whole: Whether rows are the first ones of the upload, in order.
    """

    ranks: IndexArray
    index: IndexArray
    slabs: tuple[tuple[Slab, int], ...]
    run: int | None
    is_whole: bool

    @property
    def num_rows(self) -> int:
        """How many rows are taken in."""
        return len(self.ranks)

    @classmethod
    def of(cls, ranks: IndexArray, rows: IndexArray, slabs: Sequence[Slab]) -> "Admission":
        """Plan to take in rows of an upload.

        Args:
            ranks: Distinct ranks that lie in slabs, int64, shape ``(K,)``.
            rows: Row of the upload of each, int64, shape ``(K,)``, ascending.
            slabs: All slabs, ascending.
        """
        order, counts = _by_slab(np.arange(len(ranks), dtype=np.int64), ranks, slabs)
        ranks, rows = ranks[order], rows[order]
        used = tuple((slab, count) for slab, count in zip(slabs, counts.tolist(), strict=True) if count)
        if len(ranks) and _is_run(ranks) and _is_run(rows):
            return cls(ranks, np.empty(0, dtype=np.int64), used, int(rows[0]), is_whole=False)
        pieces, at = [np.empty(0, dtype=np.int64)], 0
        for slab, count in used:
            pieces += [rows[at : at + count], ranks[at : at + count] - slab.first]
            at += count
        is_whole = bool((rows == np.arange(len(rows))).all())
        return cls(ranks, np.concatenate(pieces), used, None, is_whole)


def gather(
    plan: GatherPlan, index: torch.Tensor, uploaded: Mapping[str, torch.Tensor], device: torch.device
) -> dict[str, torch.Tensor]:
    """Return all rows of a batch that has some held rows: torch work on the current stream.

    Args:
        plan: The batch.
        index: Its numbers, on the device.
        uploaded: For each stored field the missing rows in order, uint8, shape ``(B - H, row_bytes)``.
        device: Where the result lies.

    Returns:
        For each stored field a new uint8 tensor of shape ``(B, row_bytes)``.
    """
    assert len(index) == len(plan.index), f"{len(index)} numbers for a plan of {len(plan.index)}"
    found = {}
    for name, some in plan.slabs[0][0].fields.items():
        row_bytes = some.shape[1]
        rows = torch.empty((plan.num_rows, row_bytes), dtype=torch.uint8, device=device)
        if row_bytes:
            at = 0
            for slab, count in plan.slabs:
                kept, out = _words(slab.fields[name]), _words(rows[at : at + count])
                torch.index_select(kept, 0, index[at : at + count], out=out)
                at += count
            if len(plan.missing):
                assert len(uploaded[name]) == len(plan.missing), "rows of another upload"  # one row would be repeated
                rows[at:].copy_(uploaded[name])
            if not plan.is_ordered:
                rows = _words(rows).index_select(0, index[at:]).view(torch.uint8)
        found[name] = rows
    return found


def copy_in(
    device: Device, stream: Stream, admission: Admission, index: torch.Tensor, uploaded: Mapping[str, torch.Tensor]
) -> None:
    """Enqueue the copy of rows of an upload into slabs.

    Args:
        device: The device.
        stream: Where.
        admission: Which rows, and where to.
        index: Its numbers, on the device.
        uploaded: For each stored field the rows of the upload, uint8, shape ``(U, row_bytes)``.

    Raises:
        DeviceMemoryError: if the device has no memory left for rows on their way; those before are copied then.
    """
    assert len(index) == len(admission.index), f"{len(index)} numbers for an admission of {len(admission.index)}"
    at = 0
    for slab, count in admission.slabs:
        for name, kept in slab.fields.items():
            if not kept.numel():
                continue
            fresh = uploaded[name]
            if admission.run is not None:
                _copy_run(
                    device, stream, fresh[admission.run + at :][:count], kept, int(admission.ranks[at]) - slab.first
                )
                continue
            rows, places = index[2 * at : 2 * at + count], index[2 * at + count : 2 * (at + count)]
            if not (admission.is_whole and len(fresh) == count):
                fresh = _select(device, stream, fresh, rows)
            _scatter(device, stream, fresh, kept, places)
        at += count


def _copy_run(device: Device, stream: Stream, rows: torch.Tensor, kept: torch.Tensor, place: int) -> None:
    target = kept[place : place + len(rows)]
    device.enqueue(stream, lambda: target.copy_(rows), reads=[rows], writes=[target])


def _select(device: Device, stream: Stream, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return device.compute(stream, lambda: _words(rows).index_select(0, index).view(torch.uint8), reads=[rows, index])


def _scatter(device: Device, stream: Stream, rows: torch.Tensor, kept: torch.Tensor, places: torch.Tensor) -> None:
    def work() -> None:
        size = min(_word_bytes(rows), _word_bytes(kept))
        kept.view(_WORDS[size]).index_copy_(0, places, rows.view(_WORDS[size]))

    device.enqueue(stream, work, reads=[rows, places], writes=[kept])


def _word_bytes(rows: torch.Tensor) -> int:
    return math.gcd(8, rows.shape[1], rows.storage_offset())


def _words(rows: torch.Tensor) -> torch.Tensor:
    """Return bytes ``(n, row_bytes)`` as the widest integers that they can be seen as."""
    return rows.view(_WORDS[_word_bytes(rows)])


def _by_slab(rows: IndexArray, ranks: IndexArray, slabs: Sequence[Slab]) -> tuple[IndexArray, IndexArray]:
    """Return rows sorted by the slab of their rank, otherwise in the order they had, and how many each slab has."""
    if len(slabs) == 1:
        return rows, np.array([len(rows)], dtype=np.int64)
    ends = np.array([slab.end for slab in slabs], dtype=np.int64)
    numbers = np.searchsorted(ends, ranks[rows], side="right")
    return rows[np.argsort(numbers, kind="stable")], np.bincount(numbers, minlength=len(slabs))


def _is_run(values: IndexArray) -> bool:
    return bool((np.diff(values) == 1).all())
