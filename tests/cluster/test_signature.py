"""What of a config is compared between ranks: all of it, but what a host may have its own way.

White box: that every key of the lists that say so exists, and that no path is missing in them.
"""

import json
from functools import cache
from typing import get_args, get_type_hints

import pytest
from pydantic import BaseModel

from flodl_pipe.cluster.signature import _FILES, _HOSTS_OWN, config_facts
from flodl_pipe.config.base import LocalPath, LocalPaths
from flodl_pipe.config.compose import load_config
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.config.source import SourceConfig
from flodl_pipe.config.source_base import SubsetConfig
from flodl_pipe.config.source_custom import CustomConfig
from flodl_pipe.config.source_mixture import MixtureConfig

PATH_CHECKS = {get_args(kind)[1] for kind in (LocalPath, LocalPaths)}


@cache
def facts(*overrides):
    return config_facts(load_config("mnist", *overrides))


@pytest.mark.parametrize(
    "override",
    [
        "loader.readers=3",
        "loader.device=cpu",
        "loader.mode=streaming",
        "loader.ram_max_usage=0.1",
        "loader.disk_stage=1GiB",
        "loader.simulated.latency_s=0.5",
        "source.path=/elsewhere",
        "source.if_missing=error",
        "data_dir=/elsewhere",
        "reports.progress=false",
        "cluster.timeout_s=7",
        "cluster.gpu_ram_share=0.5",
        "cluster.rendezvous.port=1234",
        "job.step_time_s=0.5",
    ],
)
def test_what_a_host_may_have_its_own_way_is_not_compared(override):
    assert facts(override) == facts()


@pytest.mark.parametrize(
    ("override", "section"),
    [
        ("sampling.seed=1", "sampling"),
        ("sampling.shuffle=false", "sampling"),
        ("loader.batch_size=7", "loader"),
        ("loader.global_batch_size=64", "loader"),
        ("loader.names=[a,b]", "loader"),
        ("source.split=test", "source"),
        ("source.on_error=skip", "source"),
        ("source.subset={fraction: 0.5}", "source"),
        ("source.subset={indices: some.npy}", "source"),
        ("+transforms.extra={kind: normalize, mean: 0.5, std: 0.5}", "transforms"),
        ("cluster.balance=auto", "cluster"),
        ("cluster.partition_ratios=[3,2,1]", "cluster"),
        ("cluster.hosts=[{name: a}]", "cluster"),
        ("job.epochs=3", "job"),
        ("job.max_steps=3", "job"),
        ("job.save=run.json", "job"),
    ],
)
def test_what_must_be_the_same_is_told_by_section(override, section):
    changed, before = facts(override), facts()
    assert [name for name in before if before[name] != changed[name]] == [section]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["source.subset={indices: /a/some.npy}"], ["source.subset={indices: /b/some.npy}"]),
        (
            ["sampling.order=weighted", "sampling.weights=/a/w.npy"],
            ["sampling.order=weighted", "sampling.weights=/b.npy"],
        ),
        (["job.save=/a/run.json"], ["job.save=/b/run.json"]),
        (["cluster.hosts=[{name: a, data_dir: /a}]"], ["cluster.hosts=[{name: a, interface: eth0}]"]),
    ],
)
def test_files_are_compared_by_whether_they_are_set(one, other):
    assert facts(*one) == facts(*other)


def facts_with(source):
    return config_facts(load_config("mnist").model_copy(update={"source": source}))


def test_a_mixture_is_compared_without_the_paths_of_its_parts():
    def of(weight, path):
        part = {"weight": weight, "source": {"kind": "mnist", "path": path}}
        return facts_with(MixtureConfig.model_validate({"parts": {"a": part}}))

    assert of(0.5, "/a") == of(0.5, "/b") != of(0.25, "/a")


def test_arguments_of_ones_own_factory_are_compared_without_paths():
    def of(root, size):
        return facts_with(CustomConfig(factory="json:loads", args={"root": root, "size": size, "all": [root]}))

    assert of("/a/b", 3) == of("s3://b", 3) != of("/a/b", 4)
    assert of("train", 3) != of("val", 3)


def test_the_order_of_transforms_is_compared():
    steps = ["+transforms.one={kind: normalize, mean: 0.5, std: 0.5}", "+transforms.two={kind: horizontal_flip}"]
    one, other = facts(*steps)["transforms"], facts(*steps[::-1])["transforms"]
    assert one != other
    assert json.loads(one) == json.loads(other)


def test_every_listed_key_exists():
    for model, keys in [*_HOSTS_OWN.items(), *_FILES.items()]:
        # Keys of the kinds of source are in the kinds.
        kinds = [model, *(kind for kind in get_args(get_args(SourceConfig)[0]) if issubclass(kind, model))]
        assert keys <= {key for kind in kinds for key in kind.model_fields}, model


def test_no_path_of_a_source_or_an_order_is_compared_as_it_is_written():
    def paths(model: type[BaseModel]) -> set[str]:
        hints = get_type_hints(model, include_extras=True)
        return {name for name in model.model_fields if any(str(check) in str(hints[name]) for check in PATH_CHECKS)}

    listed = {name for lists in (_HOSTS_OWN, _FILES) for names in lists.values() for name in names}
    kinds = [*get_args(get_args(SourceConfig)[0]), SubsetConfig, SamplingConfig]
    found = {name for kind in kinds for name in paths(kind)}
    assert {"path", "indices", "lengths"} <= found <= listed
