"""Synthetic stand-ins for MNIST, Fashion-MNIST and CIFAR, in their true file formats under their published names.

They are drawn (:mod:`flodl_pipe.sources.drawings`), small, the same bytes on every machine, and called synthetic
wherever they are named: in the folder's name, in its manifest, and by ``plan``::

    <cache>/flodl_pipe/synthetic_mnist-1/
        manifest.json
        train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from flodl_pipe.arrays import ByteArray, IndexArray
from flodl_pipe.keyed.absorb import absorb
from flodl_pipe.sources.cifar import CIFAR10, CIFAR100, CifarLayout
from flodl_pipe.sources.drawings import CLOTHES, DIGITS, SHAPES, Shape, draw, integers, noise
from flodl_pipe.sources.idx import IDX_NAMES
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.sources.sample_folder import sample_folder

__all__ = ["SAMPLE_IMAGES", "sample_images", "sample_images_fact"]

SAMPLE_IMAGES = {
    "mnist": "synthetic digits, drawn: not MNIST",
    "fashion_mnist": "synthetic clothes, drawn: not Fashion-MNIST",
    "cifar10": "synthetic coloured shapes, drawn: not CIFAR-10",
    "cifar100": "synthetic coloured shapes, drawn: not CIFAR-100",
}
"""Kind -> what its sample is."""

_VERSION = 1
_IDX_COUNTS = {"train": 6000, "test": 1000}
_CIFAR_COUNTS = {"train": 2000, "test": 500}
_DEFLATE_BLOCK = 65_535

_COLOURS: ByteArray = np.array(
    [
        *((215, 40, 40), (235, 130, 30), (235, 215, 60), (240, 130, 175), (150, 95, 50)),
        *((60, 180, 80), (70, 205, 205), (70, 110, 235), (150, 85, 215), (230, 230, 235)),
    ],
    dtype=np.uint8,
)
"""Red, orange, yellow, pink, brown; green, cyan, blue, purple, white."""


def sample_images(kind: str) -> Path:
    """Return the folder of a sample's files, made now if it is not there or is damaged.

    Args:
        kind: One of ``SAMPLE_IMAGES``.

    Raises:
        SourceError: if the cache cannot be written.
    """
    what = SAMPLE_IMAGES[kind]
    about = {"version": _VERSION, "synthetic": True, "what": what}
    make: dict[str, Callable[[], Iterator[tuple[str, bytes]]]] = {
        "mnist": lambda: _idx_files(DIGITS, (40, 110), key=absorb(_VERSION, 1)),
        "fashion_mnist": lambda: _idx_files(CLOTHES, (-16, 32), key=absorb(_VERSION, 2)),
        "cifar10": lambda: _cifar_files(CIFAR10, key=absorb(_VERSION, 3)),
        "cifar100": lambda: _cifar_files(CIFAR100, key=absorb(_VERSION, 4)),
    }
    return sample_folder(f"synthetic_{kind}-{_VERSION}", f"sample data ({what})", make[kind], about)


def sample_images_fact(kind: str) -> Fact:
    """Return what to tell about the data: that it is a sample, and of what."""
    return Fact("sample data", SAMPLE_IMAGES[kind])


def _idx_files(shapes: tuple[Shape, ...], thickness: tuple[int, int], *, key: int) -> Iterator[tuple[str, bytes]]:
    for number, (split, count) in enumerate(_IDX_COUNTS.items()):
        split_key = absorb(key, number)
        labels = integers(split_key, 0, count, 0, len(shapes) - 1)
        images = draw(shapes, labels, side=28, thickness=thickness, key=split_key)
        # Ink is uneven and paper is clean, as in the originals.
        ink = 255 - (noise(split_key, 8, images.size).reshape(images.shape) >> 2)
        pixels = (images.astype(np.uint16) * ink >> 8).astype(np.uint8)
        image_name, label_name = IDX_NAMES[split]
        yield f"{image_name}.gz", _gzip(_idx(pixels))
        yield f"{label_name}.gz", _gzip(_idx(labels.astype(np.uint8)))


def _idx(array: ByteArray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 0x08, array.ndim, *array.shape) + array.tobytes()


def _gzip(content: bytes) -> bytes:
    """Pack without compression: what a compressor makes of the same bytes differs from machine to machine."""
    parts = [b"\x1f\x8b\x08\0\0\0\0\0\0\xff"]
    for start in range(0, len(content), _DEFLATE_BLOCK):
        block = content[start : start + _DEFLATE_BLOCK]
        is_last = start + _DEFLATE_BLOCK >= len(content)
        parts += [struct.pack("<BHH", is_last, len(block), len(block) ^ 0xFFFF), block]
    return b"".join([*parts, struct.pack("<II", zlib.crc32(content), len(content) & 0xFFFFFFFF)])


def _cifar_files(layout: CifarLayout, *, key: int) -> Iterator[tuple[str, bytes]]:
    for number, (split, count) in enumerate(_CIFAR_COUNTS.items()):
        records = _cifar_records(layout, count, key=absorb(key, number))
        names = layout.names[split]
        for name, part in zip(names, np.array_split(records, len(names)), strict=True):
            yield name, part.tobytes()


def _cifar_records(layout: CifarLayout, count: int, *, key: int) -> ByteArray:
    """Return records of coloured shapes; of 100 classes, ten are one shape and five a coarse class, in kin colours."""
    labels = integers(key, 0, count, 0, layout.num_classes - 1)
    shapes, colours = labels, integers(key, 9, count, 0, len(_COLOURS) - 1)
    if layout is CIFAR100:
        shapes, colours = np.divmod(labels, len(_COLOURS))
    records = np.empty((count, layout.record_bytes), dtype=np.uint8)
    for name, values in (("label", labels), ("coarse_label", labels // 5)):
        if name in layout.parts:
            layout.parts[name].view(records)[:] = values
    layout.parts["image"].view(records)[:] = _coloured(shapes, colours, key)
    return records


def _coloured(shapes: IndexArray, colours: IndexArray, key: int) -> ByteArray:
    """Return coloured shapes before dark, uneven grounds, uint8, shape ``(N, 3, 32, 32)``."""
    count = len(shapes)
    cover = draw(SHAPES, shapes, side=32, thickness=(-16, 64), key=key).astype(np.int32)[:, np.newaxis]
    ground = np.stack([integers(key, 10 + plane, count, 10, 90) for plane in range(3)], axis=1).astype(np.int32)
    fall = integers(key, 13, count, -40, 40).astype(np.int32)[:, np.newaxis]
    rows = (np.arange(32, dtype=np.int32) - 16) * fall // 32
    back = ground[:, :, np.newaxis, np.newaxis] + rows[:, np.newaxis, :, np.newaxis]
    front = _COLOURS[colours].astype(np.int32)[:, :, np.newaxis, np.newaxis]
    grain = noise(key, 14, count * 3 * 1024).reshape(count, 3, 32, 32).astype(np.int32) >> 4
    mixed = (front * cover + back * (255 - cover)) // 255 + grain - 8
    pictures: ByteArray = np.clip(mixed, 0, 255).astype(np.uint8)
    return pictures
