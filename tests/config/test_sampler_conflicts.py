"""What a sampler and a batch sampler exclude, and what they do not."""

import re
from pathlib import Path

import pytest

from flodl_pipe.config.compose import load_config
from flodl_pipe.config.sampler_conflicts import refuse_sampler_conflicts, sampler_conflicts
from flodl_pipe.errors import ConfigError

GIVEN = [1, 2, 3]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"shuffle": False, "order": "blocked", "augment": 3, "drop_last": "pad", "batch_size": 8},
        {"sampler": GIVEN},
        {"sampler": GIVEN, "batch_size": 8, "global_batch_size": 32, "drop_last": False},
        {"sampler": GIVEN, "shuffle": True, "order": "uniform", "augment": 1},
        {"batch_sampler": [GIVEN], "shuffle": True, "order": "uniform", "augment": 1},
    ],
)
def test_what_goes_together(given):
    assert sampler_conflicts(**given) == ()
    refuse_sampler_conflicts(**given)


@pytest.mark.parametrize("key", ["sampler", "batch_sampler"])
@pytest.mark.parametrize(
    ("other", "value", "message"),
    [
        ("shuffle", False, r"sampling.shuffle: false excludes sampling.{key}: .*decides the order.*storage order"),
        ("order", "blocked", r"sampling.order: 'blocked' excludes sampling.{key}: .*decides the order"),
        ("augment", 3, r"sampling.augment: 3 excludes sampling.{key}: .*decides how often a sample comes; yield each"),
    ],
)
def test_both_samplers_exclude_what_decides_the_order(key, other, value, message):
    with pytest.raises(ConfigError, match=message.format(key=key)):
        refuse_sampler_conflicts(**{key: GIVEN, other: value})


@pytest.mark.parametrize(
    ("other", "value", "where"),
    [
        ("batch_size", 8, "loader.batch_size"),
        ("global_batch_size", 8, "loader.global_batch_size"),
        ("drop_last", False, "sampling.drop_last"),
        ("drop_last", True, "sampling.drop_last"),
        ("drop_last", "pad", "sampling.drop_last"),
        ("sampler", GIVEN, "sampling.sampler"),
    ],
)
def test_a_batch_sampler_excludes_what_makes_batches(other, value, where):
    with pytest.raises(ConfigError, match=rf"{where}: .*excludes sampling.batch_sampler: the batch sampler decides"):
        refuse_sampler_conflicts(batch_sampler=[GIVEN], **{other: value})


def test_all_conflicts_are_told_together():
    found = sampler_conflicts(batch_sampler=[GIVEN], sampler=GIVEN, batch_size=4, drop_last=True, order="weighted")
    assert [problem.key for problem in found] == [
        "sampling.order",
        "sampling.sampler",
        "loader.batch_size",
        "sampling.drop_last",
    ]


def test_the_batch_sampler_that_is_shown_is_a_valid_recipe_and_needs_its_batch_size_null(folder):
    page = (Path(__file__).resolve().parents[2] / "docs" / "samplers.md").read_text()
    (recipe,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    folder("recipes/m.yaml", recipe)
    sampling = load_config("m", "allow_import=[mypkg]").sampling
    assert sampling.batch_sampler == "mypkg.order:whole_batches"
    assert sampling.sampler_args == {"rows": 64}
    folder("recipes/m.yaml", recipe.replace("batch_size: null", "batch_size: 8"))
    with pytest.raises(ConfigError, match=r"loader.batch_size: 8 excludes sampling.batch_sampler"):
        load_config("m", "allow_import=[mypkg]")
