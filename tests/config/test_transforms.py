"""Section ``transforms``: kinds, their keys, faults with the key that is wrong; the options in ``conf/transforms``."""

import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator
from pydantic import Field, ValidationError

from flodl_pipe.config.base import StrictModel
from flodl_pipe.config.keys import dotted, has_free_names, key_names, locate, may_be_added
from flodl_pipe.config.places import conf_dir
from flodl_pipe.config.transforms import TransformsSection, key_tables, kinds
from flodl_pipe.config.transforms_image import STATISTICS

OPTIONS = sorted((conf_dir() / "transforms").glob("*.yaml"))
PAGE = Path(__file__).resolve().parents[2] / "docs" / "transforms.md"


class Whole(StrictModel):
    """A config that has transforms."""

    transforms: TransformsSection = Field(default={})


def read(**steps):
    return Whole.model_validate({"transforms": steps}, strict=True).transforms


def faults(**steps):
    """Return the keys and messages of what is wrong with a section."""
    with pytest.raises(ValidationError) as caught:
        read(**steps)
    found = {}
    for error in caught.value.errors():
        key = (*locate(Whole, error["loc"])[0], *error.get("ctx", {}).get("at", ()))
        found[dotted(key)] = error["msg"]
    return found


MASK = {"kind": "mask_tokens", "mask_id": 3, "vocab_size": 50}


def test_steps_keep_the_order_in_which_they_are_written():
    steps = read(b={"kind": "to_float"}, a={"kind": "random_crop", "size": 32}, c={"kind": "shift"})
    assert list(steps) == ["b", "a", "c"]
    assert [step.kind for step in steps.values()] == ["to_float", "random_crop", "shift"]
    assert Whole().transforms == {}


def test_it_survives_json():
    whole = Whole.model_validate(
        {
            "transforms": {
                "crop": {"kind": "random_crop", "size": [24, 32], "padding": 4},
                "norm": {"kind": "normalize", "preset": "imagenet"},
                "mask": MASK,
                "mine": {"kind": "function", "path": "a.b:c", "args": {"x": [1, None]}},
            }
        }
    )
    again = Whole.model_validate_json(whole.model_dump_json(), strict=True)
    assert again == whole
    assert list(again.transforms) == list(whole.transforms)


def test_the_names_of_steps_are_the_users_and_their_keys_may_be_added():
    assert has_free_names(Whole, ("transforms",))
    assert may_be_added(Whole, ("transforms", "crop"))
    assert may_be_added(Whole, ("transforms", "crop", "padding"))
    assert not may_be_added(Whole, ("transforms", "crop", "paddding"))


def test_the_statistics_are_of_one_or_three_channels():
    for name, (mean, std) in STATISTICS.items():
        assert len(mean) == len(std) in (1, 3)
        assert all(0 < number < 1 for number in (*mean, *std))
        assert read(n={"kind": "normalize", "preset": name})["n"].statistics() == (mean, std)


@pytest.mark.parametrize("mean", [0.5, [0.5], 1])
def test_figures_are_one_number_or_a_list(mean):
    found = read(n={"kind": "normalize", "mean": mean, "std": 0.25})["n"]
    assert found.statistics() == ([float(mean if isinstance(mean, int | float) else 0.5)], [0.25])


@pytest.mark.parametrize("size", [32, 32.0, [24, 32], [24.0, 32]])
def test_a_size_is_one_number_or_two(size):
    found = read(crop={"kind": "random_crop", "size": size})["crop"].size
    assert found in (32, [24, 32])
    assert "." not in str(found)


@pytest.mark.parametrize(
    "size", [0, -1, 1.5, True, "32", None, 65537, [], [32], [1, 2, 3], [32, 0], [32, True], {"h": 1}]
)
def test_what_is_no_size_is_refused(size):
    found = faults(crop={"kind": "random_crop", "size": size})
    assert "must be an integer from 1 to 65536, or [height, width], got" in found["transforms.crop.size"]


@pytest.mark.parametrize(
    ("step", "key", "message"),
    [
        ({"kind": "normalize"}, "mean", "must be set, got null: give mean and std, or a preset"),
        ({"kind": "normalize", "mean": [0.5]}, "std", "must be set, got null"),
        (
            {"kind": "normalize", "mean": [0.5], "std": [0.1, 0.2]},
            "std",
            "one number for each of the 1 of mean, got [0.1",
        ),
        ({"kind": "normalize", "mean": [0.5], "std": [0.0]}, "std", "must be above 0, got [0.0]; leave a constant"),
        ({"kind": "normalize", "mean": [], "std": [0.1]}, "mean", "at least 1 item"),
        (
            {"kind": "normalize", "mean": "0.5", "std": 0.1},
            "mean",
            "must be a number, or a list of one for each channel, got '0.5'",
        ),
        (
            {"kind": "normalize", "mean": True, "std": 0.1},
            "mean",
            "must be a number, or a list of one for each channel, got true",
        ),
        ({"kind": "normalize", "mean": 0.5, "std": 0}, "std", "must be above 0, got [0.0]; leave a constant"),
        ({"kind": "normalize", "mean": [0.5], "preset": "mnist"}, "preset", "cannot be set together with mean"),
        ({"kind": "normalize", "preset": "svhn"}, "preset", "'cifar10', 'cifar100'"),
        ({"kind": "random_crop", "size": 4, "padding": -1}, "padding", "greater than or equal to 0"),
        ({"kind": "random_crop", "size": 4, "mode": "edge"}, "mode", "'zero' or 'reflect'"),
        ({"kind": "random_crop", "size": 4, "field": ""}, "field", "must be the name of a field, got ''"),
        (
            {"kind": "random_resized_crop", "size": 4, "scale": [0.5, 1.5]},
            "scale",
            "above 0 and at most 1, the smaller",
        ),
        ({"kind": "random_resized_crop", "size": 4, "scale": [0.5]}, "scale", "at least 2 items"),
        (
            {"kind": "random_resized_crop", "size": 4, "ratio": [2, 1]},
            "ratio",
            "from 0.001 to 1000, the smaller one first, got [2.0, 1.0]",
        ),
        ({"kind": "horizontal_flip", "probability": 1.5}, "probability", "less than or equal to 1"),
        ({"kind": "vertical_flip", "probability": True}, "probability", "valid number"),
        ({"kind": "color_jitter", "contrast": -0.1}, "contrast", "greater than or equal to 0"),
        ({"kind": "random_erasing", "scale": [0, 1]}, "scale", "must be two numbers above 0"),
        ({"kind": "random_erasing", "value": float("inf")}, "value", "finite"),
        ({"kind": "mixup", "num_classes": 0}, "num_classes", "greater than or equal to 1"),
        ({"kind": "cutmix", "num_classes": 10, "alpha": 0.01}, "alpha", "greater than or equal to 0.1"),
        ({"kind": "mask_tokens", "mask_id": 50, "vocab_size": 50}, "mask_id", "must be below vocab_size=50, got 50"),
        ({**MASK, "random": 0.6, "keep": 0.5}, "keep", "must be at most 0.4, got 0.5: with random=0.6"),
        ({**MASK, "target": "input"}, "target", "another field than that of the tokens, got 'input'"),
        ({**MASK, "ignore": ["a"]}, "ignore[0]", "valid integer"),
        ({"kind": "random_span", "length": 0}, "length", "greater than or equal to 1"),
        ({"kind": "random_span", "length": 4, "fields": ["a", "a"]}, "fields", "must name each field once"),
        ({"kind": "random_span", "length": 4, "fields": []}, "fields", "at least 1 item"),
        ({"kind": "shift", "field": "target"}, "target", "another field"),
        ({"kind": "function", "path": "mypkg.aug.cut"}, "path", "Did you mean 'mypkg.aug:cut'?"),
        ({"kind": "function", "path": "a:b", "scope": "sample"}, "scope", "'row', 'pair' or 'batch'"),
        ({"kind": "to_float", "size": 3}, "size", "Extra inputs"),
        ({"kind": "resize"}, "", "'random_resized_crop'"),
        ({"size": 3}, "", "Unable to extract tag using discriminator 'kind'"),
    ],
)
def test_a_fault_names_its_key_the_value_and_the_rule(step, key, message):
    found = faults(it=step)
    assert list(found) == [f"transforms.it.{key}".rstrip(".")]
    assert message in next(iter(found.values()))


@pytest.mark.parametrize("kind", list(kinds()))
def test_what_a_kind_needs_is_said(kind):
    needed = {f"transforms.it.{name}" for name, field in kinds()[kind].model_fields.items() if field.is_required()}
    if needed:
        assert set(faults(it={"kind": kind})) == needed


@pytest.mark.parametrize("name", ["a b", "a-b", "1st", "", "ä.b", "é"])
def test_a_name_that_no_command_line_could_say_is_refused(name):
    found = faults(**{name: {"kind": "shift"}, "crop": {"kind": "random_crop", "size": 0}})
    assert list(found) == [dotted(("transforms", name)), "transforms.crop.size"], "all faults are told at once"
    assert f"{name!r} is not a name of a step: use letters, digits and _" in next(iter(found.values()))


def test_what_is_no_mapping_is_refused():
    with pytest.raises(ValidationError, match="valid dictionary"):
        Whole.model_validate({"transforms": [{"kind": "shift"}]}, strict=True)
    assert list(faults(it=3)) == ["transforms.it"]


def test_null_takes_a_step_back():
    assert list(read(crop={"kind": "random_crop", "size": 4}, flip=None)) == ["crop"]


def test_the_schema_knows_kinds_names_and_null():
    check = Draft7Validator(Whole.model_json_schema())
    assert not list(check.iter_errors({"transforms": {"crop": {"kind": "random_crop", "size": [4, 5]}, "flip": None}}))
    for wrong in ({"a b": None}, {"crop": {"kind": "random_crop", "size": 0}}, {"crop": {"kind": "crop"}}):
        assert list(check.iter_errors({"transforms": wrong})), wrong


# --- options and documentation ---------------------------------------------------------------------------------------


def option(file):
    return yaml.safe_load(file.read_text())


def test_the_options_are_known():
    assert [file.stem for file in OPTIONS] == ["cifar", "mask_tokens", "mnist", "none"]
    assert option(conf_dir() / "transforms" / "none.yaml") == {}


@pytest.mark.parametrize("file", OPTIONS, ids=lambda file: file.stem)
def test_an_option_is_valid_and_lists_every_key_of_its_steps(file):
    """Hydra takes an override only for a key that is there; one that is left out would need a '+'."""
    steps = option(file)
    for name, step in steps.items():
        model = kinds()[step["kind"]]
        assert sorted(step) == sorted(key_names(model)), name
        unset = {key for key, value in step.items() if value == "???"}
        assert unset == {key for key, field in model.model_fields.items() if field.is_required() and key in unset}
        step.update({key: 1 + place for place, key in enumerate(sorted(unset))})
    read(**steps)


def test_every_key_of_every_kind_is_documented():
    rows: dict[str, dict[str, str]] = {}
    for kind, key, default in re.findall(
        r"^\| (?:`(\w+)`)? *\| `(\w+)` \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE
    ):
        rows.setdefault(kind or list(rows)[-1], {})[key] = default
    expected = {kind: {key: default for key, default, _ in table} for kind, table in key_tables().items()}
    assert list(rows) == list(expected)
    for kind, defaults in expected.items():
        read_back = {key: "???" if text == "???" else yaml.safe_load(text) for key, text in rows[kind].items()}
        assert read_back == defaults, kind


@pytest.mark.parametrize("block", re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
def test_a_section_that_is_shown_is_valid(block):
    assert read(**yaml.safe_load(block)["transforms"])
