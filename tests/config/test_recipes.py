"""Where recipes are found, and what they may not do.

White box: the package is made to believe that it lies elsewhere.
"""

import os
from pathlib import Path

import pytest

from flodl_pipe.config import places
from flodl_pipe.config.compose import load_config
from flodl_pipe.config.places import conf_dir, display, recipe_dirs, recipe_names
from flodl_pipe.errors import ConfigError

MINE = "defaults: [{override /source: token_shards}]\nsource: {seq_len: 4}\nloader: {batch_size: %d}\n"


def test_the_first_folder_wins(folder, monkeypatch):
    for size, name in enumerate(["a/recipes/m", "b/recipes/m", "c/recipes/m", "recipes/m"], 1):
        folder(f"{name}.yaml", MINE % size)
    assert load_config("m").loader.batch_size == 4
    monkeypatch.setenv("FLODL_PIPE_CONFIG_PATH", f"{folder.path}/b:{folder.path}/c:")
    assert load_config("m").loader.batch_size == 2
    assert load_config("m", config_dir="a").loader.batch_size == 1
    origins = [origin for origin, _ in recipe_dirs(folder.path / "a")]
    assert origins == [
        "--config-dir",
        "FLODL_PIPE_CONFIG_PATH",
        "FLODL_PIPE_CONFIG_PATH",
        "working directory",
        "built-in",
    ]


def test_the_environments_folders_bring_groups_too(folder, monkeypatch):
    folder("b/source/mine.yaml", "kind: token_shards\nseq_len: 9\n")
    monkeypatch.setenv("FLODL_PIPE_CONFIG_PATH", str(folder.path / "b"))
    assert load_config("source=mine", "loader.batch_size=1").source.seq_len == 9


def test_recipes_in_subfolders_are_listed_and_private_names_are_not(folder):
    folder("recipes/exp/a.yaml", MINE % 5)
    folder("recipes/_draft.yaml", "")
    folder("recipes/.hidden/x.yaml", "")
    names = recipe_names()
    assert names == sorted(names)
    assert {"exp/a", "nanogpt_bin", "olmo_shards"} <= set(names)
    assert [name for name in names if name.startswith("exp/")] == ["exp/a"]
    assert load_config("exp/a").loader.batch_size == 5
    assert load_config("recipe/exp=a").loader.batch_size == 5


def test_a_package_header_is_not_needed(folder):
    folder("recipes/m.yaml", MINE % 6)
    folder("recipes/n.yaml", "# @package _global_\n" + MINE % 6)
    assert load_config("m") == load_config("n")


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "/{here}/secret"])
def test_a_recipe_name_cannot_leave_the_folder(folder, name):
    folder("secret.yaml", MINE % 1)
    folder("recipes/a/x.yaml", "")
    with pytest.raises(ConfigError):
        load_config(name.format(here=folder.path))


FORBIDDEN = {
    "callback": "hydra: {callbacks: {x: {_target_: pathlib.Path.touch}}}",
    "target": "source: {x: [{_target_: os.getcwd}]}",
    "engine": "engine: {_target_: os.system}",
    "logging": "hydra: {job_logging: {handlers: {x: {'()': os.getcwd}}}}",
    "environment": "hydra: {job: {env_set: {LD_PRELOAD: /x.so}}}",
    "searchpath": "hydra: {searchpath: ['file:///tmp']}",
    "launcher": "hydra: {launcher: {setup: [rm]}}",
    "sweeper": "hydra: {sweeper: {custom_search_space: os.system}}",
    "sweep_key": "hydra: {sweeper: {params: {+hydra.callbacks.x: 1}}}",
    "sweep_key_spaced": "hydra: {sweeper: {params: {' ~hydra.job.name': 1}}}",
    "sweep_package": "hydra: {sweeper: {params: {'+recipe@hydra.job_logging': b}}}",
    "sweep_environment": "hydra: {sweeper: {params: {'recipe@hydra.job': b}}}",
    "sweep_group": "hydra: {sweeper: {params: {hydra/job_logging: none}}}",
    "sweep_indirect": "x: {hydra.job.name: 1}\nhydra: {sweeper: {params: '${x}'}}",
    "sweeper_indirect": "hydra: {sweeper: '${x}'}",
    "mode": "hydra: {mode: MULTIRUN}",
    "indirect": "hydra: ${source}",
    "package": "# @package hydra.job\nenv_set: {LD_PRELOAD: /x.so}",
    "defaults_package": "defaults: ['/recipe@hydra.job: other']",
    "defaults_package_option": "defaults: [{/recipe@hydra.job: other}]",
    "defaults_climb": "defaults: [{override /source: ../../secret}]",
    "defaults_climb_plain": "defaults: [/../secret]",
    "defaults_absolute": "defaults: [//tmp/secret]",
    "defaults_absolute_option": "defaults: [{override /source: /tmp/secret}]",
    "defaults_list": "defaults: [{/source: [records, ../x]}]",
    "defaults_indirect": "defaults: [{override /source: '${oc.env:HOME}'}]",
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_recipe_cannot_name_code_or_leave_the_search_path(folder, name):
    folder("recipes/evil.yaml", FORBIDDEN[name])
    with pytest.raises(ConfigError, match=r"(not allowed in a recipe|must be a mapping in a recipe)") as caught:
        load_config("+recipe=evil", "source.seq_len=1", "loader.batch_size=1")
    (problem,) = caught.value.problems
    assert "recipes/evil.yaml" in problem.where


def test_a_recipe_may_set_the_run_folder_and_a_sweep(folder):
    text = "hydra: {run: {dir: a}, sweep: {dir: b}, sweeper: {params: {loader.batch_size: '1,2'}}, verbose: true}\n"
    folder("recipes/m.yaml", MINE % 1 + text)
    assert load_config("m").loader.batch_size == 1


def test_folders_beside_an_installed_package_are_not_taken(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "flodl_pipe"
    package.mkdir(parents=True)
    (package.parent / "conf").mkdir()
    monkeypatch.setattr(places, "_PACKAGE", package)
    with pytest.raises(FileNotFoundError, match="not installed whole"):
        conf_dir()
    (package / "_conf").mkdir()
    assert conf_dir() == package / "_conf"
    (package / "_conf").rmdir()
    (package.parent / "pyproject.toml").touch()
    assert conf_dir() == package.parent / "conf"


def test_a_folder_of_recipes_that_cannot_be_read_is_refused(folder, monkeypatch):
    folder("recipes/mine.yaml", "{}\n")
    access = os.access  # the tests may run as a user whom no mode keeps out
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder.path / "recipes" and access(path, mode))
    with pytest.raises(ConfigError, match=r"recipe: the folder recipes cannot be read: .*chmod u\+rx recipes"):
        load_config("olmo_shards")


def test_a_path_is_whole_when_the_working_directory_is_the_root(monkeypatch):
    monkeypatch.chdir("/")
    assert display(Path("/tmp/recipes")) == "/tmp/recipes"


def test_a_folder_of_the_environment_that_is_missing_is_reported_once(folder, monkeypatch, caplog):
    folder("there/recipes/mine.yaml", MINE % 3)
    monkeypatch.setenv("FLODL_PIPE_CONFIG_PATH", f"{folder.path}/none:{folder.path}/there")
    for _ in range(2):
        assert load_config("mine").loader.batch_size == 3
    expected = f"flodl_pipe: warning: {folder.path}/none of FLODL_PIPE_CONFIG_PATH is ignored: there is no such folder"
    assert [record.getMessage() for record in caplog.records] == [expected]


@pytest.mark.parametrize(
    ("section", "kind", "rest"),
    [
        ("kind: mnist", "mnist", {"split": "train", "num_classes": 10}),
        ("{kind: shakespeare, seq_len: 8}", "shakespeare", {"train_fraction": 0.9}),
        ("{kind: records, path: a, record_bytes: 2, fields: {x: {offset: 0, dtype: u1}}}", "records", {}),
        ("{kind: custom, factory: 'a:b'}", "custom", {"args": {}}),
    ],
)
def test_a_recipe_may_name_its_kind_without_choosing_an_option(section, kind, rest, folder):
    if not section.startswith("{"):
        section = f"{{{section}}}"
    folder("recipes/mine.yaml", f"source: {section}\nloader: {{batch_size: 2}}\n")
    source = load_config("mine").source
    assert source.kind == kind
    assert {name: getattr(source, name) for name in rest} == rest
    assert load_config("mine", "source.on_error=raise").source == source


def test_what_a_kind_needs_and_what_it_lacks_is_told_even_so(folder):
    folder("recipes/mine.yaml", "source: {kind: shakespeare, dtype: uint16}\nloader: {batch_size: 2}\n")
    with pytest.raises(ConfigError) as caught:
        load_config("mine")
    found = {problem.key: (problem.message, problem.where) for problem in caught.value.problems}
    assert set(found) == {"source.dtype", "source.seq_len"}
    assert found["source.dtype"][1] == "recipes/mine.yaml:1"


def test_the_kind_alone_may_be_given_on_the_command_line():
    assert load_config("source.kind=mnist", "loader.batch_size=2").source.kind == "mnist"


def test_a_key_that_a_recipe_leaves_open_has_to_be_given(folder):
    folder("recipes/mine.yaml", "source:\n  path: ???\nloader:\n  batch_size: 4\n")
    with pytest.raises(ConfigError, match=r"source\.path: required: give source\.path=") as caught:
        load_config("mine", "source.seq_len=8")
    assert caught.value.problems[0].where == "recipes/mine.yaml:2"
    assert load_config("mine", "source.seq_len=8", "source.path=/a").source.path == "/a"
    folder("recipes/next.yaml", "defaults: [mine]\nsource: {path: /b, seq_len: 8}\n")
    assert load_config("next").source.path == "/b"
