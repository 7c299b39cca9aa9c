"""A section ``transforms`` becomes the chain that it describes."""

import subprocess
from functools import partial

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.config.transforms import TransformsSection, kinds
from flodl_pipe.errors import ConfigError, SourceError, TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.build import build_chain
from flodl_pipe.transforms.chain import Chain, as_chain
from flodl_pipe.transforms.image_basic import HorizontalFlip, Normalize, RandomCrop, ToFloat, VerticalFlip
from flodl_pipe.transforms.image_color import ColorJitter
from flodl_pipe.transforms.image_erase import RandomErasing
from flodl_pipe.transforms.image_mix import Cutmix, Mixup
from flodl_pipe.transforms.image_resize import RandomResizedCrop
from flodl_pipe.transforms.protocol import BundledTransform
from flodl_pipe.transforms.tokens import MaskTokens, RandomSpan, Shift

IMAGES = SampleSpec.of(image=("uint8", (3, 32, 32)), label=("int64", ()))
TOKENS = SampleSpec.of(input=("int64", (64,)), target=("int64", (64,)))


def chain_of(import_callable=None, **steps):
    section = TypeAdapter(TransformsSection).validate_python(steps, strict=True)
    return build_chain(section, import_callable or (lambda path, key: pytest.fail(f"{key} imports {path}")))


def images(num_rows=8):
    sample = np.arange(num_rows)
    keys = PickKeys(sample, np.zeros_like(sample), 0, 42)
    pixels = np.random.default_rng(0).integers(0, 256, (num_rows, 3, 32, 32), dtype=np.uint8)
    return Batch(("image", "label"), (torch.from_numpy(pixels), torch.arange(num_rows) % 10), pick_keys=keys)


STEPS = {
    "to_float": ({}, ToFloat()),
    "normalize": (
        {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.1]},
        Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.1)),
    ),
    "random_crop": ({"size": [24, 28], "padding": 4, "mode": "reflect"}, RandomCrop((24, 28), 4, "reflect")),
    "random_resized_crop": (
        {"size": 16, "scale": [0.5, 1.0], "ratio": [1, 2]},
        RandomResizedCrop(16, (0.5, 1.0), (1.0, 2.0)),
    ),
    "horizontal_flip": ({"probability": 0.25}, HorizontalFlip(0.25)),
    "vertical_flip": ({"probability": 0.25}, VerticalFlip(0.25)),
    "color_jitter": ({"brightness": 0.4, "contrast": 0.3, "saturation": 0.2}, ColorJitter(0.4, 0.3, 0.2)),
    "random_erasing": (
        {"probability": 0.9, "scale": [0.1, 0.2], "ratio": [0.5, 2.0], "value": 7.0},
        RandomErasing(0.9, (0.1, 0.2), (0.5, 2.0), 7.0),
    ),
    "mixup": ({"alpha": 0.2, "num_classes": 10}, Mixup(10, alpha=0.2)),
    "cutmix": ({"alpha": 0.5, "num_classes": 10}, Cutmix(10, alpha=0.5)),
    "mask_tokens": (
        {"mask_id": 3, "vocab_size": 50, "probability": 0.5, "random": 0.2, "keep": 0.3, "ignore": [0, 1]},
        MaskTokens(mask_id=3, vocab_size=50, probability=0.5, random=0.2, keep=0.3, ignore=[0, 1]),
    ),
    "random_span": ({"length": 9, "fields": ["input"]}, RandomSpan(length=9, fields=["input"])),
    "shift": ({"target": "labels"}, Shift(target="labels")),
}


def test_every_kind_is_tested():
    assert [*STEPS, "function"] == list(kinds())


@pytest.mark.parametrize("kind", STEPS)
def test_a_kind_makes_its_class_with_its_constants(kind):
    keys, expected = STEPS[kind]
    chain = chain_of(one=dict(kind=kind, **keys))
    assert isinstance(expected, BundledTransform)
    assert chain.tag == Chain([("one", expected)]).tag
    assert chain.scope == expected.scope


@pytest.mark.parametrize("kind", STEPS)
def test_the_defaults_of_a_kind_are_those_of_its_class(kind):
    keys, expected = STEPS[kind]
    required = {name for name, field in kinds()[kind].model_fields.items() if field.is_required()}
    needed = {name: value for name, value in keys.items() if name in {*required, "mean", "std", "alpha"}}
    made = type(expected)(**needed)
    assert chain_of(one=dict(kind=kind, **needed)).tag == Chain([("one", made)]).tag


def test_steps_have_the_order_of_the_section():
    chain = chain_of(
        flip={"kind": "horizontal_flip"}, crop={"kind": "random_crop", "size": 24}, float={"kind": "to_float"}
    )
    assert chain.names == ("flip", "crop", "float")
    assert chain.output(IMAGES) == SampleSpec.of(image=("float32", (3, 24, 24)), label=("int64", ()))


def test_a_preset_is_its_figures():
    preset = chain_of(norm={"kind": "normalize", "preset": "cifar10"})
    figures = chain_of(norm={"kind": "normalize", "mean": [0.4914, 0.4822, 0.4465], "std": [0.2470, 0.2435, 0.2616]})
    assert preset.tag == figures.tag


def test_an_empty_section_is_an_empty_chain():
    assert chain_of().is_empty


def test_what_is_configured_runs():
    chain = chain_of(
        crop={"kind": "random_crop", "size": 32, "padding": 4},
        flip={"kind": "horizontal_flip"},
        resize={"kind": "random_resized_crop", "size": 24},
        jitter={"kind": "color_jitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4},
        normalize={"kind": "normalize", "preset": "cifar10"},
        erase={"kind": "random_erasing", "probability": 1.0},
        mix={"kind": "mixup", "num_classes": 10},
    )
    given = images()
    made = chain(given, given.pick_keys)
    assert chain.scope == "pair"
    said = chain.output(IMAGES)
    assert [(field.name, (8, *field.shape)) for field in said] == [(n, tuple(t.shape)) for n, t in made.items()]
    assert chain.array_pass(IMAGES) is None


def test_crop_flip_and_normalize_are_one_pass_with_the_same_result():
    chain = chain_of(
        crop={"kind": "random_crop", "size": 32, "padding": 4},
        flip={"kind": "horizontal_flip"},
        normalize={"kind": "normalize", "preset": "cifar10"},
    )
    given = images(16)
    fused = chain.array_pass(IMAGES)
    assert fused.spec == chain.output(IMAGES)
    out = fused.spec.empty(16)
    fused.apply({name: tensor.numpy() for name, tensor in given.items()}, fused.draw(given.pick_keys), out)
    made = chain(given, given.pick_keys)
    for name, tensor in made.items():
        assert np.array_equal(out[name], tensor.numpy())


# --- functions of one's own ------------------------------------------------------------------------------------------


def brighten(batch, keys, amount=1):
    return batch.with_fields(batch.names, (batch["image"] + amount, batch["label"]))


class Brighten:
    scope = "pair"

    def __init__(self, amount, table=()):
        if amount < 0:
            raise ValueError("amount is negative")
        self.amount, self.table = amount, table

    def __call__(self, batch, keys):
        return brighten(batch, keys, self.amount)


class Known(Brighten):
    tag = "known()"

    def output(self, spec):
        return spec


class NoCall:
    pass


def imports(path, key):
    assert key == "transforms.mine.path"
    module, _, name = path.partition(":")
    assert module == "mypkg"
    return globals()[name]


def test_a_function_is_called_with_its_arguments():
    chain = chain_of(imports, mine={"kind": "function", "path": "mypkg:brighten", "args": {"amount": 3}})
    given = images()
    assert torch.equal(chain(given, given.pick_keys)["image"], images()["image"] + 3)
    assert (chain.scope, chain.output(IMAGES)) == ("row", None)
    assert chain.tag.startswith("mine: mypkg:brighten(amount=3) [")
    assert chain.tag.partition(" [")[0] == as_chain({"mine": partial(brighten, amount=3)}).tag.partition(" [")[
        0
    ].replace(brighten.__module__, "mypkg")


def test_the_scope_is_what_the_section_or_the_callable_says():
    wide = chain_of(imports, mine={"kind": "function", "path": "mypkg:brighten", "scope": "batch"})
    assert wide.scope == "batch"
    with pytest.raises(
        ConfigError, match=r"transforms\.mine: mypkg:Brighten says scope='pair' itself, and scope='row'"
    ):
        chain_of(imports, mine={"kind": "function", "path": "mypkg:Brighten", "args": {"amount": 1}, "scope": "row"})


def test_a_class_is_made_once_with_its_arguments():
    args = {"amount": 2, "table": [1]}
    chain = chain_of(imports, mine={"kind": "function", "path": "mypkg:Brighten", "args": args})
    given = images()
    assert torch.equal(chain(given, given.pick_keys)["image"], images()["image"] + 2)
    assert chain.scope == "pair"
    assert chain.tag.startswith("mine: mypkg:Brighten(amount=2, table=[1]) [")


def test_a_class_that_says_what_it_makes_is_believed():
    chain = chain_of(imports, mine={"kind": "function", "path": "mypkg:Known", "args": {"amount": 2}})
    assert chain.output(IMAGES) == IMAGES
    assert chain.tag.startswith("mine: known() [")


@pytest.mark.parametrize(
    ("name", "args", "error", "message"),
    [
        ("brighten", {"amonut": 1}, ConfigError, r"transforms\.mine: mypkg:brighten takes .*here also with amonut"),
        ("brighten", {"keys": 1}, ConfigError, "multiple values"),
        ("Brighten", {}, ConfigError, r"transforms\.mine\.args: do not fit mypkg:Brighten: missing a required"),
        (
            "Brighten",
            {"amount": -1},
            TransformError,
            r"mine\.path=mypkg:Brighten raised ValueError: amount is negative",
        ),
        ("NoCall", {}, ConfigError, r"transforms\.mine\.path: objects of mypkg:NoCall cannot be called"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_built(name, args, error, message):
    with pytest.raises(error, match=message):
        chain_of(imports, mine={"kind": "function", "path": f"mypkg:{name}", "args": args})


def test_an_error_of_the_import_is_left_as_it_is():
    def refuse(path, key):
        raise SourceError(f"{key}: {path} is not there")

    with pytest.raises(SourceError, match=r"transforms\.mine\.path: mypkg:brighten is not there"):
        chain_of(refuse, mine={"kind": "function", "path": "mypkg:brighten"})


def test_a_function_of_the_system_cannot_be_mistaken_for_a_transform():
    with pytest.raises(ConfigError, match="do not fit"):
        chain_of(lambda path, key: subprocess.Popen, mine={"kind": "function", "path": "mypkg:Popen"})
