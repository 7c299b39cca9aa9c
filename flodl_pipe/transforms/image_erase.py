"""Random erasing: one rectangle of a row's image is overwritten with a value, for some of the rows.

Rectangles come from :mod:`flodl_pipe.transforms.image_boxes`; a mask of every pixel is compared from their four sides,
so one pass over the batch erases them all. What is not erased is not touched, so the result is exact on every device.

Source: Zhong et al., "Random Erasing Data Augmentation" (AAAI 2020). As in torchvision's transform of the name the
aspect is height over width, a try must leave both a row and a column of the image, and an image into which no try of
ten fits stays as it is. Unlike there, a rectangle is never empty: a side that rounds to 0 is another try.

Shape letters: ``B`` rows, ``C`` channels, ``H`` and ``W`` height and width of the image.
"""

from typing import final

import numpy as np
import torch

from flodl_pipe.arrays import BoolArray, IndexArray
from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.arguments import require_name, require_number, require_range, require_within
from flodl_pipe.transforms.image_boxes import MAX_RATIO, NUM_TRIES, BoxSizes, first_fit, place
from flodl_pipe.transforms.image_checks import (
    check_image,
    field_of_batch,
    field_of_spec,
    on_device,
    with_tensors,
)
from flodl_pipe.transforms.protocol import Scope

__all__ = ["RandomErasing"]

_KIND = "random_erasing"
_PLACE = 1  # stream of the words that place a rectangle


@final
class RandomErasing:
    """Overwrites a random rectangle of some images.

    uint8 or float32 images ``(B, C, H, W)`` in, the same out; exact on every device and in any batch.

    Args:
        probability: Of a row to be changed, 0 to 1.
        scale: Least and most part of the image's area to erase, 0 to 1.
        ratio: Least and most height over width, 0.001 to 1000.
        value: What erased pixels become, in every channel. For uint8 images a whole number 0 to 255. After
            ``normalize``, 0.0 is the mean colour.
        field: The field with the images.

    Raises:
        ConfigError: if an argument is of another type, or out of its range.
    """

    scope: Scope = "row"

    def __init__(
        self,
        probability: float = 0.5,
        scale: tuple[float, float] = (0.02, 0.33),
        ratio: tuple[float, float] = (0.3, 3.3),
        value: float = 0.0,
        field: str = "image",
    ) -> None:
        # As floats: 1 and 1.0 are one tag.
        probability = require_within(probability, 0.0, 1.0, f"{_KIND}.probability")
        value = require_number(value, f"{_KIND}.value")
        scale = require_range(scale, 0.0, 1.0, f"{_KIND}.scale")
        ratio = require_range(ratio, 1 / MAX_RATIO, MAX_RATIO, f"{_KIND}.ratio")
        field = require_name(field, f"{_KIND}.field")
        self.tag = f"{_KIND}({probability=}, {scale=}, {ratio=}, {value=}, {field=})"
        self._probability, self._value, self._field = probability, value, field
        self._sizes = BoxSizes(scale, ratio)

    def output(self, spec: SampleSpec) -> SampleSpec:
        self._check(field_of_spec(spec, self._field, _KIND))
        return spec

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:
        images, field = field_of_batch(batch, self._field, _KIND)
        height, width = self._check(field)
        erased, sides = self._boxes(keys, height, width)
        # An empty rectangle where nothing is erased, so that the mask alone decides.
        top, left, bottom, right = on_device(np.where(erased, sides, 0), images.device)[:, :, None]
        rows = torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device)
        in_rows = (rows >= top) & (rows < bottom)
        in_columns = (columns >= left) & (columns < right)
        mask = in_rows[:, None, :, None] & in_columns[:, None, None, :]
        value = int(self._value) if images.dtype == torch.uint8 else self._value
        return with_tensors(batch, {self._field: images.masked_fill(mask, value)})

    def _check(self, field: Field) -> tuple[int, int]:
        _, height, width = check_image(field, _KIND)
        if field.dtype == "uint8" and not (self._value == int(self._value) and 0 <= self._value <= 255):
            raise TransformError(
                f"{_KIND}: value {self._value:g} is no uint8, but the images of field {field.name!r} are; give a whole "
                "number 0 to 255, or put to_float before it"
            )
        return height, width

    def _boxes(self, keys: PickKeys, height: int, width: int) -> tuple[BoolArray, IndexArray]:
        """Return which rows are erased, ``(B,)``, and top, left, bottom and right of each, ``(4, B)``."""
        uniform = keys.uniform(1 + 2 * NUM_TRIES)
        words = keys.words(2, stream=_PLACE)
        high, wide = self._sizes.draw(uniform[:, 1:], height * width)
        found, (high, wide) = first_fit((high > 0) & (high < height) & (wide > 0) & (wide < width), high, wide)
        erased = found & (uniform[:, 0] < np.float32(self._probability))
        # Sides of tries that do not fit have no place; 0 keeps the arithmetic in range.
        high, wide = np.where(found, high, 0), np.where(found, wide, 0)
        top, left = place(words[:, 0], height - high), place(words[:, 1], width - wide)
        return erased, np.stack([top, left, top + high, left + wide])
