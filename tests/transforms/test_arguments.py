"""Arguments of the bundled transforms: what has another type or range is refused in words, before any batch."""

import numpy as np
import pytest
import torch

from flodl_pipe.errors import ConfigError
from flodl_pipe.transforms.arguments import require_number, require_numbers, require_size
from flodl_pipe.transforms.image_basic import HorizontalFlip, Normalize, RandomCrop, ToFloat, VerticalFlip
from flodl_pipe.transforms.image_color import ColorJitter
from flodl_pipe.transforms.image_erase import RandomErasing
from flodl_pipe.transforms.image_mix import Cutmix, Mixup
from flodl_pipe.transforms.image_resize import RandomResizedCrop
from flodl_pipe.transforms.tokens import MaskTokens, RandomSpan, Shift

MADE = {
    "to_float": (ToFloat, {"field": "image"}),
    "normalize": (Normalize, {"mean": 0.5, "std": 0.5, "field": "image"}),
    "random_crop": (RandomCrop, {"size": 8, "padding": 2, "mode": "zero", "field": "image"}),
    "horizontal_flip": (HorizontalFlip, {"probability": 0.5, "field": "image"}),
    "vertical_flip": (VerticalFlip, {"probability": 0.5, "field": "image"}),
    "random_resized_crop": (
        RandomResizedCrop,
        {"size": 8, "scale": (0.5, 1.0), "ratio": (0.5, 1.0), "field": "image"},
    ),
    "color_jitter": (ColorJitter, {"brightness": 0.1, "contrast": 0.1, "saturation": 0.1, "field": "image"}),
    "random_erasing": (
        RandomErasing,
        {"probability": 0.5, "scale": (0.5, 1.0), "ratio": (0.5, 1.0), "value": 1.0, "field": "image"},
    ),
    "mixup": (Mixup, {"alpha": 1.0, "num_classes": 10, "image": "image", "label": "label"}),
    "cutmix": (Cutmix, {"alpha": 1.0, "num_classes": 10, "image": "image", "label": "label"}),
    "mask_tokens": (
        MaskTokens,
        {
            "mask_id": 3,
            "vocab_size": 10,
            "probability": 0.5,
            "random": 0.5,
            "keep": 0.5,
            "ignore": [1],
            "ignore_below": 2,
            "field": "input",
            "target": "target",
        },
    ),
    "random_span": (RandomSpan, {"length": 4, "fields": ["input"]}),
    "shift": (Shift, {"field": "input", "target": "target"}),
}
TEXTS = ("field", "image", "label", "target", "mode", "fields")


def wrong(name):
    other = 5 if name in TEXTS else "10"
    return [other, None, [other], {"a": 1}, object(), *([] if name in TEXTS else [True])]


@pytest.mark.parametrize("kind", MADE)
def test_an_argument_of_another_type_is_refused_by_its_key_with_the_value(kind):
    make, arguments = MADE[kind]
    make(**arguments)
    for name, value in [(named, value) for named in arguments for value in wrong(named)]:
        with pytest.raises(ConfigError) as caught:
            make(**arguments | {name: value})
        (problem,) = caught.value.problems
        assert problem.key == f"{kind}.{name}", value
        assert "must be" in problem.message
        assert "got " in problem.message


def test_a_number_in_quotes_is_told_from_others():
    with pytest.raises(ConfigError, match=r"mixup.num_classes: .* got '10'; write it without quotes"):
        Mixup(num_classes="10")
    with pytest.raises(ConfigError, match=r"horizontal_flip.probability: must be in 0 .. 1, got '0.5'; write it with"):
        HorizontalFlip("0.5")


@pytest.mark.parametrize("half", [0.5, np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_numbers_of_numpy_and_torch_are_numbers(half):
    assert require_number(half, "a.b") == 0.5
    assert HorizontalFlip(half).tag == HorizontalFlip(0.5).tag
    assert Normalize([half], half).tag == Normalize(0.5, [0.5]).tag
    assert Mixup(np.int64(10), alpha=half).tag == Mixup(10, alpha=0.5).tag


def test_arrays_and_tensors_are_lists_of_numbers():
    assert require_numbers(torch.tensor([0.5, 0.25]), "a.b", "numbers") == (0.5, 0.25)
    assert require_numbers(np.array([1, 2]), "a.b", "numbers") == (1.0, 2.0)
    assert require_size([np.int64(3), 4], "a.b", 10) == (3, 4)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400])
def test_numbers_that_are_not_finite_are_refused(value):
    with pytest.raises(ConfigError, match=r"a.b: must be a finite number, got"):
        require_number(value, "a.b")
