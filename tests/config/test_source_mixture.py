"""Section ``source`` of kind ``mixture``: exact weights, and faults with the key that is wrong."""

from fractions import Fraction
from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from flodl_pipe.config.base import StrictModel
from flodl_pipe.config.keys import children, dotted, has_free_names, locate, may_be_added
from flodl_pipe.config.source_mixture import MixtureConfig, MixturePart
from flodl_pipe.config.source_records import RecordField, RecordsConfig
from flodl_pipe.config.source_tokens import TokenShardsConfig

TOKENS = {"kind": "token_shards", "seq_len": 8, "path": "/x"}
ODD = {**TOKENS, "sq": 0}


class Whole(StrictModel):
    """A config that has mixtures."""

    source: Annotated[TokenShardsConfig | RecordsConfig | MixtureConfig, Field(discriminator="kind")]


def mixture(weights=(0.7, 0.3), names=("web", "code"), **keys):
    parts = {name: {"source": TOKENS, "weight": weight} for name, weight in zip(names, weights, strict=True)}
    return MixtureConfig(parts=parts, **keys)


def faults(tree):
    """Return the keys and messages of what is wrong with a section."""
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate({"source": {"kind": "mixture", **tree}}, strict=True)
    found = {}
    for error in caught.value.errors():
        key = (*locate(Whole, error["loc"])[0], *error.get("ctx", {}).get("at", ()))
        found[dotted(key)] = error["msg"]
    return found


def part(weight=1, **keys):
    return {"source": TOKENS, "weight": weight, **keys}


def test_weights_are_the_numbers_that_were_written():
    config = mixture(schedule=[{"at": 5000, "weights": {"code": 2, "web": 0.1}}])
    assert config.changes() == (
        (0, (Fraction(7, 10), Fraction(3, 10))),
        (5000, (Fraction(1, 10), Fraction(2))),
    )
    assert (config.block, config.epoch_samples, config.parts["web"].max_epochs) == (1000, None, None)
    assert config.field_names() == ("input", "target")


def test_it_survives_json():
    config = mixture(schedule=[{"at": 5000, "weights": {"code": 2, "web": 0.1}}], epoch_samples=4000)
    assert MixtureConfig.model_validate_json(config.model_dump_json(), strict=True) == config


@pytest.mark.parametrize("weight", [-0.1, True, "1", None, float("nan"), float("inf"), 1e13])
def test_a_weight_that_is_no_proportion_is_refused(weight):
    found = faults({"parts": {"a": part(weight), "b": part()}})
    assert list(found) == ["source.parts.a.weight"]
    assert "must be a number from 0" in found["source.parts.a.weight"]


@pytest.mark.parametrize(
    ("tree", "key", "message"),
    [
        ({"parts": {}}, "source.parts", "at least 1"),
        ({"parts": {"a": part(0), "b": part()}}, "source.parts.a.weight", "must be above 0, got 0: the part would"),
        ({"parts": {"a": part(0), "b": part(0)}}, "source.parts", "above 0 for at least one part from sample 0"),
        ({"parts": {"a b": part()}}, "source.parts.a b", "is not a name"),
        ({"parts": {"a": part()}, "epoch_samples": 1500}, "source.epoch_samples", "use 1000 or 2000"),
        ({"parts": {"a": part()}, "epoch_samples": 10}, "source.epoch_samples", "use 1000 or 1000"),
        ({"parts": {"a": part()}, "block": 0}, "source.block", "greater than or equal to 1"),
        ({"parts": {"a": part()}, "block": 65_537}, "source.block", "less than or equal to 65536"),
        ({"parts": {"a": part(0.001), "b": part(0.999)}, "block": 10}, "source.block", "at least 1000 for part 'a'"),
        ({"parts": {"a": part()}, "subset": {"fraction": 0.5}}, "source.subset", "set subset in its parts"),
        ({"parts": {"a": part(max_epochs=0)}}, "source.parts.a.max_epochs", "greater than or equal to 1"),
        ({"parts": {"a": {"source": TOKENS}}}, "source.parts.a.weight", "required"),
        ({"parts": {"a": {"source": {"kind": "mixture", "parts": {}}, "weight": 1}}}, "source.parts.a.source", "tag"),
        ({"parts": {"a": {"source": {**TOKENS, "seq_len": 0}, "weight": 1}}}, "source.parts.a.source.seq_len", "1"),
        ({"parts": {"records": {"source": ODD, "weight": 1}}}, "source.parts.records.source.sq", "Extra"),
    ],
)  # fmt: skip
def test_what_cannot_be_mixed_is_refused_with_its_key(tree, key, message):
    found = faults(tree)
    assert list(found) == [key]
    assert message in found[key]


@pytest.mark.parametrize(
    ("schedule", "key", "message"),
    [
        ([{"at": 0, "weights": {"a": 1, "b": 1}}], "source.schedule[0].at", "greater than or equal to 1"),
        ([{"at": 5, "weights": {"a": 1}}], "source.schedule[0].weights", "(a, b), got them without b"),
        ([{"at": 5, "weights": {"a": 1, "b": 1, "c": 1}}], "source.schedule[0].weights", "with c, which is no part"),
        ([{"at": 5, "weights": {"a": 0, "b": 0}}], "source.schedule[0].weights", "from sample 5 on"),
        ([{"at": 5, "weights": {"a": 1e-9, "b": 1}}], "source.block", "from sample 5 on"),
        (
            [{"at": 2000, "weights": {"a": 1, "b": 2}}, {"at": 1001, "weights": {"a": 1, "b": 3}}],
            "source.schedule[1].at",
            "takes effect at sample 2000, got 1001",
        ),
        (
            [{"at": 1001, "weights": {"a": 1, "b": 2}}, {"at": 2000, "weights": {"a": 1, "b": 3}}],
            "source.schedule[1].at",
            "takes effect at sample 2000, got 2000",
        ),
        ([{"at": 5, "weights": {"a": -1, "b": 1}}], "source.schedule[0].weights.a", "must be a number from 0"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused_with_its_key(schedule, key, message):
    found = faults({"parts": {"a": part(), "b": part()}, "schedule": schedule})
    assert list(found) == [key]
    assert message in found[key]


def test_a_part_may_come_in_later():
    config = mixture((1, 0), schedule=[{"at": 5000, "weights": {"web": 1, "code": 1}}])
    assert config.changes()[0] == (0, (1, 0))


def test_keys_inside_of_parts_are_known():
    loc = ("source", "mixture", "parts", "web", "source", "token_shards", "seq_len")
    assert locate(Whole, loc) == (("source", "parts", "web", "source", "seq_len"), TokenShardsConfig)
    loc = ("source", "mixture", "parts", "mixture", "source", "records", "fields", "x", "offset")
    assert locate(Whole, loc) == (("source", "parts", "mixture", "source", "fields", "x", "offset"), RecordField)
    assert locate(Whole, ("source", "mixture", "parts", "web", "wait")) == (
        ("source", "parts", "web", "wait"),
        MixturePart,
    )
    assert {model.__name__ for model in children(MixturePart, "source")} >= {"TokenShardsConfig", "RecordsConfig"}


@pytest.mark.parametrize(
    ("key", "free"),
    [
        (("source", "parts"), True),
        (("source", "parts", "web"), False),
        (("source", "parts", "web", "source"), False),
        (("source", "parts", "web", "source", "fields"), True),
        (("source", "parts", "web", "source", "seq_len"), False),
        (("source", "schedule", 0, "weights"), True),
        (("source", "fields"), True),
        (("source",), False),
        ((), False),
    ],
)
def test_mappings_whose_names_are_the_users_are_known_wherever_they_are(key, free):
    assert has_free_names(Whole, key) is free


@pytest.mark.parametrize(
    ("key", "added"),
    [
        (("source", "parts", "web"), True),
        (("source", "parts", "web", "max_epochs"), True),
        (("source", "parts", "web", "source", "stride"), True),
        (("source", "parts", "web", "source", "strid"), False),
        (("source", "fields", "x"), True),
        (("source", "fields", "x", "shape"), True),
        (("source", "stride"), False),
        (("source",), False),
        ((), False),
    ],
)
def test_keys_below_names_of_the_users_may_be_added(key, added):
    assert may_be_added(Whole, key) is added
