"""The basic transforms of pictures: to float, normalise, crop, flip. Each works on a whole batch, row by row.

Pictures have the shape ``(C, H, W)``. What is drawn comes from NumPy, a few numbers per row, and is copied to the
batch's device; it is the same on all of them, so crops and flips are equal bit by bit everywhere.

Floating-point arithmetic is these float32 operations, each rounded by itself, in this order:

* ``to_float`` of uint8: ``x * (1 / 255)``.
* ``normalize``: ``x * scale``, then ``+ shift``, with ``scale = 1 / std`` (of uint8: ``1 / (255 * std)``) and
  ``shift = -mean / std``, computed in float64 and rounded once.

Adding and multiplying are kept apart (no fused multiply-add), so torch and :mod:`flodl_pipe.transforms.image_fused`
agree bit by bit on a CPU.

Shape letters: ``B`` rows, ``C`` channels, ``H`` height, ``W`` width.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast, final, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from flodl_pipe.arrays import BoolArray, IndexArray, WordArray
from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ConfigError, TransformError
from flodl_pipe.keyed.pick_keys import PickKeys, to_integers, to_uniform
from flodl_pipe.transforms.arguments import (
    require_count,
    require_name,
    require_numbers,
    require_size,
    require_within,
)
from flodl_pipe.transforms.image_checks import (
    check_image,
    check_unit,
    field_of_batch,
    field_of_spec,
    on_device,
    with_spec_field,
    with_tensors,
)
from flodl_pipe.transforms.protocol import Scope

__all__ = ["BYTE_SCALE", "HorizontalFlip", "Normalize", "Padding", "RandomCrop", "ToFloat", "VerticalFlip", "chosen"]

Padding = Literal["zero", "reflect"]

BYTE_SCALE = np.float32(1 / 255)
_MAX_SIZE = 1 << 16


@final
class ToFloat:
    """Makes uint8 pictures float32 in ``0 .. 1``; float32 stays as it is.

    Args:
        field: The pictures.
    """

    scope: Scope = "row"

    def __init__(self, field: str = "image") -> None:
        self.field = require_name(field, "to_float.field")
        self.tag = f"to_float(field={field})"

    def output(self, spec: SampleSpec) -> SampleSpec:
        """Return the spec with float32 pictures."""
        field = field_of_spec(spec, self.field, "to_float")
        check_image(field, "to_float")
        return with_spec_field(spec, replace(field, dtype="float32"))

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:  # noqa: ARG002 - nothing is drawn
        pictures = _pictures(batch, self.field, "to_float")
        if pictures.dtype == torch.float32:
            return batch
        return with_tensors(batch, {self.field: pictures.to(torch.float32).mul_(float(BYTE_SCALE))})


@final
class Normalize:
    """Subtracts a mean and divides by a standard deviation, channel by channel; uint8 is scaled to ``0 .. 1`` before.

    Args:
        mean: Mean of each channel, of pictures of bytes in ``0 .. 1``; one number for all channels.
        std: Standard deviation of each channel, in the same unit.
        field: The pictures.

    Raises:
        ConfigError: if the two differ in length, or a number is not finite or a standard deviation not positive.
    """

    scope: Scope = "row"

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float], field: str = "image") -> None:
        rule = "a finite number, or one per channel"
        self.mean = require_numbers(mean, "normalize.mean", rule)
        self.std = require_numbers(std, "normalize.std", rule)
        self.field = require_name(field, "normalize.field")
        if len(self.mean) != len(self.std):
            raise ConfigError.at(
                "normalize.std", f"mean {self.mean} and std {self.std} differ in length; give one per channel"
            )
        # Beyond these, float32 has no finite factor.
        if min(self.std) <= 0 or max(1, *map(abs, self.mean)) / min(self.std) > 1e30:
            raise ConfigError.at(
                "normalize.std",
                f"must be positive, and not vanish beside 1 or the mean, got std {self.std} and mean {self.mean}; give "
                "1 for a channel that never changes",
            )
        self.tag = f"normalize(mean={self.mean}, std={self.std}, field={field})"

    def output(self, spec: SampleSpec) -> SampleSpec:
        """Return the spec with float32 pictures."""
        field = field_of_spec(spec, self.field, "normalize")
        channels, _, _ = check_image(field, "normalize")
        self._check_channels(channels)
        check_unit(field.dtype, self.mean, self.std, self.field)
        return with_spec_field(spec, replace(field, dtype="float32"))

    def factors(self, dtype: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return scale and shift for pictures of a dtype, float32, shape ``(C, 1, 1)`` each, or ``(1, 1, 1)``."""
        mean, std = (np.array(numbers, dtype=np.float64)[:, None, None] for numbers in (self.mean, self.std))
        unit = 255.0 if dtype == "uint8" else 1.0
        return (1 / (unit * std)).astype(np.float32), (-mean / std).astype(np.float32)

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:  # noqa: ARG002 - nothing is drawn
        """Return the batch with normalised float32 pictures; those that are float32 are changed in place."""
        pictures = _pictures(batch, self.field, "normalize")
        self._check_channels(pictures.shape[1])
        dtype = str(pictures.dtype).removeprefix("torch.")
        check_unit(dtype, self.mean, self.std, self.field)
        factors = self.factors(dtype)
        scale, shift = (on_device(factor, pictures.device) for factor in factors)
        return with_tensors(batch, {self.field: pictures.to(torch.float32).mul_(scale).add_(shift)})

    def _check_channels(self, channels: int) -> None:
        if len(self.mean) not in (1, channels):
            raise TransformError(
                f"normalize: there is a mean for {len(self.mean)} channels {self.mean}, but field {self.field!r} has "
                f"{channels}; give one per channel, or one number for all"
            )


@final
class RandomCrop:
    """Pads pictures on all sides and cuts a window of a fixed size out of each, at a place drawn for the row.

    Args:
        size: Height and width of the window; one number for both.
        padding: Pixels added on each side.
        mode: What they hold: ``zero``, or ``reflect`` the picture at its border (the border itself once).
        field: The pictures.

    Raises:
        ConfigError: if size, padding or mode are out of range.
    """

    scope: Scope = "row"

    def __init__(
        self, size: int | Sequence[int], padding: int = 0, mode: Padding = "zero", field: str = "image"
    ) -> None:
        self.size = require_size(size, "random_crop.size", _MAX_SIZE)
        self.padding = padding = require_count(padding, "random_crop.padding", 0)
        self.mode = _mode(mode)
        self.field = require_name(field, "random_crop.field")
        self.tag = f"random_crop(size={self.size}, padding={padding}, mode={mode}, field={field})"

    def output(self, spec: SampleSpec) -> SampleSpec:
        """Return the spec with pictures of the window's size."""
        field = field_of_spec(spec, self.field, "random_crop")
        channels, height, width = check_image(field, "random_crop")
        self._check_size(height, width)
        return with_spec_field(spec, replace(field, shape=(channels, *self.size)))

    def offsets(self, words: WordArray, height: int, width: int) -> tuple[IndexArray, IndexArray]:
        """Return top and left of each row's window in the padded picture, int64, shape ``(B,)`` each.

        Args:
            words: Words of the rows, of this transform's stream, shape ``(2 or more, B)``.
            height: Height of the pictures, without padding.
            width: Their width.
        """
        highs = [length + 2 * self.padding - cut + 1 for length, cut in zip((height, width), self.size, strict=True)]
        return to_integers(words[0], highs[0]), to_integers(words[1], highs[1])

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:
        pictures = _pictures(batch, self.field, "random_crop")
        num_rows, _, height, width = pictures.shape
        self._check_size(height, width)
        tops, lefts = (on_device(starts, pictures.device) for starts in self.offsets(keys.words(2).T, height, width))
        # All windows of a picture as views of it, shape (B, C, places, places, h, w); of those, one is copied.
        views = self._padded(pictures).unfold(2, self.size[0], 1).unfold(3, self.size[1], 1)
        windows = views[torch.arange(num_rows, device=pictures.device), :, tops, lefts]
        return with_tensors(batch, {self.field: windows})

    def _padded(self, pictures: torch.Tensor) -> torch.Tensor:
        if self.mode == "zero" or not self.padding:
            return functional.pad(pictures, (self.padding,) * 4)
        for axis in (2, 3):
            # Torch's own reflection takes no bytes.
            last = pictures.shape[axis] - 1
            places = torch.arange(-self.padding, last + self.padding + 1, device=pictures.device)
            pictures = pictures.index_select(axis, last - (last - places.abs()).abs())
        return pictures

    def _check_size(self, height: int, width: int) -> None:
        padded = (height + 2 * self.padding, width + 2 * self.padding)
        if self.size[0] > padded[0] or self.size[1] > padded[1]:
            raise TransformError(
                f"random_crop: cannot cut {self.size} out of field {self.field!r}: with padding {self.padding} its "
                f"pictures are {padded}; choose a smaller size or a larger padding"
            )
        if self.mode == "reflect" and self.padding >= min(height, width):
            raise TransformError(
                f"random_crop: cannot reflect {self.padding} pixels of field {self.field!r}, whose pictures are "
                f"{(height, width)}: padding must be smaller than both; choose a smaller one, or mode zero"
            )


@final
class HorizontalFlip:
    """Mirrors some rows left to right.

    Args:
        probability: That a row is mirrored.
        field: The pictures.

    Raises:
        ConfigError: if the probability is not in ``0 .. 1``.
    """

    scope: Scope = "row"

    def __init__(self, probability: float = 0.5, field: str = "image") -> None:
        self.probability = require_within(probability, 0.0, 1.0, "horizontal_flip.probability")
        self.field = require_name(field, "horizontal_flip.field")
        self.tag = f"horizontal_flip(probability={self.probability}, field={field})"

    def output(self, spec: SampleSpec) -> SampleSpec:
        """Return the same spec."""
        check_image(field_of_spec(spec, self.field, "horizontal_flip"), "horizontal_flip")
        return spec

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:
        pictures = _pictures(batch, self.field, "horizontal_flip")
        return with_tensors(batch, {self.field: _flipped(pictures, chosen(keys.words(1).T, self.probability), -1)})


@final
class VerticalFlip:
    """Mirrors some rows top to bottom; arguments and errors as :class:`HorizontalFlip`."""

    scope: Scope = "row"

    def __init__(self, probability: float = 0.5, field: str = "image") -> None:
        self.probability = require_within(probability, 0.0, 1.0, "vertical_flip.probability")
        self.field = require_name(field, "vertical_flip.field")
        self.tag = f"vertical_flip(probability={self.probability}, field={field})"

    def output(self, spec: SampleSpec) -> SampleSpec:
        """Return the same spec."""
        check_image(field_of_spec(spec, self.field, "vertical_flip"), "vertical_flip")
        return spec

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:
        pictures = _pictures(batch, self.field, "vertical_flip")
        return with_tensors(batch, {self.field: _flipped(pictures, chosen(keys.words(1).T, self.probability), -2)})


def chosen(words: WordArray, probability: float) -> BoolArray:
    """Return which rows are chosen, each with a probability, shape ``(B,)``, of their words, ``(1 or more, B)``."""
    # Both sides are float32: the draws hold 24 bits, and the probability is rounded to what they can equal.
    return to_uniform(words[0]) < np.float32(probability)


def _mode(value: object) -> Padding:
    for mode in get_args(Padding):
        if value == mode:
            return cast("Padding", mode)
    raise ConfigError.at("random_crop.mode", f"must be zero or reflect, got {value!r}")


def _flipped(pictures: torch.Tensor, rows: BoolArray, axis: int) -> torch.Tensor:
    chosen = on_device(np.flatnonzero(rows), pictures.device)
    return pictures.index_copy(0, chosen, pictures.index_select(0, chosen).flip(axis))


def _pictures(batch: Batch, name: str, kind: str) -> torch.Tensor:
    """Return the pictures of a batch, shape ``(B, C, H, W)``."""
    tensor, field = field_of_batch(batch, name, kind)
    check_image(field, kind)
    return tensor
