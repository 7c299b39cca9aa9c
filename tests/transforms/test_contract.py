"""The transform contract, on every bundled transform, and broken ones that it must catch."""

import importlib
import inspect
import pkgutil
from typing import Any

import numpy as np
import pytest
import torch

import flodl_pipe.transforms
from flodl_pipe.batch.batch import Batch
from flodl_pipe.keyed.keys_torch import uniform
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.image_basic import HorizontalFlip, Normalize, RandomCrop, ToFloat, VerticalFlip
from flodl_pipe.transforms.image_color import ColorJitter
from flodl_pipe.transforms.image_erase import RandomErasing
from flodl_pipe.transforms.image_mix import Cutmix, Mixup
from flodl_pipe.transforms.image_resize import RandomResizedCrop
from flodl_pipe.transforms.tokens import MaskTokens, RandomSpan, Shift
from flodl_pipe.transforms.user_transform import UserTransform
from tests.contract.transforms import TransformContract, applied, make_keys

NUM_CLASSES = 10


def byte_images(num_rows: int) -> torch.Tensor:
    rows = [np.random.default_rng(row).integers(0, 256, (3, 12, 9), dtype=np.uint8) for row in range(num_rows)]
    return torch.from_numpy(np.stack(rows)) if rows else torch.empty((0, 3, 12, 9), dtype=torch.uint8)


def float_images(num_rows: int) -> torch.Tensor:
    return byte_images(num_rows).to(torch.float32) / 255


def labels(num_rows: int) -> torch.Tensor:
    return torch.arange(num_rows) * 3 % NUM_CLASSES


class OfBytes(TransformContract):
    def make_fields(self, num_rows: int) -> dict[str, torch.Tensor]:
        return {"image": byte_images(num_rows), "label": labels(num_rows)}


class OfFloats(TransformContract):
    tolerance = 1e-6

    def make_fields(self, num_rows: int) -> dict[str, torch.Tensor]:
        return {"image": float_images(num_rows), "label": labels(num_rows)}


class TestRandomResizedCropOfBytes(OfBytes):
    def make_transform(self) -> RandomResizedCrop:
        return RandomResizedCrop((7, 10))


@pytest.mark.full
class TestRandomResizedCropOfFloats(OfFloats):
    def make_transform(self) -> RandomResizedCrop:
        return RandomResizedCrop((7, 10))


class TestColorJitterOfBytes(OfBytes):
    def make_transform(self) -> ColorJitter:
        return ColorJitter(0.4, 0.4, 0.4)


@pytest.mark.full
class TestColorJitterOfFloats(OfFloats):
    def make_transform(self) -> ColorJitter:
        return ColorJitter(0.4, 0.4, 0.4)


class TestRandomErasingOfBytes(OfBytes):
    def make_transform(self) -> RandomErasing:
        return RandomErasing(value=7)


@pytest.mark.full
class TestRandomErasingOfFloats(OfFloats):
    tolerance = 0.0

    def make_transform(self) -> RandomErasing:
        return RandomErasing(value=0.5)


class TestMixup(OfFloats):
    def make_transform(self) -> Mixup:
        return Mixup(NUM_CLASSES, alpha=0.4)


class TestCutmixOfBytes(OfBytes):
    def make_transform(self) -> Cutmix:
        return Cutmix(NUM_CLASSES, alpha=1.0)


@pytest.mark.full
class TestCutmixOfFloats(OfFloats):
    tolerance = 0.0

    def make_transform(self) -> Cutmix:
        return Cutmix(NUM_CLASSES, alpha=1.0)


class TestToFloatOfBytes(OfBytes):
    is_random = False

    def make_transform(self) -> ToFloat:
        return ToFloat()


@pytest.mark.full
class TestToFloatOfFloats(OfFloats):
    is_random = False
    tolerance = 0.0

    def make_transform(self) -> ToFloat:
        return ToFloat()


class TestNormalizeOfBytes(OfBytes):
    is_random = False
    tolerance = 1e-6

    def make_transform(self) -> Normalize:
        return Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))


@pytest.mark.full
class TestNormalizeOfFloats(OfFloats):
    is_random = False

    def make_transform(self) -> Normalize:
        return Normalize(0.5, 0.25)


@pytest.mark.full
class TestRandomCropOfBytes(OfBytes):
    def make_transform(self) -> RandomCrop:
        return RandomCrop((8, 9), padding=2)


class TestRandomCropOfFloats(OfFloats):
    tolerance = 0.0

    def make_transform(self) -> RandomCrop:
        return RandomCrop(10, padding=3, mode="reflect")


class TestHorizontalFlip(OfBytes):
    def make_transform(self) -> HorizontalFlip:
        return HorizontalFlip()


class TestVerticalFlip(OfFloats):
    tolerance = 0.0

    def make_transform(self) -> VerticalFlip:
        return VerticalFlip()


class OfTokens(TransformContract):
    dtype = torch.int64

    def make_fields(self, num_rows: int) -> dict[str, torch.Tensor]:
        rows = [np.random.default_rng(row).integers(0, 500, 20) for row in range(num_rows)]
        return {"input": torch.tensor(np.array(rows).reshape(-1, 20), dtype=self.dtype)}


@pytest.mark.full
class TestMaskTokens(OfTokens):
    dtype = torch.uint16

    def make_transform(self) -> MaskTokens:
        return MaskTokens(mask_id=499, vocab_size=500)


class TestMaskTokensOfWideIds(OfTokens):
    def make_transform(self) -> MaskTokens:
        return MaskTokens(mask_id=499, vocab_size=500, probability=0.5, random=0.3, ignore=(7,), ignore_below=3)


class TestRandomSpan(OfTokens):
    def make_transform(self) -> RandomSpan:
        return RandomSpan(length=8)

    def make_fields(self, num_rows: int) -> dict[str, torch.Tensor]:
        tokens = super().make_fields(num_rows)["input"]
        return {"input": tokens, "target": tokens + 1}


class TestShift(OfTokens):
    is_random = False

    def make_transform(self) -> Shift:
        return Shift()


def _add_noise(batch: Batch, keys: PickKeys) -> Batch:
    """What a user may write: noise of its own for each pixel, computed where the batch is."""
    image = batch["image"]
    noise = uniform(keys, image[0].numel(), image.device) if len(image) else image
    return batch.with_fields(batch.names, (image + noise.view(image.shape), batch["label"]))


class TestFunctionOfTheUsersOwn(OfFloats):
    def make_transform(self) -> UserTransform:
        return UserTransform(_add_noise)


def test_every_bundled_transform_is_held_to_it():
    names = [module.name for module in pkgutil.iter_modules(flodl_pipe.transforms.__path__)]
    modules = [importlib.import_module(f"flodl_pipe.transforms.{name}") for name in names if name != "protocol"]
    bundled = {
        value
        for module in modules
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and name in module.__all__
        and "scope" in vars(value)
        and callable(getattr(value, "output", None))
    }
    held = {type(value().make_transform()) for name, value in globals().items() if name.startswith("Test")}
    assert bundled - held == set()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (RandomErasing(1, value=7, scale=[0, 1]), RandomErasing(1.0, value=7.0, scale=(0.0, 1.0))),
        (RandomResizedCrop(8), RandomResizedCrop([8, 8], ratio=[3 / 4, 4 / 3])),
        (ColorJitter(1, 0, 2), ColorJitter(1.0, 0.0, 2.0)),
        (Mixup(10, alpha=1), Mixup(10, alpha=1.0)),
        (Cutmix(10, alpha=1), Cutmix(10, alpha=1.0)),
    ],
)
def test_a_constant_has_one_tag_however_it_is_written(one, other):
    assert one.tag == other.tag


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (RandomErasing(), RandomErasing(value=1)),
        (RandomErasing(), RandomErasing(0.4)),
        (RandomResizedCrop(8), RandomResizedCrop((8, 9))),
        (ColorJitter(0.1, 0.2), ColorJitter(0.2, 0.1)),
        (Mixup(10, alpha=1), Mixup(11, alpha=1)),
        (Mixup(10, alpha=1), Cutmix(10, alpha=1)),
        (Cutmix(10, alpha=1), Cutmix(10, alpha=1, image="picture")),
    ],
)
def test_another_constant_is_another_tag(one, other):
    assert one.tag != other.tag


class Broken:
    """A transform of images that breaks one promise."""

    scope = "row"
    tag = "broken()"

    def __init__(self, change: Any) -> None:
        self.change = change

    def output(self, spec: Any) -> Any:
        return spec

    def __call__(self, batch: Any, keys: Any) -> Any:
        return batch.with_fields(("image", "label"), self.change(*batch, keys))


def keyed(image: torch.Tensor, keys: Any) -> torch.Tensor:
    return image + torch.from_numpy(keys.uniform(1))[:, :, None, None]


BROKEN = {
    "test_any_split_gives_the_same_rows": lambda image, label, keys: (keyed(image, keys) + len(image), label),
    "test_the_place_in_the_batch_has_no_say": lambda image, label, keys: (keyed(image, keys).flip(0), label),
    "test_the_same_keys_give_the_same_rows": lambda image, label, keys: (image + torch.rand(1), label),
    "test_global_random_states_are_neither_used_nor_changed": lambda image, label, keys: (image + torch.rand(1), label),
    "test_no_two_fields_share_memory": lambda image, label, keys: (
        (keyed(image, keys), keyed(image, keys)[:, 0])[:1] * 2
    ),
    "test_it_makes_the_fields_that_it_announces": lambda image, label, keys: (keyed(image, keys).double(), label),
    "test_how_the_rows_lie_in_memory_has_no_say": lambda image, label, keys: (
        image.as_strided(image.shape, (324, 108, 9, 1)) if len(image) else image,
        label,
    ),
}


@pytest.mark.parametrize("test", BROKEN)
def test_a_broken_promise_is_caught(test):
    contract = TestColorJitterOfFloats()
    transform = Broken(BROKEN[test])
    contract.make_transform = lambda: transform  # type: ignore[method-assign]
    fields = contract.make_fields(13)
    batch = {name: tensor.clone() for name, tensor in fields.items()}
    given = {
        "transform": transform,
        "bundled": transform,
        "fields": fields,
        "whole": applied(transform, batch, make_keys(13)),
    }
    method = getattr(contract, test)
    wanted = inspect.signature(method).parameters
    with pytest.raises(AssertionError):
        method(**{name: value for name, value in given.items() if name in wanted})
