"""Random resized crop: a random rectangle of a row's image, resampled to one size.

Rectangles come from :mod:`flodl_pipe.transforms.image_boxes`. Resampling is bilinear, once along the rows and once
along the columns, each a choice of the two nearest and their weighted sum. Where an output pixel looks is a fraction of
integers (``2 x size`` is its denominator), so the pixels it takes are the same on every device. uint8 images stay
integers throughout: weights in steps of ``1/2048``, one rounding at the end.

Rule, as torchvision documents it for its transform of the name: an area uniform between two parts of the image's, an
aspect (width over height) log-uniform between two ratios, ten tries, and where none fits the largest central
rectangle whose aspect is in range. Pixel centres are aligned (``align_corners=False``) and the rectangle's edge is
repeated outwards, that is, it is cropped before it is resized. Antialiasing is left out: where a crop is more than
twice as large as ``size``, pixels between the two nearest have no say, unlike in torchvision's default.

Source: the rule is from Szegedy et al., "Going Deeper with Convolutions" (CVPR 2015).

Shape letters: ``B`` rows, ``C`` channels, ``H`` and ``W`` height and width of the image, ``S`` of the result.
"""

from dataclasses import replace
from typing import final

import numpy as np
import torch

from flodl_pipe.arrays import IndexArray
from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.arguments import require_name, require_range, require_size
from flodl_pipe.transforms.image_boxes import MAX_RATIO, NUM_TRIES, BoxSizes, first_fit, place
from flodl_pipe.transforms.image_checks import (
    check_image,
    field_of_batch,
    field_of_spec,
    on_device,
    with_spec_field,
    with_tensors,
)
from flodl_pipe.transforms.protocol import Scope

__all__ = ["RandomResizedCrop"]

_KIND = "random_resized_crop"
_PLACE = 1  # stream of the words that place a rectangle
# Two weights and a pixel make 11 + 11 + 8 bits: an int32 holds every sum.
_WEIGHT_BITS = 11
_ONE = 1 << _WEIGHT_BITS
_MAX_SIZE = 1 << 16


@final
class RandomResizedCrop:
    """Takes a random part of each image and resamples it to one size.

    uint8 or float32 images ``(B, C, H, W)`` in, the same type ``(B, C, *size)`` out. uint8 is exact on every device
    and in any batch, and within one level of the rounded true value. float32 is exact in any batch; between devices
    it differs by at most 1e-6 of the range of the values.

    Args:
        size: Height and width of the result, or one number for both.
        scale: Least and most part of the image's area to take, 0 to 1.
        ratio: Least and most width over height, 0.001 to 1000.
        field: The field with the images.

    Raises:
        ConfigError: if an argument is of another type, or out of its range.
    """

    scope: Scope = "row"

    def __init__(
        self,
        size: int | tuple[int, int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        field: str = "image",
    ) -> None:
        size = require_size(size, f"{_KIND}.size", _MAX_SIZE)
        scale = require_range(scale, 0.0, 1.0, f"{_KIND}.scale")
        ratio = require_range(ratio, 1 / MAX_RATIO, MAX_RATIO, f"{_KIND}.ratio")
        field = require_name(field, f"{_KIND}.field")
        self.tag = f"{_KIND}({size=}, {scale=}, {ratio=}, {field=})"
        self._size, self._ratio, self._field = size, ratio, field
        self._sizes = BoxSizes(scale, ratio)

    def output(self, spec: SampleSpec) -> SampleSpec:
        field = field_of_spec(spec, self._field, _KIND)
        channels, _, _ = check_image(field, _KIND)
        return with_spec_field(spec, replace(field, shape=(channels, *self._size)))

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:
        images, field = field_of_batch(batch, self._field, _KIND)
        _, height, width = check_image(field, _KIND)
        boxes = on_device(self._boxes(keys, height, width), images.device)
        return with_tensors(batch, {self._field: _resample(images, boxes, self._size)})

    def _boxes(self, keys: PickKeys, height: int, width: int) -> IndexArray:
        """Return top, left, height and width of each row's rectangle, int64, shape ``(4, B)``."""
        words = keys.words(2, stream=_PLACE)
        wide, high = self._sizes.draw(keys.uniform(2 * NUM_TRIES), height * width)
        found, (high, wide) = first_fit((high > 0) & (high <= height) & (wide > 0) & (wide <= width), high, wide)
        central_high, central_wide = self._central(height, width)
        high, wide = np.where(found, high, central_high), np.where(found, wide, central_wide)
        top = np.where(found, place(words[:, 0], height - high), (height - high) // 2)
        left = np.where(found, place(words[:, 1], width - wide), (width - wide) // 2)
        return np.stack([top, left, high, wide])

    def _central(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the largest rectangle whose aspect is in range, at least a pixel each way."""
        least, most = self._ratio
        if width / height < least:
            return min(max(round(width / least), 1), height), width
        if width / height > most:
            return height, min(max(round(height * most), 1), width)
        return height, width


def _resample(images: torch.Tensor, boxes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return each row's box of the images, ``(B, C, *size)``; boxes are ``(4, B)`` as drawn."""
    top, left, high, wide = boxes
    num_rows, channels, height, width = images.shape
    integer = images.dtype == torch.uint8
    # Whole lines are picked first: one index for a line of pixels. Only the second pass has one for a pixel.
    lines = images.reshape(num_rows * channels * height, width)
    first = (torch.arange(num_rows * channels, device=images.device) * height).view(num_rows, channels, 1)
    above, below, weight = _taps(top, high, size[0], integer=integer)
    near, far = (
        lines.index_select(0, (first + line[:, None, :]).view(-1)).view(num_rows, channels, size[0], width)
        for line in (above, below)
    )
    stretched = _between(near, far, weight[:, None, :, None])
    before, behind, weight = _taps(left, wide, size[1], integer=integer)
    shape = (num_rows, channels, *size)
    near, far = (stretched.gather(3, column[:, None, None, :].expand(shape)) for column in (before, behind))
    result = _between(near, far, weight[:, None, None, :])
    if integer:
        return ((result + (1 << (2 * _WEIGHT_BITS - 1))) >> (2 * _WEIGHT_BITS)).to(torch.uint8)
    return result


def _between(near: torch.Tensor, far: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum; of integers 2048 times that, int32."""
    return near + (far - near) * weight if weight.is_floating_point() else near * (_ONE - weight) + far * weight


def _taps(
    start: torch.Tensor, length: torch.Tensor, size: int, *, integer: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return which two pixels each output pixel lies between, and how near to the second.

    Args:
        start: First pixel of each row's box along an axis, int64, shape ``(B,)``.
        length: Its pixels along the axis, int64, shape ``(B,)``.
        size: Output pixels, ``S``.
        integer: Whether the weight is wanted in steps of ``1 / 2048``.

    Returns:
        Both pixels, int64, and the weight of the second, int32 (0 to 2048) or float32 (0 to 1); all ``(B, S)``.
    """
    length = length[:, None]
    unit = 2 * size
    # The centre of output pixel i is at (i + 1/2) length / size - 1/2 of the box: in units of 1 / (2 size), an integer.
    centre = ((2 * torch.arange(size, device=start.device) + 1) * length - size).clamp_(min=0)
    lower = centre // unit
    rest = centre - lower * unit
    upper = torch.minimum(lower + 1, length - 1)  # beyond the last centre both are the last pixel
    weight = ((rest * _ONE + size) // unit).to(torch.int32) if integer else rest.to(torch.float32) / unit
    return start[:, None] + lower, start[:, None] + upper, weight
