"""Colour jitter: brightness, contrast and saturation of a row's image, each by a random factor, in this order.

Each is a mix of the image with something duller: black, the mean of its grey, its grey. Values are clamped after each,
and rounded once at the end. Grey is ``0.299 R + 0.587 G + 0.114 B`` (ITU-R BT.601). The same three as in torchvision's
transform of the name; there the order is random and hue is a fourth, and between steps uint8 images are cut to
integers.

A pixel's arithmetic is float32 products and sums, each an operation of its own, so that no device may fuse them. The
mean of the grey is a sum of integers, in steps of ``2**-16``: the same in any order, so in any batch and on any device.

Shape letters: ``B`` rows, ``C`` channels, ``H`` and ``W`` height and width.
"""

from typing import final

import numpy as np
import numpy.typing as npt
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import ConfigError, TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.arguments import require_name, require_number
from flodl_pipe.transforms.image_checks import check_image, field_of_batch, field_of_spec, on_device, with_tensors
from flodl_pipe.transforms.protocol import Scope

__all__ = ["ColorJitter"]

_KIND = "color_jitter"
_GREY = (0.299, 0.587, 0.114)
_STEPS = 1 << 16


@final
class ColorJitter:
    """Changes brightness, contrast and saturation of each image by factors of its own.

    uint8 images ``(B, C, H, W)`` in, uint8 out, clamped and rounded; float32 images in ``[0, 1]`` in, the same out,
    clamped to it. So it goes before ``normalize``. uint8 is exact on every device and in any batch. float32 is exact in
    any batch; between devices it differs by at most 1e-6, times the greatest factors of contrast and saturation.

    Args:
        brightness: A factor for all pixels, uniform in ``[max(0, 1 - x), 1 + x]``; 0 leaves it.
        contrast: A factor for the distance from the image's mean grey, in the same way.
        saturation: A factor for the distance from the pixel's own grey, in the same way.
        field: The field with the images: 3 channels; without saturation also 1.

    Raises:
        ConfigError: if an argument is no number, negative or not finite.
    """

    scope: Scope = "row"

    def __init__(
        self, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, field: str = "image"
    ) -> None:
        # As floats: 1 and 1.0 are one tag.
        brightness = _amount("brightness", brightness)
        contrast = _amount("contrast", contrast)
        saturation = _amount("saturation", saturation)
        field = require_name(field, f"{_KIND}.field")
        self.tag = f"{_KIND}({brightness=}, {contrast=}, {saturation=}, {field=})"
        self._amounts, self._field = (brightness, contrast, saturation), field

    def output(self, spec: SampleSpec) -> SampleSpec:
        self._check(field_of_spec(spec, self._field, _KIND))
        return spec

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:
        images, field = field_of_batch(batch, self._field, _KIND)
        self._check(field)
        # One draw for each of the three, wanted or not: turning one off leaves the others' numbers as they are.
        uniform = keys.uniform(len(self._amounts)).T
        brightness, contrast, saturation = (
            None if amount == 0.0 else on_device(_factor(drawn, amount), images.device)[:, None, None, None]
            for drawn, amount in zip(uniform, self._amounts, strict=True)
        )
        most = 255.0 if images.dtype == torch.uint8 else 1.0
        pixels = images.to(torch.float32)
        if brightness is not None:
            pixels = (pixels * brightness).clamp_(0.0, most)
        if contrast is not None:
            pixels = _mix(pixels, _mean(_grey(pixels), most), contrast).clamp_(0.0, most)
        if saturation is not None:
            pixels = _mix(pixels, _grey(pixels), saturation).clamp_(0.0, most)
        if images.dtype == torch.uint8:
            pixels = pixels.round().to(torch.uint8)
        return with_tensors(batch, {self._field: pixels})

    def _check(self, field: Field) -> None:
        channels, _, _ = check_image(field, _KIND)
        _, contrast, saturation = self._amounts
        if channels != 3 and (saturation or (contrast and channels != 1)):
            what = "saturation" if saturation else "contrast"
            raise TransformError(
                f"{_KIND}: {what} needs 3 channels, red, green and blue, but field {field} has {channels}; set {what} "
                "to 0 for such images"
            )


def _amount(name: str, value: object) -> float:
    key, rule = f"{_KIND}.{name}", "at least 0 and finite"
    amount = require_number(value, key, rule)
    if amount < 0.0:
        raise ConfigError.at(key, f"must be {rule}, got {value!r}")
    return amount


def _factor(uniform: npt.NDArray[np.float32], amount: float) -> npt.NDArray[np.float32]:
    """Return factors in ``[max(0, 1 - amount), 1 + amount]``, float32, shape ``(B,)``."""
    low, high = max(0.0, 1.0 - amount), 1.0 + amount
    return (low + (high - low) * uniform.astype(np.float64)).astype(np.float32)


def _mix(pixels: torch.Tensor, dull: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return dull + (pixels - dull) * factor


def _grey(pixels: torch.Tensor) -> torch.Tensor:
    """Return the grey of each pixel, ``(B, 1, H, W)``."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = (pixels[:, channel : channel + 1] * part for channel, part in enumerate(_GREY))
    return red + green + blue


def _mean(grey: torch.Tensor, most: float) -> torch.Tensor:
    """Return the mean grey of each image, ``(B, 1, 1, 1)``.

    Args:
        grey: Of its pixels, 0 to ``most``, shape ``(B, 1, H, W)``.
        most: What white is.
    """
    steps = _STEPS / most
    total = (grey * steps).round_().to(torch.int64).sum(dim=(1, 2, 3), keepdim=True)
    # A product, not a quotient: some devices divide by a constant by way of its reciprocal, which rounds twice.
    return total.to(torch.float32) * (1.0 / (steps * grey.shape[2] * grey.shape[3]))
