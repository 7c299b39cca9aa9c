"""Files of fixed-size records: a header to skip, then records of one layout declared by the user.

The stored row is the record as it lies in the file. Its fields are typed views of those bytes at their offsets, which
need not be aligned, so delivering them is one strided copy per field.

Shape letters: ``K`` records asked for, ``B`` rows of a buffer.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import ConfigError, SourceError
from flodl_pipe.sources.containers import CONTAINER_HEAD_BYTES, refuse_container
from flodl_pipe.sources.joined import JoinedBytes
from flodl_pipe.sources.ordering import Ordering
from flodl_pipe.sources.protocol import CopiedField, CopiedFields, Extents, Fact, Fingerprint
from flodl_pipe.sources.row_table import RowTable
from flodl_pipe.storage.listing import list_files
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_count

__all__ = ["RecordExtents", "RecordPart", "Records"]

_logger = logging.getLogger("flodl_pipe")

_SUFFIXES = (".bin",)
_KINDS = "biuf"


@final
@dataclass(frozen=True)
class RecordPart:
    """Where one field lies in a record.

    Attributes:
        offset: First byte, counted from the start of the record.
        dtype: NumPy name of an element's type, little endian: booleans, integers and floats.
        shape: Shape of the field; ``()`` for a single number.
    """

    offset: int
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes it takes in a record."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    def view(self, record: Array) -> Array:
        """Return this field of records ``(*lead, record_bytes)`` uint8 as ``(*lead, *shape)``, without a copy."""
        part = record[..., self.offset : self.offset + self.num_bytes]
        if part.strides[-1] != 1:
            part = np.ascontiguousarray(part)
        stored = "uint8" if self.dtype == "bool" else self.dtype
        return part.view(np.dtype(stored).newbyteorder("<")).reshape((*record.shape[:-1], *self.shape))


@final
class Records:
    """Fixed-size records; a :class:`flodl_pipe.sources.protocol.BundledSource`.

    Args:
        blobs: The files, in order.
        record_bytes: Bytes of a record, padding included.
        parts: The fields by name, in the order a batch holds them. They may overlap and leave gaps.
        header_bytes: Bytes to skip at the start of each file.
        notes: Facts about where the files come from, put before the others.

    Raises:
        ConfigError: if a field does not fit the record or has a type that is not a number.
        SourceError: if a file is empty or no whole number of records.
    """

    def __init__(
        self,
        blobs: Blobs,
        *,
        record_bytes: int,
        parts: Mapping[str, RecordPart],
        header_bytes: int = 0,
        notes: tuple[Fact, ...] = (),
    ) -> None:
        if record_bytes < 1 or header_bytes < 0:
            raise ConfigError.at(
                "source.record_bytes", f"needs at least 1 and a header of 0 or more, got {record_bytes}"
            )
        _require_fit(parts, record_bytes)
        counts = [
            _count(name, size, header_bytes, record_bytes)
            for name, size in zip(blobs.names, blobs.sizes.tolist(), strict=True)
        ]
        self._blobs, self._parts, self._notes = blobs, dict(parts), notes
        self._record_bytes, self._header_bytes = record_bytes, header_bytes
        self._counts = np.array(counts, dtype=np.int64)
        headers = np.full(len(counts), header_bytes, dtype=np.int64)
        self._rows = RowTable(self._counts, headers, record_bytes)
        self._joined = JoinedBytes(blobs, headers, self._counts * record_bytes)
        self.spec = SampleSpec((Field("record", "uint8", (record_bytes,)),))
        self.delivered = SampleSpec(
            tuple(Field(name, np.dtype(part.dtype).name, tuple(part.shape)) for name, part in parts.items())
        )
        self.thread_safe = True
        self.ordering: Ordering = None
        self.tiers_off: str | None = None
        self.held_bytes = 0
        self.delivery: object = _delivery("records", self._parts)
        self.extents: Extents | None = RecordExtents(
            self._joined, RowTable(self._counts, self._joined.starts, record_bytes), record_bytes
        )

    @classmethod
    def open(
        cls,
        path: str | Sequence[str],
        *,
        record_bytes: int,
        parts: Mapping[str, RecordPart],
        header_bytes: int = 0,
    ) -> "Records":
        """Find the files and count their records.

        Args:
            path: A file, a folder (its ``.bin`` files), a glob pattern, or a list of them.
            record_bytes: See the class, like ``parts`` and ``header_bytes``.
            parts: See the class.
            header_bytes: See the class.

        Raises:
            ConfigError: if the layout is impossible.
            SourceError: if files are missing, unreadable, empty, packed, or no whole number of records.
        """
        listing = list_files(path, suffixes=_SUFFIXES)
        notes: tuple[Fact, ...] = ()
        if listing.foreign:
            left_out = ", ".join(listing.foreign)
            notes = (Fact("not record files", left_out),)
            _logger.info("left out beside the record files: %s", left_out)
        blobs = open_blobs(listing.files)
        for blob, (name, size) in enumerate(zip(blobs.names, blobs.sizes.tolist(), strict=True)):
            head = np.empty(min(size, CONTAINER_HEAD_BYTES), dtype=np.uint8)
            blobs.read_range(blob, 0, head)
            refuse_container(name, head.tobytes())
        return cls(blobs, record_bytes=record_bytes, parts=parts, header_bytes=header_bytes, notes=notes)

    def __len__(self) -> int:
        return len(self._rows)

    def shard_starts(self) -> IndexArray:
        """Return the first record of each file that has one, int64."""
        held = self._counts[self._counts > 0]
        return np.cumsum(held) - held

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Read records into rows of ``out``; see :meth:`flodl_pipe.sources.protocol.Source.read_into`."""
        if not len(indices):
            return
        files, offsets = self._rows.locate(indices)
        self._blobs.read_rows(files, offsets, self._record_bytes, rows, out["record"])

    def buffers(self, num_rows: int) -> dict[str, Array]:
        """Return rows for :meth:`read_into`; see :meth:`flodl_pipe.sources.protocol.BundledSource.buffers`."""
        return {"record": self._blobs.buffer(num_rows * self._record_bytes).reshape(num_rows, self._record_bytes)}

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Copy the fields out of stored records; see :meth:`flodl_pipe.sources.protocol.Source.deliver`."""
        for name, part in self._parts.items():
            value = part.view(stored["record"])
            if part.dtype == "bool":
                np.not_equal(value, 0, out=out[name])  # any byte but 0 is true, and stays a valid boolean
            else:
                np.copyto(out[name], value)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of records and layout; see :class:`flodl_pipe.sources.protocol.Fingerprint`."""
        fields = ", ".join(map(str, self.delivered))
        summary = (
            f"records: {len(self._counts)} files, {format_count(len(self))} records of {self._record_bytes} bytes, "
            f"fields {fields}"
        )
        parts = [(name, part.offset, part.dtype, tuple(part.shape)) for name, part in self._parts.items()]
        return self._joined.fingerprint(summary, f"records/1|{self._record_bytes}|{parts}", full=full)

    def check_unchanged(self) -> None:
        """Compare the files with what they were; see :class:`flodl_pipe.sources.protocol.BundledSource`."""
        self._blobs.check_unchanged()

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells: files, records, layout, and bytes of a record that are in no field."""
        used = np.zeros(self._record_bytes, dtype=np.bool_)
        for part in self._parts.values():
            used[part.offset : part.offset + part.num_bytes] = True
        header = f" after a header of {self._header_bytes}" if self._header_bytes else ""
        return (
            *self._notes,
            Fact("files", f"{len(self._blobs.names)}, first {self._blobs.names[0]}"),
            Fact("records", f"{format_count(len(self))} of {self._record_bytes} bytes{header}"),
            Fact("bytes of a record in no field", format_count(int((~used).sum()))),
        )

    def close(self) -> None:
        """Close the files open in this process; a later read opens them again."""
        self._blobs.close()


@final
class RecordExtents:
    """Records as runs of bytes of all files joined; a :class:`flodl_pipe.sources.protocol.Extents`."""

    def __init__(self, joined: JoinedBytes, rows: RowTable, record_bytes: int) -> None:
        self._joined, self._rows = joined, rows
        self.num_bytes = joined.num_bytes
        self.memory = joined.memory
        self.planes = joined.planes
        self.row_bytes = record_bytes

    def starts(self, indices: IndexArray) -> IndexArray:
        """Return the first byte of each record in the joined range, int64, shape ``(K,)``."""
        return self._rows.locate(indices)[1]

    def read(self, start: int, out: ByteArray) -> None:
        """Fill ``out`` with the joined bytes from ``start`` on."""
        self._joined.read(start, out)


def _delivery(kind: str, parts: Mapping[str, RecordPart]) -> object:
    """Return what is equal for two sources of equal specs only if they deliver alike."""
    if any(part.dtype == "bool" for part in parts.values()):  # made of their bytes, not copied
        return kind, tuple(parts.items())
    return CopiedFields(kind, tuple(CopiedField(name, part.offset, part.dtype) for name, part in parts.items()))


def _require_fit(parts: Mapping[str, RecordPart], record_bytes: int) -> None:
    for name, part in parts.items():
        key, dtype = f"source.fields.{name}", np.dtype(part.dtype)
        if dtype.kind not in _KINDS or dtype.name != part.dtype:
            raise ConfigError.at(f"{key}.dtype", f"must name a boolean, integer or float type, got {part.dtype!r}")
        if part.offset < 0 or min(part.shape, default=1) < 1 or part.offset + part.num_bytes > record_bytes:
            raise ConfigError.at(
                key,
                f"offset {part.offset} + {part.num_bytes} bytes of {part.dtype} {tuple(part.shape)} do not lie within "
                f"a record of {record_bytes} bytes; correct offset, dtype, shape or source.record_bytes",
            )


def _count(name: str, size: int, header_bytes: int, record_bytes: int) -> int:
    if size <= header_bytes:
        raise SourceError(
            f"{name}: empty: {format_count(size)} bytes hold no record after a header of {header_bytes}; remove the "
            "file or copy it again"
        )
    count, rest = divmod(size - header_bytes, record_bytes)
    if rest:
        raise SourceError(
            f"{name}: {format_count(size)} bytes are no multiple of record_bytes={record_bytes} after a header of "
            f"{header_bytes}: {rest} bytes left over; the file is cut, or source.record_bytes or source.header_bytes "
            "is another"
        )
    return count
