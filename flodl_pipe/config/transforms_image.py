"""Section ``transforms``: the kinds that work on images, fields of shape (channels, height, width)."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flodl_pipe.config.base import Count, NonNegative, fault, shown
from flodl_pipe.config.transforms_base import (
    Amount,
    FieldName,
    Fraction,
    PerChannel,
    Range,
    Size,
    StepConfig,
    range_within,
)

__all__ = [
    "STATISTICS",
    "ColorJitterConfig",
    "CutmixConfig",
    "HorizontalFlipConfig",
    "MixupConfig",
    "NormalizeConfig",
    "Preset",
    "RandomCropConfig",
    "RandomErasingConfig",
    "RandomResizedCropConfig",
    "ToFloatConfig",
    "VerticalFlipConfig",
]

Preset = Literal["cifar10", "cifar100", "fashion_mnist", "imagenet", "mnist"]
"""A set whose mean and standard deviation are known."""

STATISTICS: dict[Preset, tuple[list[float], list[float]]] = {
    # Over all pixels of the training set, channel by channel, as commonly published. Sources: imagenet, torchvision's
    # reference scripts; mnist, the examples of PyTorch; the others follow from their files.
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "cifar100": ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
    "fashion_mnist": ([0.2860], [0.3530]),
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "mnist": ([0.1307], [0.3081]),
}
"""Preset -> mean and standard deviation of each channel, of pixels in 0 .. 1."""


class _ImageStep(StepConfig):
    """A step that changes one field."""

    field: FieldName = "image"
    """Field with the images."""


class ToFloatConfig(_ImageStep):
    """Images of bytes become float32 in 0 .. 1."""

    kind: Literal["to_float"] = "to_float"
    """Bytes to float32."""


class NormalizeConfig(_ImageStep):
    """Subtract a mean, divide by a standard deviation, channel by channel; bytes are scaled to 0 .. 1 before."""

    kind: Literal["normalize"] = "normalize"
    """Subtract a mean, divide by a standard deviation."""

    mean: PerChannel = None
    """Mean of each channel, or one number for all; of bytes in 0 .. 1; null: that of `preset`."""

    std: PerChannel = None
    """Standard deviation of each channel in the same unit; null: that of `preset`."""

    preset: Preset | None = None
    """Published figures of a set: cifar10, cifar100, fashion_mnist, imagenet or mnist."""

    def statistics(self) -> tuple[list[float], list[float]]:
        """Return mean and standard deviation of each channel."""
        if self.preset is not None:
            return STATISTICS[self.preset]
        return self.mean or [], self.std or []

    @model_validator(mode="after")
    def _figures_fit(self) -> "NormalizeConfig":
        given = [name for name in ("mean", "std") if getattr(self, name) is not None]
        if self.preset is not None and given:
            raise fault(
                f"cannot be set together with {' and '.join(given)}, it stands for both: keep one or the other; "
                "null takes back what a file sets",
                at=["preset"],
            )
        if self.preset is None and len(given) < 2:
            missing = next(name for name in ("mean", "std") if name not in given)
            raise fault("must be set, got null: give mean and std, or a preset", at=[missing])
        mean, std = self.statistics()
        if len(mean) != len(std):
            raise fault(f"must have one number for each of the {len(mean)} of mean, got {shown(std)}", at=["std"])
        if min(std) <= 0:
            raise fault(f"must be above 0, got {shown(std)}; leave a constant channel at 1", at=["std"])
        return self


class RandomCropConfig(_ImageStep):
    """Pad on all sides, then cut a window out at a random place."""

    kind: Literal["random_crop"] = "random_crop"
    """Pad, then cut a window out."""

    size: Size
    """Height and width of the window: one number, or [height, width]."""

    padding: NonNegative = 0
    """Pixels added on each side before."""

    mode: Literal["zero", "reflect"] = "zero"
    """What they hold: zeros, or the image mirrored at its border."""


class RandomResizedCropConfig(_ImageStep):
    """Cut a window of random area and shape, then resize it."""

    kind: Literal["random_resized_crop"] = "random_resized_crop"
    """Cut a window of random area and shape, resize it."""

    size: Size
    """Height and width of the result: one number, or [height, width]."""

    scale: Annotated[Range, range_within(1.0)] = Field(default=[0.08, 1.0])
    """Least and largest area of the window, as a part of the image's."""

    ratio: Annotated[Range, range_within(1000.0, least=0.001)] = Field(default=[0.75, 1.3333333333333333])
    """Least and largest width of the window over its height."""


class HorizontalFlipConfig(_ImageStep):
    """Mirror some images left to right."""

    kind: Literal["horizontal_flip"] = "horizontal_flip"
    """Mirror left to right."""

    probability: Fraction = 0.5
    """That an image is mirrored."""


class VerticalFlipConfig(_ImageStep):
    """Mirror some images top to bottom."""

    kind: Literal["vertical_flip"] = "vertical_flip"
    """Mirror top to bottom."""

    probability: Fraction = 0.5
    """That an image is mirrored."""


class ColorJitterConfig(_ImageStep):
    """Change brightness, contrast and saturation by random factors."""

    kind: Literal["color_jitter"] = "color_jitter"
    """Random brightness, contrast and saturation."""

    brightness: Amount = 0.0
    """b: a factor from max(0, 1 - b) to 1 + b; 0: as it is."""

    contrast: Amount = 0.0
    """The same, around the image's mean grey."""

    saturation: Amount = 0.0
    """The same, around each pixel's grey."""


class RandomErasingConfig(_ImageStep):
    """Fill a random rectangle of some images."""

    kind: Literal["random_erasing"] = "random_erasing"
    """Fill a random rectangle."""

    probability: Fraction = 0.5
    """That an image gets a rectangle."""

    scale: Annotated[Range, range_within(1.0)] = Field(default=[0.02, 0.33])
    """Least and largest area of the rectangle, as a part of the image's."""

    ratio: Annotated[Range, range_within(1000.0, least=0.001)] = Field(default=[0.3, 3.3])
    """Least and largest height of the rectangle over its width."""

    value: float = 0.0
    """What it is filled with, in the unit of the pixels at this step."""


Alpha = Annotated[float, Field(ge=0.1, le=10.0)]


class _PairStep(StepConfig):
    """A step that mixes two images and their labels."""

    alpha: Alpha = 1.0
    """Shape of the mixing proportion's distribution, 0.1 .. 10; 1: any proportion alike."""

    num_classes: Count
    """Number of labels; they become float32 proportions of this many classes."""

    image: FieldName = "image"
    """Field with the images."""

    label: FieldName = "label"
    """Field with the labels."""


class MixupConfig(_PairStep):
    """Blend two images of the global batch, and their labels."""

    kind: Literal["mixup"] = "mixup"
    """Blend pairs of images and labels."""


class CutmixConfig(_PairStep):
    """Swap a rectangle between two images of the global batch, and mix their labels."""

    kind: Literal["cutmix"] = "cutmix"
    """Swap a rectangle between pairs of images, mix labels."""
