"""Mixup and cutmix: two rows of a batch are mixed with each other, images and labels alike.

Partners are rows ``2j`` and ``2j + 1`` of the global batch, which ranks keep together, so who meets whom follows from
the order of the epoch and from nothing else. The pair takes its numbers from the key of its even row::

    row 2j       lambda x own + (1 - lambda) x partner's
    row 2j + 1   lambda x own + (1 - lambda) x partner's      with the same lambda

A last row without a partner stays as it is, with its label made soft like the others. Labels become float32 parts of
``num_classes`` classes.

``lambda`` is Beta(alpha, alpha), by :mod:`flodl_pipe.transforms.beta`; it and cutmix's boxes are computed on the host
in float64 from exactly rounded operations, so they are the same on every device. torchvision's transforms of these
names mix with the neighbouring row in the whole batch, with one lambda and one box for all rows.

Source: Zhang et al., "mixup: Beyond Empirical Risk Minimization" (ICLR 2018); Yun et al., "CutMix: Regularization
Strategy to Train Strong Classifiers with Localizable Features" (ICCV 2019).

Shape letters: ``B`` rows, ``P`` pairs, ``C`` channels, ``H`` and ``W`` height and width, ``K`` classes.
"""

from typing import final

import numpy as np
import numpy.typing as npt
import torch

from flodl_pipe.arrays import IndexArray
from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.arguments import require_count, require_name, require_within
from flodl_pipe.transforms.beta import MAX_ALPHA, MIN_ALPHA, SymmetricBeta
from flodl_pipe.transforms.image_boxes import place
from flodl_pipe.transforms.image_checks import (
    check_image,
    field_of_batch,
    field_of_spec,
    on_device,
    with_spec_field,
    with_tensors,
)
from flodl_pipe.transforms.protocol import Scope

__all__ = ["Cutmix", "Mixup"]

_MIXUP, _CUTMIX = "mixup", "cutmix"
_PLACE = 1  # stream of the words that place a box


@final
class Mixup:
    """Mixes the images of each pair pixel by pixel, and their labels in the same proportion.

    float32 images ``(B, C, H, W)`` in, the same out, to 1e-6 of the range of the values between devices and exact in
    any batch that keeps pairs; int64 labels ``(B,)`` in, float32 ``(B, K)`` out, exact. On an accelerator each batch
    waits for the device once: labels are checked before they are used.

    Args:
        num_classes: Classes, ``K``; labels are ``0 .. K - 1``.
        alpha: Shape of the distribution of lambda, 0.1 to 10; small: mostly one of the two, 1: any proportion alike.
        image: The field with the images.
        label: The field with the labels.

    Raises:
        ConfigError: if an argument is of another type, or out of its range.
    """

    scope: Scope = "pair"

    def __init__(self, num_classes: int, *, alpha: float = 1.0, image: str = "image", label: str = "label") -> None:
        alpha = _alpha(alpha, _MIXUP)
        num_classes = require_count(num_classes, f"{_MIXUP}.num_classes")
        label = require_name(label, f"{_MIXUP}.label")
        self._beta = SymmetricBeta(alpha)
        self._labels = _SoftLabels(_MIXUP, num_classes, label)
        self._image = image = require_name(image, f"{_MIXUP}.image")
        self.tag = f"{_MIXUP}({alpha=}, {num_classes=}, {image=}, {label=})"

    def output(self, spec: SampleSpec) -> SampleSpec:
        self._check(field_of_spec(spec, self._image, _MIXUP))
        return self._labels.output(spec)

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:
        images, field = field_of_batch(batch, self._image, _MIXUP)
        self._check(field)
        own = self._beta.of(_of_pairs(keys).uniform(1)[:, 0])
        labels = self._labels.mixed(batch, own)
        parts = [on_device(part.astype(np.float32), images.device) for part in (own, 1.0 - own)]
        return with_tensors(batch, {self._image: _mix_pairs(images, *parts), self._labels.field: labels})

    def _check(self, field: Field) -> None:
        check_image(field, _MIXUP)
        if field.dtype != "float32":
            raise TransformError(
                f"{_MIXUP}: field {field} is {field.dtype}, and mixed pixels are no whole numbers; put to_float or "
                "normalize before it"
            )


@final
class Cutmix:
    """Swaps a rectangle between the images of each pair, and mixes their labels by its area.

    The rectangle has the image's aspect and ``1 - lambda`` of its area; its centre is uniform over the pixels, and what
    lies outside is cut off. A label's part is the true part of the pixels, after rounding and cutting.

    uint8 or float32 images ``(B, C, H, W)`` in, the same out; int64 labels ``(B,)`` in, float32 ``(B, K)`` out; all
    exact on every device and in any batch that keeps pairs. On an accelerator each batch waits for the device once:
    labels are checked before they are used.

    Args:
        num_classes: Classes, ``K``; labels are ``0 .. K - 1``.
        alpha: Shape of the distribution of lambda, 0.1 to 10; the paper's is 1.
        image: The field with the images.
        label: The field with the labels.

    Raises:
        ConfigError: if an argument is of another type, or out of its range.
    """

    scope: Scope = "pair"

    def __init__(self, num_classes: int, *, alpha: float = 1.0, image: str = "image", label: str = "label") -> None:
        alpha = _alpha(alpha, _CUTMIX)
        num_classes = require_count(num_classes, f"{_CUTMIX}.num_classes")
        label = require_name(label, f"{_CUTMIX}.label")
        self._beta = SymmetricBeta(alpha)
        self._labels = _SoftLabels(_CUTMIX, num_classes, label)
        self._image = image = require_name(image, f"{_CUTMIX}.image")
        self.tag = f"{_CUTMIX}({alpha=}, {num_classes=}, {image=}, {label=})"

    def output(self, spec: SampleSpec) -> SampleSpec:
        check_image(field_of_spec(spec, self._image, _CUTMIX), _CUTMIX)
        return self._labels.output(spec)

    def __call__(self, batch: Batch, keys: PickKeys) -> Batch:
        images, field = field_of_batch(batch, self._image, _CUTMIX)
        _, height, width = check_image(field, _CUTMIX)
        boxes = self._boxes(_of_pairs(keys), height, width)
        top, left, bottom, right = boxes
        labels = self._labels.mixed(batch, 1.0 - (bottom - top) * (right - left) / (height * width))
        swapped = _swap_boxes(images, on_device(boxes, images.device))
        return with_tensors(batch, {self._image: swapped, self._labels.field: labels})

    def _boxes(self, pairs: PickKeys, height: int, width: int) -> IndexArray:
        """Return top, left, bottom and right of each pair's box, int64, shape ``(4, P)``."""
        side = np.sqrt(1.0 - self._beta.of(pairs.uniform(1)[:, 0]))
        words = pairs.words(2, stream=_PLACE)
        starts, ends = [], []
        for axis, length in enumerate((height, width)):
            cut = np.rint(side * length).astype(np.int64)
            start = place(words[:, axis], np.full(len(pairs), length - 1)) - cut // 2
            starts.append(np.maximum(start, 0))
            ends.append(np.minimum(start + cut, length))
        return np.stack([*starts, *ends])


@final
class _SoftLabels:
    """Labels of pairs, made soft."""

    def __init__(self, kind: str, num_classes: int, field: str) -> None:
        self._kind, self._num_classes, self.field = kind, num_classes, field

    def output(self, spec: SampleSpec) -> SampleSpec:
        self._check(field_of_spec(spec, self.field, self._kind))
        return with_spec_field(spec, Field(self.field, "float32", (self._num_classes,)))

    def mixed(self, batch: Batch, own: npt.NDArray[np.float64]) -> torch.Tensor:
        """Return float32 labels ``(B, K)``, given the part of each pair's own label, shape ``(P,)``.

        Raises:
            TransformError: if a label is no class.
        """
        labels, field = field_of_batch(batch, self.field, self._kind)
        self._check(field)
        wrong = (labels < 0) | (labels >= self._num_classes)
        if wrong.any():
            row = int(wrong.nonzero()[0, 0])
            raise TransformError(
                f"{self._kind}: field {self.field!r} holds {int(labels[row])} in row {row} (sample "
                f"{batch.pick_keys.sample[row]}), but labels are 0 .. {self._num_classes - 1}; set num_classes to what "
                "the data has"
            )
        hard = torch.zeros((len(labels), self._num_classes), dtype=torch.float32, device=labels.device)
        hard.scatter_(1, labels[:, None], 1.0)
        return _mix_pairs(hard, *(on_device(part.astype(np.float32), labels.device) for part in (own, 1.0 - own)))

    def _check(self, field: Field) -> None:
        if field.dtype != "int64" or field.shape or field.is_ragged:
            raise TransformError(
                f"{self._kind}: field {field} is no label: one int64 for each row is needed; name another field, or "
                "keep one of the transforms that make labels soft"
            )


def _alpha(alpha: object, kind: str) -> float:
    """Return alpha as a float: 1 and 1.0 are one tag."""
    return require_within(alpha, MIN_ALPHA, MAX_ALPHA, f"{kind}.alpha", f"leave {kind} out to mix nothing")


def _of_pairs(keys: PickKeys) -> PickKeys:
    """Return the keys of the rows that have a partner behind them, one for each pair."""
    return keys.rows(slice(0, len(keys) // 2 * 2, 2))


def _pairs(rows: torch.Tensor) -> torch.Tensor:
    """Return a view ``(P, 2, ...)`` of all rows but a last one without a partner."""
    num_pairs = len(rows) // 2
    return rows[: 2 * num_pairs].reshape(num_pairs, 2, *rows.shape[1:])


def _mix_pairs(rows: torch.Tensor, own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return ``own`` of each row and ``other`` of its partner, both of shape ``(P,)``."""
    pairs = _pairs(rows)
    shape = (len(own), *([1] * (pairs.ndim - 1)))
    mixed = (pairs * own.view(shape)).add_(pairs.flip(1).mul_(other.view(shape)))
    return _joined(mixed, rows)


def _swap_boxes(images: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Return the images with the boxes of each pair swapped; boxes are ``(4, P)``."""
    pairs = _pairs(images)
    top, left, bottom, right = boxes[:, :, None]
    rows = torch.arange(images.shape[2], device=images.device)
    columns = torch.arange(images.shape[3], device=images.device)
    in_rows, in_columns = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    mask = in_rows[:, None, None, :, None] & in_columns[:, None, None, None, :]
    return _joined(torch.where(mask, pairs.flip(1), pairs), images)


def _joined(pairs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return changed pairs as rows, and behind them the last of the unchanged rows if it has no partner."""
    changed = pairs.flatten(0, 1)
    return changed if len(changed) == len(rows) else torch.cat([changed, rows[-1:]])
