"""Crop, flips and scaling of pictures as one pass over arrays, in blocks that stay in the cache.

::

    rows  --pad-->  padded block  --windows-->  cut  --mirror-->  cut  --cast, multiply, add-->  out
    uint8           per thread                  uint8                                            float32

A line of a window is one element of as many bytes, so that a block's windows are one fancy index of short copies,
whatever their places. A flip before a crop is done after it: padding is the same on both sides, so only the window
moves. Every step is a NumPy call over a whole block, without the interpreter's lock, so reader threads run side by
side.

The results equal those of the torch transforms in turn, bit by bit: the same draws, and the same float32 operations in
the same order. Scaling is done last, on what is kept, unless zeros are padded to what is normalised already.

A batch of 512 pictures of 3 x 32 x 32 takes about 1.0 ms of a core for crop, flip and normalise, draws included (AMD
EPYC, 2 cores, 2026-11-30, ``tests/benchmarks/transforms.py``).

Shape letters: ``B`` rows, ``C`` channels, ``H`` height, ``W`` width.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from flodl_pipe.arrays import Array, BoolArray, IndexArray, WordArray
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.image_basic import (
    BYTE_SCALE,
    HorizontalFlip,
    Normalize,
    RandomCrop,
    ToFloat,
    VerticalFlip,
    chosen,
)
from flodl_pipe.transforms.image_checks import check_image, field_of_spec
from flodl_pipe.transforms.protocol import ArrayTransform, Transform

__all__ = ["FusedImagePass", "fuse"]

_Basic = ToFloat | Normalize | RandomCrop | HorizontalFlip | VerticalFlip
_Words = Mapping[int, WordArray]
_Step = tuple[np.ufunc, npt.NDArray[np.float32]]

# Smaller blocks would stay in an L2 cache of 1 MiB, but cost more in calls and, between threads, in handing over the
# interpreter's lock: of two threads, at 1 MiB three quarters of the rate, at 128 KiB a quarter.
_BLOCK_BYTES = 3 << 20
# Factors repeated for every pixel run faster than ones per channel, while they are small beside a block.
_PLANE_BYTES = 64 << 10


def fuse(transforms: Sequence[tuple[int, Transform]], spec: SampleSpec) -> ArrayTransform | None:
    """Return some transforms as one pass, or None where there is none.

    There is one when all are basic transforms of this package (``to_float``, ``normalize``, ``random_crop``, the two
    flips), each at most once, of the same field, and no field is ragged.

    Args:
        transforms: (stream number, transform) in their order. Each draws from ``keys.of_stream(stream number)``.
        spec: What the first is given.

    Raises:
        TransformError: if one of them cannot work on what it would be given.
    """
    basic = [(stream, transform) for stream, transform in transforms if isinstance(transform, _Basic)]
    kinds = {type(transform) for _, transform in basic}
    fields = {transform.field for _, transform in basic}
    if len(kinds) < len(transforms) or len(fields) != 1 or spec.is_ragged:
        return None
    return FusedImagePass(basic, spec, fields.pop())


@final
class _Padded(threading.local):
    """A block of padded pictures for each thread. What is never written stays zero."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.block = np.zeros(shape, dtype)


@final
class FusedImagePass:
    """Several basic transforms of one field in one pass; other fields are copied. See :func:`fuse`.

    Attributes:
        spec: The fields it makes.
        block_rows: Rows of a block.
        scratch_bytes: Most memory that a call takes beside its arguments, in each thread that calls at a time, without
            the draws (about 300 bytes for each row of the batch). Part of it stays with the thread.
    """

    def __init__(self, transforms: Sequence[tuple[int, _Basic]], spec: SampleSpec, name: str) -> None:
        """Take (stream number, transform) of one field, each kind at most once."""
        self._name = name
        self._others = tuple(other for other in spec.names if other != name)
        stored = field_of_spec(spec, name, "fused")
        _, self._height, self._width = check_image(stored, "fused")
        self._crop: tuple[int, RandomCrop] | None = None
        self._horizontal: tuple[int, HorizontalFlip] | None = None
        self._vertical: tuple[int, VerticalFlip] | None = None
        self._flips_before_crop: set[type[_Basic]] = set()
        self._scales_before_crop = False
        factors: list[_Step] = []
        for stream, transform in transforms:
            dtype = field_of_spec(spec, name, "fused").dtype
            spec = transform.output(spec)
            match transform:
                case ToFloat() if dtype == "uint8":
                    factors.append((np.multiply, np.full((1, 1, 1), BYTE_SCALE)))
                case Normalize():
                    factors += zip((np.multiply, np.add), transform.factors(dtype), strict=True)
                    self._scales_before_crop = self._crop is None
                case RandomCrop():
                    self._crop = stream, transform
                case HorizontalFlip():
                    self._horizontal = stream, transform
                case VerticalFlip():
                    self._vertical = stream, transform
            if isinstance(transform, HorizontalFlip | VerticalFlip) and self._crop is None:
                self._flips_before_crop.add(type(transform))
        self.spec = spec
        made = field_of_spec(spec, name, "fused")

        crop = self._crop[1] if self._crop else None
        self._pad = crop.padding if crop else 0
        self._is_reflected = crop is not None and crop.mode == "reflect"
        self._scales_before_crop &= self._pad > 0 and not self._is_reflected
        self._shape = check_image(made, "fused")
        self._cut_dtype = np.dtype(made.dtype if self._scales_before_crop else stored.dtype)
        self._steps = tuple(
            (step, _planes(factor, stored.shape if self._scales_before_crop else made.shape))
            for step, factor in factors
        )
        self._measure(stored.row_bytes, made.row_bytes)

    def _measure(self, stored_bytes: int, made_bytes: int) -> None:
        """Choose the size of a block, and say what it takes."""
        channels, height, width = self._shape
        padded = (channels, self._height + 2 * self._pad, self._width + 2 * self._pad)
        padded_bytes = int(np.prod(padded)) * self._cut_dtype.itemsize if self._pad else 0
        self.block_rows = max(1, _BLOCK_BYTES // max(stored_bytes, made_bytes, padded_bytes, 1))
        self._padded = _Padded((self.block_rows, *padded), self._cut_dtype.name) if self._pad else None
        cut_bytes = channels * height * width * self._cut_dtype.itemsize
        # The cut, and two copies of mirrored rows.
        self.scratch_bytes = self.block_rows * (padded_bytes + 3 * cut_bytes)

    def draw(self, keys: PickKeys) -> tuple[Array, ...]:
        """Return top and left of each row's window, whether it is mirrored and whether it is turned, ``(B,)`` each.

        See :meth:`flodl_pipe.transforms.protocol.ArrayTransform.draw`. What is not drawn is left out.
        """
        steps = (self._crop, self._horizontal, self._vertical)
        streams = [step[0] for step in steps if step is not None]
        words = dict(zip(streams, keys.first_words(streams), strict=True)) if streams else {}
        mirrored, turned = _flips(self._horizontal, words), _flips(self._vertical, words)
        places = () if self._crop is None else self._places(self._crop, words, mirrored, turned)
        return (*places, *(flips for flips in (mirrored, turned) if flips is not None))

    def apply(self, rows: Mapping[str, Array], draws: Sequence[Array], out: Mapping[str, Array]) -> None:
        """Write ``B`` transformed rows; see :class:`flodl_pipe.transforms.protocol.ArrayTransform`."""
        for name in self._others:
            np.copyto(out[name], rows[name])
        pictures, made = rows[self._name], out[self._name]
        drawn = iter(draws)
        places = None if self._crop is None else (next(drawn), next(drawn))
        mirrored = None if self._horizontal is None else next(drawn)
        turned = None if self._vertical is None else next(drawn)
        num_blocks = max(1, -(-len(pictures) // self.block_rows))
        block_rows = max(1, -(-len(pictures) // num_blocks))  # blocks of like size
        for first in range(0, len(pictures), block_rows):
            block = slice(first, first + block_rows)
            cut = pictures[block]
            if places is not None:
                cut = self._cut(cut, places[0][block], places[1][block])
            elif mirrored is not None or turned is not None:
                cut = cut.copy()
            if turned is not None:
                _turn(cut, turned[block])
            if mirrored is not None:
                _mirror(cut, mirrored[block])
            written = made[block]
            np.copyto(written, cut)
            if not self._scales_before_crop:
                self._scale(written)

    def _places(
        self, crop_step: tuple[int, RandomCrop], words: _Words, mirrored: BoolArray | None, turned: BoolArray | None
    ) -> tuple[IndexArray, IndexArray]:
        """Return top and left of each row's window in its padded picture, ``(B,)`` each."""
        stream, crop = crop_step
        tops, lefts = crop.offsets(words[stream], self._height, self._width)
        if turned is not None and VerticalFlip in self._flips_before_crop:
            tops = np.where(turned, self._height + 2 * self._pad - crop.size[0] - tops, tops)
        if mirrored is not None and HorizontalFlip in self._flips_before_crop:
            lefts = np.where(mirrored, self._width + 2 * self._pad - crop.size[1] - lefts, lefts)
        return tops, lefts

    def _cut(self, pictures: Array, tops: IndexArray, lefts: IndexArray) -> Array:
        """Return the windows of a block, a new array of shape ``(b, C, height, width)``."""
        channels, height, width = self._shape
        padded = pictures if self._padded is None else self._pad_block(pictures, self._padded.block)
        row, plane, line, item = padded.strides
        # All windows of all rows, each line of them one element: as many bytes, wherever they start.
        windows = np.ndarray(
            (len(pictures), padded.shape[2] - height + 1, padded.shape[3] - width + 1, channels, height),
            f"V{width * item}",
            padded,
            strides=(row, line, item, plane, line),
        )
        cut: Array = windows[np.arange(len(pictures)), tops, lefts].view(padded.dtype)
        return cut.reshape(len(pictures), channels, height, width)

    def _pad_block(self, pictures: Array, padded: Array) -> Array:
        """Fill this thread's block with padded pictures and return the whole block."""
        pad, height, width = self._pad, self._height, self._width
        filled = padded[: len(pictures)]
        inner = filled[..., pad : pad + height, pad : pad + width]
        if self._scales_before_crop:
            np.copyto(inner, pictures)
            self._scale(inner)
        else:
            # Lines as single elements again: twice as fast.
            line = f"V{width * padded.itemsize}"
            np.copyto(inner.view(line), pictures.view(line))
        if self._is_reflected:
            filled[..., :pad] = filled[..., 2 * pad : pad : -1]
            filled[..., pad + width :] = filled[..., pad + width - 2 : width - 2 : -1]
            filled[..., :pad, :] = filled[..., 2 * pad : pad : -1, :]
            filled[..., pad + height :, :] = filled[..., pad + height - 2 : height - 2 : -1, :]
        return padded

    def _scale(self, pictures: Array) -> None:
        # Infinite and missing pixels give what they give in torch, which does not warn of them.
        with np.errstate(over="ignore", invalid="ignore"):
            for step, factor in self._steps:
                step(pictures, factor, out=pictures)


def _flips(flip: tuple[int, HorizontalFlip | VerticalFlip] | None, words: _Words) -> BoolArray | None:
    return None if flip is None else chosen(words[flip[0]], flip[1].probability)


def _planes(factor: npt.NDArray[np.float32], shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return a factor for each pixel where that is small, else as it is."""
    planes = np.broadcast_to(factor, shape)
    return np.ascontiguousarray(planes) if planes.size * planes.itemsize <= _PLANE_BYTES else factor


def _turn(pictures: Array, chosen: BoolArray) -> None:
    """Mirror chosen rows top to bottom in place."""
    lines = pictures.view(f"V{pictures.shape[-1] * pictures.itemsize}")
    lines[chosen] = lines[chosen][:, :, ::-1]


def _mirror(pictures: Array, chosen: BoolArray) -> None:
    """Mirror chosen rows left to right in place."""
    if pictures.itemsize == 1 and pictures.shape[-1] % 8 == 0:
        # Eight bytes at a time: twice as fast.
        words = pictures.view(np.uint64)
        words[chosen] = words[chosen][..., ::-1].byteswap()
    else:
        pictures[chosen] = pictures[chosen][..., ::-1]
