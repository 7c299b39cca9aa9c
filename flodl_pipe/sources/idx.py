"""The MNIST family: pictures and labels in a pair of IDX files, decoded into memory when the source is built.

A stored row is a picture and its label, one after the other; held are all pictures, and all labels. Delivered are

========= ========================= =================================================
field     in the file               in a batch
========= ========================= =================================================
``image`` ``N x H x W``             ``(1, H, W)``, a channel axis is added; same type
``image`` any other                 its shape without ``N``; same type
``label`` integers, ``N``           int64 ``()``
``label`` integers, ``N x ...``     int64, its shape without ``N``
``label`` floats                    same type
========= ========================= =================================================
"""

from dataclasses import replace
from functools import partial

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.data_folder import DataFolder
from flodl_pipe.sources.idx_format import IdxFile
from flodl_pipe.sources.labelled_records import LabelledRecords
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.sources.records import RecordPart
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.storage.planar import PlanarBlobs, cut_planes
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_bytes, format_count

__all__ = ["IDX_NAMES", "open_idx", "published_idx"]

IDX_NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
"""Split -> published names of images and labels, without the ``.gz`` they may end in."""


def published_idx(folder: DataFolder, split: str) -> tuple[str, str]:
    """Return the addresses of a split's images and labels in a folder, by their published names.

    Each file may lie there with or without ``.gz``; where both do, the plain one is read. In a remote folder they are
    named with ``.gz``, as the set is published.

    Raises:
        SourceError: naming every file that is missing.
    """
    names = IDX_NAMES[split]
    if folder.is_remote:
        images, labels = (f"{name}.gz" for name in names)
        return folder.join(images), folder.join(labels)
    missing = [name for name in names if folder.lacks(name) and folder.lacks(f"{name}.gz")]
    if missing:
        raise folder.missing(missing, f"split {split} is the files {names[0]} and {names[1]}, each plain or .gz")
    images, labels = (f"{name}.gz" if folder.lacks(name) else name for name in names)
    return folder.join(images), folder.join(labels)


def open_idx(
    images: str, labels: str, *, kind: str = "idx", num_classes: int | None = None, notes: tuple[Fact, ...] = ()
) -> LabelledRecords:
    """Read a pair of IDX files into memory.

    Args:
        images: Path or address of the pictures, plain or gzip-compressed whatever it is called.
        labels: The same of the labels.
        kind: Kind of the source, for its fingerprint's summary.
        num_classes: When set, labels must be one integer each, in ``0 .. num_classes - 1``.
        notes: Facts about where the files come from, put before the others.

    Raises:
        SourceError: if a file is missing, unreadable or damaged, the two do not belong together, a label is outside
            its classes, or there is no memory for them.
    """
    return _decode(open_blobs([images, labels]), kind, num_classes, notes)


def _decode(blobs: Blobs, kind: str, num_classes: int | None, notes: tuple[Fact, ...]) -> LabelledRecords:
    images, labels = IdxFile(blobs, 0), IdxFile(blobs, 1)
    _require_pair(images, labels, num_classes)
    num_bytes = images.dims[0] * (images.row_bytes + labels.row_bytes)
    try:
        joined = np.empty(num_bytes, dtype=np.uint8)
    except (MemoryError, ValueError) as error:
        raise SourceError(
            f"{images.name}: {images.shape} {images.dtype} and its labels take {format_bytes(num_bytes)} of memory, "
            "which this machine does not give; use a machine with more, or cut the files into smaller ones"
        ) from error
    planes = cut_planes(joined, images.dims[0], (images.row_bytes, labels.row_bytes))
    labels.read_into(planes[1])
    label = RecordPart(images.row_bytes, labels.dtype, labels.dims[1:])
    if num_classes is not None:
        _require_classes(replace(label, offset=0).view(planes[1]), labels.name, num_classes)
    images.read_into(planes[0])
    shape = images.dims[1:] if len(images.dims) != 3 else (1, *images.dims[1:])
    return LabelledRecords(
        PlanarBlobs(planes, [images.dims[0]], [images.name], origin=blobs),
        kind=kind,
        record_bytes=images.row_bytes + labels.row_bytes,
        parts={"image": RecordPart(0, images.dtype, shape), "label": label},
        labels=["label"],
        facts=(*notes, *_facts(images, labels, num_classes)),
        rebuild=partial(_decode, blobs, kind, num_classes, notes),
    )


def _facts(images: IdxFile, labels: IdxFile, num_classes: int | None) -> tuple[Fact, ...]:
    return (
        Fact("images", f"{images.shape} {images.dtype}, {images.name}"),
        Fact("labels", f"{labels.shape} {labels.dtype}, {labels.name}"),
        Fact("classes", "not checked" if num_classes is None else format_count(num_classes)),
    )


def _require_pair(images: IdxFile, labels: IdxFile, num_classes: int | None) -> None:
    """Check two headers against each other, before anything else is read."""
    if len(images.dims) < 2:
        raise SourceError(
            f"{images.name}: its magic {images.magic} says 1 dimension ({images.shape} {images.dtype}): labels, and "
            "images were expected (magic 2051 for MNIST's); are images and labels exchanged?"
        )
    single = len(labels.dims) == 1 and labels.dtype not in ("float32", "float64")
    if num_classes is not None and not single:
        raise SourceError(
            f"{labels.name}: its magic {labels.magic} says {labels.dtype} with {len(labels.dims)} dimensions "
            f"({labels.shape}), and source.num_classes={num_classes} needs one integer class for each image (magic "
            "2049 for MNIST's labels); give the file of the labels, or set source.num_classes=null to take it as it is"
        )
    if images.dims[0] != labels.dims[0]:
        raise SourceError(
            f"{images.name} has {format_count(images.dims[0])} images and {labels.name} {format_count(labels.dims[0])} "
            "labels, a mismatch: the counts must be equal; give two files of one set"
        )


def _require_classes(labels: Array, name: str, num_classes: int) -> None:
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        bad = int(np.argmax(outside))
        raise SourceError(
            f"{name}: label {labels[bad]} of sample {format_count(bad)} is no class, 0 .. {num_classes - 1}; correct "
            "source.num_classes (EMNIST's letters need 27), set it to null to take any label, or get the file again"
        )
