"""What an editor says about a recipe."""

import pytest
import yaml

from flodl_pipe.config.places import recipe_dirs
from flodl_pipe.config.schema import recipe_schema

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def validator():
    jsonschema.Draft7Validator.check_schema(recipe_schema())
    return jsonschema.Draft7Validator(recipe_schema())


@pytest.mark.parametrize("file", sorted(recipe_dirs()[-1][1].glob("*.yaml")), ids=lambda file: file.stem)
def test_the_recipes_pass(validator, file):
    assert not list(validator.iter_errors(yaml.safe_load(file.read_text())))


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "loader: {batch_size: 8, prefetch: 2, readers: auto}",
        "loader: {batch_size: '${source.seq_len}', vram_max_usage: '${oc.env:X}'}",
        "source: {seq_len: '???', path: [a, b], dtype: <u2}",
        "data_dir: ${oc.env:HOME}/data",
        "defaults: [olmo_shards, override /sampling: eval, _self_]",
        "defaults: [{override /source: records}]\nsource: {fields: {x: {offset: 0, dtype: u1}}}",
        "hydra: {sweeper: {params: {loader.batch_size: '8,16'}}}",
        "sampling: {drop_last: pad}\nreports: {progress: false}",
        "defaults: [{override /job: plan}]",
        "defaults: [{override /cluster: two_hosts}]\ncluster: {partition_ratios: [3, 0.5], rendezvous: {min_hosts: 1}}",
        "cluster: {hosts: [{name: a, devices: 2, ratios: [3, 2.5]}, {name: b, devices: [0, 'xpu:1', cpu]}]}",
        "cluster: {hosts: [{name: '${oc.env:HOSTNAME}', address: 'fe80::1', devices: '${oc.env:N}'}]}",
    ],
)
def test_what_is_right_passes(validator, text):
    assert not list(validator.iter_errors(yaml.safe_load(text)))


@pytest.mark.parametrize(
    "text",
    [
        "loader: {vram_max_usge: 0.5}",
        "loader: {vram_max_usage: 80}",
        "loader: {batch_size: 0}",
        "loader: {batch_size: many}",
        "loader: {device: gpu}",
        "default: [olmo_shards]",
        "defaults: {override /source: records}",
        "defaults: [{override /source: records}]\nsource: {seq_len: 3}",
        "defaults: [{override /job: fetch}]\njob: {epochs: 3}",
        "source: {kind: record}",
        "source: {dtype: uint23}",
        "sampling: {drop_last: padd}",
        "engine: {_target_: os.system}",
        "source: {path: 3}",
        "cluster: {partition_ratios: [3, 0]}",
        "cluster: {partition_ratios: 3}",
        "cluster: {hosts: {name: a}}",
        "cluster: {hosts: [{name: a, device: 2}]}",
        "cluster: {hosts: [{name: a, devices: 0}]}",
        "cluster: {hosts: [{name: a, devices: [gpu]}]}",
        "cluster: {hosts: [{name: a b}]}",
        "cluster: {rendezvous: {min_host: 1}}",
    ],
)
def test_what_is_wrong_is_marked(validator, text):
    assert list(validator.iter_errors(yaml.safe_load(text)))


def test_every_key_is_documented():
    schema = recipe_schema()
    models = [model for model in schema["$defs"].values() if "properties" in model]
    for model in [*models, {**schema, "properties": dict(list(schema["properties"].items())[2:])}]:
        for name, key in model["properties"].items():
            assert key.get("description"), name
