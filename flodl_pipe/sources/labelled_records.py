"""Pictures with their labels: fixed-size records whose integer labels are delivered as int64 and checked.

A stored row is one record, picture and labels together, so that one gather takes all of a sample. Records that are
decoded into memory are checked when they are built; those that stay in files in everything that is read of them.

Shape letters: ``K`` records asked for, ``B`` rows of a buffer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.ordering import Ordering
from flodl_pipe.sources.protocol import CopiedFields, Extents, Fact, Fingerprint
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.storage.planar import PlanarBlobs
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_count

__all__ = ["LabelRule", "LabelledRecords"]


@final
@dataclass(frozen=True)
class LabelRule:
    """The rule ``0 <= label < num_classes`` for one field of one byte.

    Attributes:
        field: Name of the field, for messages.
        offset: Where the label lies in a record.
        num_classes: Number of classes.
        remedy: What to do about a label outside.
    """

    field: str
    offset: int
    num_classes: int
    remedy: str


@final
class LabelledRecords:
    """Fixed-size records with labels; a :class:`flodl_pipe.sources.protocol.BundledSource`.

    Args:
        blobs: The records' files, or decoded records in memory.
        kind: Kind of the source, for its fingerprint's summary.
        record_bytes: Bytes of a record.
        parts: The fields by name, in the order a batch holds them.
        labels: Names of the fields that are labels: integers among them are delivered as int64.
        rules: What labels are checked for.
        facts: What ``plan`` tells.
        rebuild: Makes the same source again, in a process that gets this one pickled: what is held in memory does not
            travel. None where nothing is held.

    Raises:
        SourceError: if a file is empty or no whole number of records; if the records are in memory, also if a label
            is outside its classes.
    """

    def __init__(
        self,
        blobs: Blobs,
        *,
        kind: str,
        record_bytes: int,
        parts: Mapping[str, RecordPart],
        labels: Sequence[str],
        rules: Sequence[LabelRule] = (),
        facts: tuple[Fact, ...] = (),
        rebuild: Callable[[], "LabelledRecords"] | None = None,
    ) -> None:
        self._blobs, self._kind, self._facts, self._rebuild = blobs, kind, facts, rebuild
        self._records = Records(blobs, record_bytes=record_bytes, parts=parts)
        check = _LabelCheck(blobs, record_bytes, tuple(rules))
        self.held_bytes = blobs.num_bytes if isinstance(blobs, PlanarBlobs) else 0
        self._check: _LabelCheck | None = None if self.held_bytes else check
        inner = self._records.extents
        assert inner is not None
        if isinstance(blobs, PlanarBlobs):
            check.require_all(blobs)
        self.spec = self._records.spec
        self.delivered = SampleSpec(
            tuple(
                Field(field.name, "int64" if field.name in labels and _is_integer(field) else field.dtype, field.shape)
                for field in self._records.delivered
            )
        )
        self.thread_safe = True
        self.delivery = _delivery(self._records.delivery, tuple(labels))
        self.ordering: Ordering = None
        self.tiers_off: str | None = None
        self.extents: Extents | None = inner if self._check is None else _CheckedExtents(inner, self._check)

    def __len__(self) -> int:
        return len(self._records)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        return super().__reduce_ex__(protocol) if self._rebuild is None else (self._rebuild, ())

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Read records into rows of ``out``; see :meth:`flodl_pipe.sources.protocol.Source.read_into`."""
        self._records.read_into(indices, rows, out)
        if self._check is not None and len(rows):
            self._check.require_rows(out["record"], rows, indices)

    def buffers(self, num_rows: int) -> dict[str, Array]:
        """Return rows for :meth:`read_into`; see :meth:`flodl_pipe.sources.protocol.BundledSource.buffers`."""
        return self._records.buffers(num_rows)

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Copy the pictures and widen the labels; see :meth:`flodl_pipe.sources.protocol.Source.deliver`."""
        self._records.deliver(stored, out)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of records and layout, which is the same in files and in memory."""
        found = self._records.fingerprint(full=full)
        fields = ", ".join(map(str, self.delivered))
        return Fingerprint(f"{self._kind}: {format_count(len(self))} samples, {fields}", found.digest, full)

    def check_unchanged(self) -> None:
        """Compare the files with what they were; see :class:`flodl_pipe.sources.protocol.BundledSource`."""
        self._blobs.check_unchanged()

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells: where the data comes from, its files and classes."""
        return self._facts

    def close(self) -> None:
        """Close the files open in this process; a later read opens them again."""
        self._blobs.close()


def _delivery(records: object, labels: tuple[str, ...]) -> object:
    if isinstance(records, CopiedFields):
        return replace(records, kind=("labelled", records.kind, labels))
    return "labelled", records, labels


def _is_integer(field: Field) -> bool:
    return np.dtype(field.dtype).kind in "iu"


@final
class _LabelCheck:
    """Rules, and where a record that breaks one lies."""

    def __init__(self, blobs: Blobs, record_bytes: int, rules: tuple[LabelRule, ...]) -> None:
        self._blobs, self._record_bytes, self._rules = blobs, record_bytes, rules

    def require_rows(self, records: ByteArray, rows: IndexArray, indices: IndexArray) -> None:
        """Check the records just read to ``rows`` of a buffer.

        Raises:
            SourceError: naming file, record and label.
        """
        for rule in self._rules:
            labels = records[rows, rule.offset]
            if labels.max() >= rule.num_classes:
                bad = int(np.argmax(labels >= rule.num_classes))
                raise self._error(rule, int(indices[bad]), int(labels[bad]))

    def require_all(self, blobs: PlanarBlobs) -> None:
        """Check the labels of all records held in memory.

        Raises:
            SourceError: naming file, record and label.
        """
        for rule in self._rules:
            labels = blobs.column(rule.offset)
            if len(labels) and labels.max() >= rule.num_classes:
                bad = int(np.argmax(labels >= rule.num_classes))
                raise self._error(rule, bad, int(labels[bad]))

    def require_run(self, run: ByteArray, start: int) -> None:
        """Check the labels in a run of bytes that begins at byte ``start`` of the joined range.

        Raises:
            SourceError: naming file, record and label.
        """
        for rule in self._rules:
            first = -(-(start - rule.offset) // self._record_bytes)  # first record whose label is in the run
            labels = run[first * self._record_bytes + rule.offset - start :: self._record_bytes]
            if len(labels) and labels.max() >= rule.num_classes:
                bad = int(np.argmax(labels >= rule.num_classes))
                raise self._error(rule, first + bad, int(labels[bad]))

    def _error(self, rule: LabelRule, sample: int, label: int) -> SourceError:
        counts = self._blobs.sizes // self._record_bytes
        ends = np.cumsum(counts)
        file = int(np.searchsorted(ends, sample, side="right"))
        record = sample - int(ends[file] - counts[file])
        return SourceError(
            f"{self._blobs.names[file]}, record {format_count(record)}: {rule.field} {label} is no class, 0 .. "
            f"{rule.num_classes - 1}; {rule.remedy}"
        )


@final
class _CheckedExtents:
    """Records as runs of bytes, labels checked; a :class:`flodl_pipe.sources.protocol.Extents`."""

    def __init__(self, inner: Extents, check: _LabelCheck) -> None:
        self._inner, self._check = inner, check
        self.memory = inner.memory
        self.num_bytes, self.row_bytes = inner.num_bytes, inner.row_bytes

    def starts(self, indices: IndexArray) -> IndexArray:
        """Return the first byte of each record in the joined range, int64, shape ``(K,)``."""
        return self._inner.starts(indices)

    def read(self, start: int, out: ByteArray) -> None:
        """Fill ``out`` with the joined bytes from ``start`` on; the labels among them are checked."""
        self._inner.read(start, out)
        self._check.require_run(out, start)
