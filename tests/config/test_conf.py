"""The files of conf/ and recipes/ against the models."""

import pytest
import yaml

from flodl_pipe.config.base import StrictModel
from flodl_pipe.config.cluster import ClusterConfig
from flodl_pipe.config.compose import load_config
from flodl_pipe.config.job import DigestJob, FetchJob, LaunchJob, PlanJob, RunJob, SchemaJob, VerifyJob
from flodl_pipe.config.keys import key_names
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.config.places import conf_dir, recipe_dirs, recipe_names
from flodl_pipe.config.reports import ReportsConfig
from flodl_pipe.config.root import Config
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.config.source_custom import CustomConfig
from flodl_pipe.config.source_images import (
    Cifar10Config,
    Cifar10DiskConfig,
    Cifar100Config,
    FashionMnistConfig,
    MnistConfig,
)
from flodl_pipe.config.source_mixture import MixtureConfig
from flodl_pipe.config.source_records import RecordsConfig
from flodl_pipe.config.source_stream import StreamConfig
from flodl_pipe.config.source_text import TextConfig
from flodl_pipe.config.source_tokens import TokenShardsConfig

OPTIONS = {
    "source/token_shards": TokenShardsConfig,
    "source/records": RecordsConfig,
    "source/mnist": MnistConfig,
    "source/fashion_mnist": FashionMnistConfig,
    "source/cifar10": Cifar10Config,
    "source/cifar10_disk": Cifar10DiskConfig,
    "source/cifar100": Cifar100Config,
    "source/shakespeare": TextConfig,
    "source/stream": StreamConfig,
    "source/mixture": MixtureConfig,
    "source/custom": CustomConfig,
    "sampling/default": SamplingConfig,
    "sampling/eval": SamplingConfig,
    "loader/default": LoaderConfig,
    "cluster/single": ClusterConfig,
    "reports/default": ReportsConfig,
    "job/run": RunJob,
    "job/plan": PlanJob,
    "job/schema": SchemaJob,
    "job/fetch": FetchJob,
    "job/digest": DigestJob,
    "job/launch": LaunchJob,
    "job/verify": VerifyJob,
}
# Examples that say what they change, over cluster/single: tests/config/test_cluster.py looks at them.
CLUSTERS = {"cluster/one_host", "cluster/mixed_gpus", "cluster/two_hosts", "cluster/apu_farm"}
RECIPES = sorted(recipe_dirs()[-1][1].glob("*.yaml"))


def read(option):
    return yaml.safe_load((conf_dir() / f"{option}.yaml").read_text())


def of_model(field, value):
    """Return what a section inside a section is in YAML, as the model that it becomes."""
    is_section = isinstance(field.default, StrictModel)
    return type(field.default)(**value) if is_section else value


def test_every_option_is_tested():
    files = {file.relative_to(conf_dir()).with_suffix("").as_posix() for file in conf_dir().glob("*/*.yaml")}
    # transforms has no keys of its own, but named steps; tests/config/test_transforms.py looks at those.
    assert {file for file in files if not file.startswith("transforms/")} == {*OPTIONS, *CLUSTERS}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_lists_every_key(option):
    """Hydra takes an override only for a key that is there; one that is left out would need a '+'."""
    assert sorted(read(option)) == sorted(key_names(OPTIONS[option]))


@pytest.mark.parametrize("option", sorted(set(OPTIONS) - {"sampling/eval"}))
def test_a_default_in_yaml_is_the_models_default(option):
    for name, value in read(option).items():
        field = OPTIONS[option].model_fields[name]
        assert (value == "???") == field.is_required(), name
        assert field.is_required() or of_model(field, value) == field.default, name


def test_eval_reads_every_sample_once_in_storage_order():
    assert read("sampling/eval") == {**read("sampling/default"), "shuffle": False, "drop_last": False}


def test_the_root_lists_every_section_and_top_key():
    root = yaml.safe_load((conf_dir() / "config.yaml").read_text())
    groups = [next(iter(entry)) for entry in root["defaults"] if isinstance(entry, dict)]
    assert {*groups, *root} - {"override hydra/help", "defaults", "hydra"} == set(key_names(Config))
    assert root["data_dir"] == "data"
    assert root["hydra"]["job"] == {"name": "flodl_pipe", "chdir": False}
    assert root["hydra"]["run"]["dir"].endswith("-%f}")


def test_conf_and_recipes_hold_no_python():
    """The wheel maps these folders into the package, and editable installs refuse that for Python files."""
    assert not [*conf_dir().rglob("*.py"), *conf_dir().parent.glob("recipes/**/*.py")]


def test_the_recipes_are_known():
    assert recipe_names() == [
        *("cifar10", "cifar10_disk", "custom", "fashion_mnist", "mixture", "mnist", "nanogpt_bin", "olmo_shards"),
        *("olmo_shards_npy", "remote_shards", "shakespeare_char", "text_lines", "text_stream"),
    ]


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_is_valid_documented_and_checked_by_editors(file):
    needed = {"remote_shards": ["source.path=http://h/a.npy"], "custom": ["allow_import=[squares]"]}
    source = load_config(file.stem, *needed.get(file.stem, [])).source
    if not needed.get(file.stem):
        parts = [part.source for part in source.parts.values()] if source.kind == "mixture" else [source]
        assert {(part.path, part.if_missing) for part in parts} == {(None, "sample")}
    lines = file.read_text().splitlines()
    assert lines[0] == "# @package _global_"
    assert lines[1] == "# yaml-language-server: $schema=../flodl_pipe/recipe.schema.json"
    assert f"flodl-pipe +recipe={file.stem} " in file.read_text(), "shows how to point it at one's own data"


def test_the_command_lines_in_the_recipes_work():
    assert (
        load_config("olmo_shards", 'source.path="/d/part-*.npy"', "source.dtype=uint32").source.path == "/d/part-*.npy"
    )
    assert load_config("olmo_shards_npy", 'source.path="/data/shards/*.npy"').source.format == "npy"
    assert load_config("nanogpt_bin", "source.path=data/a/train.bin").source.path.endswith("/data/a/train.bin")
