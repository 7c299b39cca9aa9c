"""CIFAR-10 and CIFAR-100 in their binary version: records of labels and a picture.

::

    CIFAR-10    label, 3,072 pixels                 the planes R, G and B of 32 x 32, row after row
    CIFAR-100   coarse label, label, 3,072 pixels

The files are read into memory when the source is built, or record by record as they are asked for; rows, digests and
fingerprints are the same. The Python version, pickles, is recognised and refused: unpickling runs what a file says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.data_folder import DataFolder, read_head, refuse_archive
from flodl_pipe.sources.labelled_records import LabelledRecords, LabelRule
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.sources.records import RecordPart
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.storage.planar import PlanarBlobs, cut_planes
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_bytes, format_count

__all__ = ["CIFAR10", "CIFAR100", "CifarLayout", "cifar_files", "open_cifar"]

NUM_COARSE_CLASSES = 20
_SHAPE = (3, 32, 32)
_CHUNK_RECORDS = 1024


@final
@dataclass(frozen=True)
class CifarLayout:
    """What a set's files are called and how a record is laid out.

    Attributes:
        kind: Name of the set.
        title: The same as people write it.
        names: Split -> published names of its files.
        num_classes: Classes of ``label``.
        parts: The fields by name, in the order a batch holds them.
    """

    kind: str
    title: str
    names: dict[str, tuple[str, ...]]
    num_classes: int
    parts: dict[str, RecordPart]

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        return sum(part.num_bytes for part in self.parts.values())


CIFAR10 = CifarLayout(
    "cifar10",
    "CIFAR-10",
    {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)},
    10,
    {"image": RecordPart(1, "uint8", _SHAPE), "label": RecordPart(0, "uint8")},
)
CIFAR100 = CifarLayout(
    "cifar100",
    "CIFAR-100",
    {"train": ("train.bin",), "test": ("test.bin",)},
    100,
    {"image": RecordPart(2, "uint8", _SHAPE), "label": RecordPart(1, "uint8"), "coarse_label": RecordPart(0, "uint8")},
)


def cifar_files(layout: CifarLayout, folder: DataFolder, split: str) -> list[str]:
    """Return the addresses of a split's files in a folder, by their published names.

    Raises:
        SourceError: naming every file that is missing, or saying that the folder holds the Python version.
    """
    names = layout.names[split]
    missing = [name for name in names if folder.lacks(name)]
    if missing:
        pickles = [stem for stem in (name.removesuffix(".bin") for name in missing) if stem in folder.entries]
        if pickles:
            raise _is_pickled(folder.join(pickles[0]), layout)
        whole = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        raise folder.missing(missing, f"split {split} of {layout.title} is {whole}")
    return [folder.join(name) for name in names]


def open_cifar(
    layout: CifarLayout,
    files: Sequence[str],
    *,
    in_memory: bool,
    num_classes: int | None = None,
    notes: tuple[Fact, ...] = (),
) -> LabelledRecords:
    """Open binary batches, of any number of records each.

    Args:
        layout: ``CIFAR10`` or ``CIFAR100``.
        files: Paths or addresses, in order.
        in_memory: Read them now; else each record as it is asked for.
        num_classes: When set, a label outside ``0 .. num_classes - 1`` (or a coarse label outside ``0 .. 19``) is an
            error: now if the records are read now, otherwise when the record is.
        notes: Facts about where the files come from, put before the others.

    Raises:
        SourceError: if a file is missing, empty, cut, packed, pickled or of another layout, or a label is outside.
    """
    blobs = open_blobs(files)
    for blob in range(len(blobs.names)):
        _require_batch(blobs, blob, layout)
    return _build(layout, blobs, num_classes, notes, in_memory)


def _build(
    layout: CifarLayout, blobs: Blobs, num_classes: int | None, notes: tuple[Fact, ...], in_memory: bool
) -> LabelledRecords:
    rules = [] if num_classes is None else [_rule(layout, "label", num_classes)]
    if num_classes is not None and "coarse_label" in layout.parts:
        rules.append(_rule(layout, "coarse_label", NUM_COARSE_CLASSES))
    return LabelledRecords(
        _load(blobs, layout) if in_memory else blobs,
        kind=layout.kind,
        record_bytes=layout.record_bytes,
        parts=layout.parts,
        labels=["label", "coarse_label"],
        rules=rules,
        facts=(
            *notes,
            Fact("files", f"{len(blobs.names)}, first {blobs.names[0]}"),
            Fact("classes", "not checked" if num_classes is None else format_count(num_classes)),
        ),
        rebuild=partial(_build, layout, blobs, num_classes, notes, in_memory) if in_memory else None,
    )


def _load(blobs: Blobs, layout: CifarLayout) -> PlanarBlobs:
    """Read all files, field by field: each field of all records is one plane."""
    sizes, record_bytes = blobs.sizes.tolist(), layout.record_bytes
    parts = sorted(layout.parts.values(), key=lambda part: part.offset)
    try:
        joined = np.empty(sum(sizes), dtype=np.uint8)
    except MemoryError as error:
        raise SourceError(
            f"{blobs.names[0]}: the {len(sizes)} files take {format_bytes(sum(sizes))} of memory, which this machine "
            "does not give; read them from disk with source=cifar10_disk"
        ) from error
    counts = [size // record_bytes for size in sizes]
    planes = cut_planes(joined, sum(counts), [part.num_bytes for part in parts])
    chunk = np.empty((_CHUNK_RECORDS, record_bytes), dtype=np.uint8)
    end = 0
    for blob, count in enumerate(counts):
        for first in range(0, count, _CHUNK_RECORDS):
            records = chunk[: count - first]
            blobs.read_range(blob, first * record_bytes, records.reshape(-1))
            for plane, part in zip(planes, parts, strict=True):
                plane[end : end + len(records)] = records[:, part.offset : part.offset + part.num_bytes]
            end += len(records)
    return PlanarBlobs(planes, counts, blobs.names, origin=blobs)


def _rule(layout: CifarLayout, field: str, num_classes: int) -> LabelRule:
    remedy = "the file is shifted, or of another set; for classes of your own set source.num_classes, null for any"
    return LabelRule(field.replace("_", " "), layout.parts[field].offset, num_classes, remedy)


def _require_batch(blobs: Blobs, blob: int, layout: CifarLayout) -> None:
    """Check that a file can be a binary batch, by its first bytes and its size."""
    name, size = blobs.names[blob], int(blobs.sizes[blob])
    head = read_head(blobs, blob)
    if _looks_pickled(head):
        raise _is_pickled(name, layout)
    refuse_archive(name, head)
    if not size:
        raise SourceError(f"{name}: empty: 0 bytes hold no record; copy or download it again")
    if not size % layout.record_bytes:
        return
    other = CIFAR100 if layout is CIFAR10 else CIFAR10
    if not size % other.record_bytes:
        hint = f"it is a whole number of {other.record_bytes}: records of {other.title}, for source={other.kind}"
    else:
        hint = f"{size % layout.record_bytes} bytes are left over: it is truncated; copy or download it again"
    raise SourceError(
        f"{name}: its size of {format_count(size)} bytes is no multiple of {layout.record_bytes}, a record of "
        f"{layout.title}; {hint}"
    )


def _looks_pickled(head: bytes) -> bool:
    """Return whether a file begins like a pickle: a record cannot, its first byte being a label below 100."""
    return (head[:1] == b"\x80" and head[1:2] in (b"\1", b"\2", b"\3", b"\4", b"\5")) or head.startswith(
        (b"(dp", b"}q")
    )


def _is_pickled(name: str, layout: CifarLayout) -> SourceError:
    archive = f"{layout.title.lower()}-binary.tar.gz"
    return SourceError(
        f"{name}: it is the Python version of {layout.title}, a pickle, which is refused: unpickling runs whatever the "
        f"file says; get the binary version ({archive}, whose files end in .bin), or run job=fetch"
    )
