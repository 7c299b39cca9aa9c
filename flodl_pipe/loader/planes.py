"""Resident samples field by field: a batch is gathered one field at a time, from where only that field lies.

Where a source's ``deliver`` only copies fields out of its stored rows, and those fields are all of a row, each field of
all samples is kept as one *plane*, ``N x width`` bytes. ``numpy.take`` copies rows of a plane to memory that is there
already, without the interpreter, for as many steps as are gathered together. (Taking from a strided view of stored rows
would copy the view first, all of it.)

Planes are the source's own where it holds its data so, else they are loaded like any resident set. Stored rows, for
digests, are put together from the planes.
"""

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.batch.spec import Field
from flodl_pipe.loader.stores import CHUNK_BYTES, reserve
from flodl_pipe.sources.delivery import delivery_of
from flodl_pipe.sources.protocol import CopiedFields, Extents, HasPlanes, Source

__all__ = ["PlaneStore", "held_planes", "plane_store"]

# NumPy keeps the interpreter in most operations on no more elements than this, indexing and copying among them, but
# never in `take`.
_NUMPY_KEEPS_GIL = 500


def held_planes(extents: Extents) -> tuple[ByteArray, ...] | None:
    """Return the planes that a source holds itself, if it does."""
    return extents.planes if isinstance(extents, HasPlanes) else None


def plane_store(source: Source, extents: Extents, *, needs_rows: bool = False) -> "PlaneStore | None":
    """Return planes for a source, or None where stored rows serve better, or nothing else will do.

    Args:
        source: The samples.
        extents: Where their bytes lie.
        needs_rows: Whether stored rows are what will be gathered; only planes that the source holds itself are used
            then.
    """
    held, copied = held_planes(extents), _copied(source)
    if held is not None:
        return PlaneStore(source, extents, held, copied)
    if (
        needs_rows
        or copied is None
        or extents.memory is not None
        or extents.num_bytes != len(source) * extents.row_bytes
    ):
        return None
    # Many elements to widen: from stored rows that is done in the processor's cache just as well.
    if not all(field.is_copy or not field.field.shape for field in copied) or not _tile(copied, extents.row_bytes):
        return None
    planes = [
        reserve(len(source) * field.num_bytes).reshape(len(source), field.num_bytes)
        for field in sorted(copied, key=lambda field: field.offset)
    ]
    return PlaneStore(source, extents, planes, copied, is_loaded=False)


@final
class _Copied:
    """A delivered field, and where a stored row has it."""

    def __init__(self, field: Field, offset: int, dtype: str) -> None:
        self.field = field
        self.offset = offset
        self.stored = np.dtype(dtype).newbyteorder("<")
        self.num_bytes = self.stored.itemsize * int(np.prod(field.shape, dtype=np.int64))
        self.is_copy = self.stored == np.dtype(field.dtype)


def _copied(source: Source) -> list[_Copied] | None:
    delivery = delivery_of(source)
    if not isinstance(delivery, CopiedFields):
        return None
    return [
        _Copied(field, copied.offset, copied.dtype)
        for field, copied in zip(source.delivered, delivery.fields, strict=True)
    ]


def _tile(fields: Sequence[_Copied], row_bytes: int) -> bool:
    """Return whether fields are all of a row, each byte of it in one of them."""
    ordered = sorted(fields, key=lambda field: field.offset)
    ends = [0, *(field.offset + field.num_bytes for field in ordered)]
    return ends[-1] == row_bytes and all(field.offset == end for field, end in zip(ordered, ends, strict=False))


@final
class PlaneStore:
    """Planes of a source's samples; a :class:`flodl_pipe.loader.stores.Store`.

    Args:
        source: The samples.
        extents: Where their bytes lie.
        planes: Consecutive columns of the stored rows, ``num_rows x width`` each.
        copied: The delivered fields; None where ``deliver`` does more than copy.
        is_loaded: Whether the planes hold the samples already.

    Attributes:
        delivers: Whether :meth:`deliver` may be called.
        opaque: For each delivered field, whether it wants its rows as opaque items.
    """

    def __init__(
        self,
        source: Source,
        extents: Extents,
        planes: Sequence[ByteArray],
        copied: Sequence[_Copied] | None,
        *,
        is_loaded: bool = True,
    ) -> None:
        (self._stored,) = source.spec.fields
        self._extents = extents
        self._planes = planes
        self._num_samples = len(source)
        # Rows that follow each other without a gap, as many as samples: sample `i` is row `i`.
        self._is_identity = extents.num_bytes == len(source) * extents.row_bytes
        self._chunk_rows = max(1, CHUNK_BYTES // extents.row_bytes)
        self._num_chunks = 0 if is_loaded else -(-len(source) // self._chunk_rows)
        self._ends = np.cumsum([plane.shape[1] for plane in planes]).tolist()
        self._items = [_opaque(plane) for plane in planes]
        self._fields = self._match(copied)
        self.delivers = bool(self._fields)
        self.opaque = [field.is_copy for field in self._fields]

    def chunks(self) -> int:
        """Return how many chunks there are to load."""
        return self._num_chunks

    def load(self, chunk: int) -> None:
        """Load one chunk: read stored rows, and take them apart."""
        first = chunk * self._chunk_rows
        num_rows = min(self._chunk_rows, self._num_samples - first)
        size = self._extents.row_bytes
        records = np.empty((num_rows, size), dtype=np.uint8)
        self._extents.read(first * size, records.reshape(-1))
        for plane, (begin, end) in zip(self._planes, pairwise([0, *self._ends]), strict=True):
            plane[first : first + num_rows] = records[:, begin:end]

    def rows(self, indices: IndexArray) -> IndexArray:
        """Return the row of the planes that each sample is.

        Raises:
            IndexError: if an index is no sample.
        """
        if not self._is_identity:
            return self._extents.starts(indices) // self._extents.row_bytes
        # `deliver` takes whatever it is given. Seen as unsigned, a negative number is a huge one.
        if len(indices) and int(indices.view(np.uint64).max()) >= self._num_samples:
            raise IndexError(f"samples {indices.min()} .. {indices.max()} are not all in 0 .. {self._num_samples - 1}")
        return indices

    def gather(self, indices: IndexArray) -> dict[str, Array]:
        """Return copies of the stored rows of ``K`` samples, in order."""
        rows = self.rows(indices)
        out = np.empty((len(rows), self._extents.row_bytes), dtype=np.uint8)
        for items, end in zip(self._items, self._ends, strict=True):
            target = out[:, end - items.itemsize : end].view(items.dtype)
            target[:, 0] = items[rows]
        return {self._stored.name: out.view(self._stored.dtype).reshape(len(rows), *self._stored.shape)}

    def deliver(self, rows: IndexArray, out: Sequence[Array]) -> None:
        """Copy samples to delivered rows, step after step.

        Args:
            rows: What :meth:`rows` returned for them, shape ``(num_steps * num_rows,)``.
            out: For each delivered field one array of shape ``(num_steps, num_rows)`` with opaque items of a row's
                size, or ``(num_steps, num_rows, *field.shape)``, as :attr:`opaque` says; each step contiguous.
        """
        for field, target in zip(self._fields, out, strict=True):
            field.deliver(rows, target)

    def _match(self, copied: Sequence[_Copied] | None) -> "list[_Plane]":
        """Return the plane of each delivered field; none at all where a field is not one plane."""
        by_place = {
            (end - items.itemsize, items.itemsize): items for items, end in zip(self._items, self._ends, strict=True)
        }
        found = []
        for field in copied or ():
            items = by_place.get((field.offset, field.num_bytes))
            if items is None:
                return []
            found.append(_Plane(items, field))
        return found


def _opaque(plane: ByteArray) -> Array:
    return plane.view(f"V{plane.shape[1]}").reshape(len(plane))


@final
class _Plane:
    """A delivered field and its plane: one opaque item for each row."""

    def __init__(self, items: Array, copied: _Copied) -> None:
        self._items = items
        self._stored = copied.stored
        self._kept = threading.local()
        self.is_copy = copied.is_copy

    def deliver(self, rows: IndexArray, out: Array) -> None:
        # Clipped, not checked: a check would make `take` copy twice, and the rows were checked.
        num_rows = len(rows)
        if self.is_copy and (len(out) == 1 or out.flags.c_contiguous):
            self._items.take(rows, out=out.reshape(-1), mode="clip")
            return
        # Several steps are taken together and then copied apart: a second copy, out of the processor's cache, costs
        # less than a wait for the interpreter after every step.
        if num_rows > _NUMPY_KEEPS_GIL:
            taken = self._scratch(num_rows)
            self._items.take(rows, out=taken, mode="clip")
        else:
            taken = self._items[rows]
        np.copyto(out, (taken if self.is_copy else taken.view(self._stored)).reshape(out.shape))

    def _scratch(self, num_rows: int) -> Array:
        """Return items of this thread's own to take to."""
        kept: Array | None = getattr(self._kept, "items", None)
        if kept is None or len(kept) < num_rows:
            kept = self._kept.items = np.empty(num_rows, self._items.dtype)
        return kept[:num_rows]
