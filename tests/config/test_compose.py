"""load_config: what it accepts, and how it words what it does not."""

import logging
import pickle
import shlex
import threading
from inspect import signature
from pathlib import Path

import hydra
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from flodl_pipe.config.compose import load_config
from flodl_pipe.errors import ConfigError

RECORDS = (
    "source=records",
    "source.path=a.bin",
    "source.record_bytes=4",
    "source.fields={x: {offset: 0, dtype: u4, shape: []}}",
    "loader.batch_size=1",
)


def problems(*words, **options):
    with pytest.raises(ConfigError) as caught:
        load_config(*words, **options)
    return {problem.key: problem for problem in caught.value.problems}


@pytest.mark.parametrize("name", ["olmo_shards", "recipe=olmo_shards", "+recipe=olmo_shards"])
def test_a_recipe_is_named_in_three_ways(name):
    config = load_config(name, "loader.batch_size=64")
    assert (config.source.seq_len, config.loader.batch_size) == (1024, 64)


def test_without_a_recipe_overrides_are_enough():
    assert load_config(*RECORDS).source.fields["x"].dtype == "uint32"


def test_a_field_of_records_can_be_added_alone():
    words = [word for word in RECORDS if "fields" not in word]
    config = load_config(*words, "+source.fields.y={offset: 2, dtype: int16}")
    assert list(config.source.fields) == ["y"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((Path("recipes/mine.yaml"),), "name_or_override must be text, got .*; give a recipe's name as text, 'mine'"),
        ((None,), "name_or_override must be text, got null; give a recipe's name as text, or an override"),
        (("olmo_shards", ["a=b"]), r"override 1 must be text, got \['a=b'\]; give each as an argument of its own"),
        (("olmo_shards", "loader.batch_size=1", 3), "override 2 must be text, got 3; write it as text, 'KEY=VALUE'"),
    ],
)
def test_what_is_no_text_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        load_config(*words)


def test_a_config_dir_that_is_no_path_is_refused_with_all_else():
    with pytest.raises(ConfigError, match="config_dir must be a path, got 3; give a folder, or None") as caught:
        load_config(None, config_dir=3)
    assert len(caught.value.problems) == 2


def test_paths_are_relative_to_the_working_directory(folder):
    config = load_config("olmo_shards", "source.path=a/*.bin", "job.save=c.json")
    assert config.source.path == str(folder.path / "a/*.bin")
    assert config.job.save == str(folder.path / "c.json")
    assert config.data_dir == str(folder.path / "data")


def test_every_unset_key_is_reported_at_once_with_the_recipes_to_start_from():
    found = problems("sampling.seed=1")
    assert set(found) == {"source.seq_len", "loader.batch_size"}
    assert found["source.seq_len"].message == "required: give source.seq_len=... or set it in a recipe"
    assert "+recipe=NAME with one of: cifar10, cifar10_disk, custom," in found["loader.batch_size"].message
    assert "+recipe=NAME" not in problems("olmo_shards", "source.seq_len=???")["source.seq_len"].message


def test_all_faults_are_one_block_with_their_places(folder):
    folder(
        "recipes/mine.yaml",
        "loader:\n  batch_size: 8\n  vram_max_usge: 0.5\nsource:\n  kind: tokn_shards\n  seq_len: 4\n",
    )
    with pytest.raises(ConfigError) as caught:
        load_config("mine", "sampling.seed=-1", "reports.progres=true")
    assert str(caught.value) == (
        "4 problems in the config\n"
        "  source.kind: unknown kind 'tokn_shards'. Did you mean 'token_shards'? Known kinds: token_shards, records, "
        "mnist, fashion_mnist, cifar10, cifar10_disk, cifar100, shakespeare, stream, mixture, custom\n"
        "      set at recipes/mine.yaml:5\n"
        "  sampling.seed: must be at least 0, got -1\n"
        "      set at command line: sampling.seed=-1\n"
        "  loader.vram_max_usge: unknown key. Did you mean 'vram_max_usage'?\n"
        "      set at recipes/mine.yaml:3\n"
        "  reports.progres: unknown key. Did you mean 'progress'?\n"
        "      set at command line: reports.progres=true"
    )


@pytest.mark.parametrize("word", ["loder.x=1", "sorce=records", "sorce.path=a"])
def test_a_misspelled_section_is_recognised(word):
    key = word.split("=")[0].split(".")[0]
    assert "Did you mean" in problems("olmo_shards", word)[key].message


def test_a_key_of_another_section_or_kind_is_pointed_out():
    found = problems("olmo_shards", "seed=1", "source.batch_size=1", "+job.epocs=2", "++source.record_bytes=3")
    assert found["seed"].message == "unknown key. Did you mean 'sampling.seed'?"
    assert found["source.batch_size"].message == "unknown key. Did you mean 'loader.batch_size'?"
    assert found["source.record_bytes"].message == "unknown key for kind 'token_shards': it belongs to kind 'records'"
    assert problems("olmo_shards", "job=fetch", "+job.epochs=2")["job.epochs"].message == (
        "unknown key for kind 'fetch': it belongs to kind 'run'"
    )


@pytest.mark.parametrize(
    ("words", "key", "message"),
    [
        (
            ("olmo_shard",),
            "recipe",
            "there is no recipe 'olmo_shard'. Did you mean 'olmo_shards'? Known recipes: cifar10, ",
        ),
        (("recipe=exp/x",), "recipe", "there is no recipe 'exp/x'."),
        (
            ("source=record",),
            "source",
            "there is no option 'record'. Did you mean 'records'? Known options: cifar10, ",
        ),
        (("job=pln",), "job", "there is no option 'pln'. Did you mean 'plan'?"),
        (("+recip=olmo_shards",), "recip", "unknown key. Did you mean 'recipe'?"),
        (("olmo_shards", "source.kind=record"), "source.kind", "unknown kind 'record'. Did you mean 'records'?"),
        (
            ("olmo_shards", "source.tail=keeep"),
            "source.tail",
            "must be 'drop' or 'keep', got 'keeep'. Did you mean 'keep'?",
        ),
        (
            ("olmo_shards", "source.dtype=uint23"),
            "source.dtype",
            "'uint23' is not an accepted dtype; use one of uint8,",
        ),
        (("olmo_shards", "source.seq_len=abc"), "source.seq_len", "must be an integer, got 'abc'"),
        (("olmo_shards", "source.seq_len='8'"), "source.seq_len", "must be an integer, got '8'"),
        (("olmo_shards", "source.seq_len=1.5"), "source.seq_len", "must be an integer, got 1.5"),
        (("olmo_shards", "sampling.shuffle=1"), "sampling.shuffle", "must be true or false, got 1"),
        (("olmo_shards", "loader.ram_max_usage=nan"), "loader.ram_max_usage", "must be from 0 to 0.9, got nan"),
        (("olmo_shards", "job.step_time_s=inf"), "job.step_time_s", "must be a finite number, got inf"),
        (("olmo_shards", "source.path=[a,3]"), "source.path", "item 1 must be a path, got 3"),
        (("olmo_shards", "loader=null"), "", "must be a string or a list. Got NoneType"),
        (("olmo_shards", "job.save_every_steps=3"), "job.save_every_steps", "save_every_steps=3 needs save"),
        (("olmo_shards", "loader.names=[a]"), "loader.names", "must have one name for each of the 2 fields"),
        (("olmo_shards", "source.path=x", "source.dtype=null"), "source.dtype", "must be set when format is 'raw'"),
        ((*RECORDS, "source.record_bytes=3"), "source.fields.x", "ends at byte 4"),
        (("olmo_shards", "engine._target_=os.system"), "engine._target_", "must be 'flodl_pipe.pipeline.build_loader'"),
        (("olmo_shards", "source.seq_len=${nothing}"), "source.seq_len", "Interpolation key 'nothing' not found"),
        (("olmo_shards", "source.path=${oc.env:FLODL_NONE}"), "source.path", "'FLODL_NONE' not found"),
        (("olmo_shards", "loader.batch_size=1,2"), "", "Ambiguous value for argument 'loader.batch_size=1,2'"),
        (("olmo_shards", "+loader.batch_size=1"), "", "Either remove + prefix"),
        (("olmo_shards", "~loader.nothing"), "", "'loader.nothing' does not exist"),
        (("olmo_shards", "loader.batch_size.x=1"), "loader.batch_size.x", "unknown key."),
        (("olmo_shards", "hydra.jb.chdir=true"), "hydra.jb", "unknown key. Did you mean 'job'?"),
        (("olmo_shards", "++source={kind: records}"), "source.fields", "required, but not set"),
        (("olmo_shards", "nanogpt_bin"), "", "a recipe is chosen with +recipe=nanogpt_bin"),
        (("olmo_shards", "source.path=[a"), "source.path", "cannot be read"),
        (
            ("olmo_shards", "source.path=~/x"),
            "source.path",
            """quote it for Hydra and the shell: 'source.path="~/x"'""",
        ),
        ((*RECORDS, "source.fields.y={offset: 0}"), "source.fields.y", "add it with a leading +, +source.fields.y=..."),
        (
            ("+recipe=/tmp/recipes/olmo_shards.yaml",),
            "recipe",
            "by its name, not by a path. Did you mean 'olmo_shards'?",
        ),
        (("recipe=recipes/olmo_shards",), "recipe", "by its name, not by a path. Did you mean 'olmo_shards'?"),
        (("+recipe=./olmo_shard",), "recipe", "by its name, not by a path. Did you mean 'olmo_shards'?"),
        (
            ("olmo_shards", "sampling.seed=1e19"),
            "sampling.seed",
            "up to 2**53; write all its digits, 10000000000000000000",
        ),
        (("olmo_shards", "loader.prefetch=1e300"), "loader.prefetch", "got 1e+300: a number with an exponent"),
    ],
)
def test_a_wrong_value_is_worded(words, key, message):
    found = problems(*words)
    assert message in found[key].message, found[key].message


@pytest.mark.parametrize("value", ["~/x", "a'b", 'a"b', "C:\\x{", "a b, c{"])
def test_the_quoting_that_is_proposed_works(folder, value):
    message = problems("olmo_shards", f"source.path={value}")["source.path"].message
    (word,) = shlex.split(message.partition("the shell: ")[2])
    expected = Path(value).expanduser()
    assert load_config("olmo_shards", word).source.path == str(folder.path / expected)


def test_a_kind_changed_by_itself_is_one_problem_beside_the_others():
    found = problems("olmo_shards", "source.kind=records", "loader.batch_size=0")
    assert set(found) == {"source.kind", "loader.batch_size"}
    assert "write source=records, which brings the keys of its own" in found["source.kind"].message
    assert found["source.kind"].where == "command line: source.kind=records"
    assert "source.record_bytes" in problems(*RECORDS, "source.kind=records", "source.record_bytes=0")


def test_an_error_names_the_override_or_the_line(folder):
    folder("recipes/mine.yaml", "# @package _global_\ndefaults:\n  - override /source: recrds\n")
    assert problems("mine")["source"].where == "recipes/mine.yaml:3"
    folder("recipes/mine.yaml", "# @package _global_\ndefaults: [olmo_shards, _self_]\nsource: {path: [a,\n 3]}\n")
    assert problems("mine")["source.path"].where == "recipes/mine.yaml:3"
    assert problems("hydra.jb.x=1")["hydra.jb"].where == "command line: hydra.jb.x=1"
    assert problems("source=recrds")["source"].where == "command line: source=recrds"
    found = problems("mine", "source.path=0", "loader={batch_size: 0}")
    assert found["source.path"].where == "command line: source.path=0", "the last one that set it"
    assert found["loader.batch_size"].where == "command line: loader={batch_size: 0}"
    folder("recipes/kind.yaml", "defaults: [olmo_shards, _self_]\nsource:\n  kind: records\n")
    found = problems("kind")
    assert found["source.path"].where is None, "a default"
    assert found["source.format"].where.endswith("recipes/olmo_shards.yaml:15")


@pytest.mark.parametrize(
    ("entry", "key", "message"),
    [
        ("olmo_shrds", "recipe", "there is no recipe 'olmo_shrds'. Did you mean 'olmo_shards'?"),
        ("override /sorce: records", "sorce", "there is no group 'sorce' to override. Did you mean 'source'?"),
        ("/sorce: records", "sorce", "there is no group 'sorce'. Did you mean 'source'?"),
        ("override /sampling: evl", "sampling", "there is no option 'evl'. Did you mean 'eval'?"),
    ],
)
def test_a_misspelled_entry_of_a_defaults_list_is_recognised(folder, entry, key, message):
    folder("recipes/mine.yaml", f"defaults:\n  - {entry}\n  - _self_\n")
    problem = problems("mine")[key]
    assert message in problem.message
    assert problem.where == "recipes/mine.yaml:2"


def test_a_recipe_builds_on_another(folder):
    folder("recipes/mine.yaml", "defaults: [olmo_shards, override /sampling: eval, _self_]\nloader: {batch_size: 7}\n")
    config = load_config("mine")
    assert (config.source.seq_len, config.sampling.shuffle, config.loader.batch_size) == (1024, False, 7)


def test_broken_yaml_is_named_and_breaks_nothing_else(folder):
    folder("recipes/broken.yaml", "loader: [1\n")
    assert load_config("olmo_shards").loader.batch_size == 32
    assert "recipes/broken.yaml is not a readable recipe" in problems("broken")[""].message
    folder("recipes/list.yaml", "- a\n")
    assert "must be a mapping" in problems("list")[""].message
    folder("recipes/text.yaml", "a\n")
    assert "must be a mapping" in problems("text")[""].message
    folder("recipes/number.yaml", "3\n")
    assert "recipes/number.yaml" in problems("number")[""].message
    folder("recipes/section.yaml", "reports: 3\nsampling: null\n")
    found = problems("+recipe=section", *RECORDS)
    assert found["reports"].message == "must be a mapping, got 3"
    assert found["sampling"].message == "must be a mapping, got null"
    (folder.path / "recipes/bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert "recipes/bytes.yaml" in problems("bytes")[""].message


def test_broken_yaml_in_a_group_is_named(folder):
    folder("own/source/mine.yaml", "kind: [\n")
    found = problems("source=mine", config_dir="own")
    assert found[""].where == "own/source/mine.yaml:2"


def test_a_config_folder_brings_groups_and_recipes(folder, caplog):
    folder("own/source/mine.yaml", "kind: token_shards\nseq_len: 5\n")
    folder("own/source/records.yaml", "kind: records\n")
    folder("own/recipes/olmo_shards.yaml", "defaults: [{override /source: mine}]\nloader: {batch_size: 3}\n")
    with caplog.at_level(logging.WARNING, "flodl_pipe"):
        config = load_config("olmo_shards", config_dir="own")
    assert (config.source.seq_len, config.loader.batch_size) == (5, 3)
    assert "own/source/records.yaml is ignored: the built-in source/records.yaml has the same name" in caplog.text
    assert "olmo_shards.yaml is ignored" not in caplog.text
    assert "no such folder" in problems("olmo_shards", config_dir="nowhere")[""].message


def test_an_override_may_contain_what_the_grammar_quotes(folder):
    config = load_config("olmo_shards", "source.path='a b,c=d.bin'")
    assert config.source.path == str(folder.path / "a b,c=d.bin")


def test_loading_leaves_hydra_as_it_was(folder):
    folder("other/config.yaml", "a: 1\n")
    # Hydra 1.4 has no version_base any more.
    options = {} if "execution_whitelist" in signature(hydra.main).parameters else {"version_base": "1.3"}
    with initialize_config_dir(str(folder.path / "other"), **options):
        assert load_config("nanogpt_bin").loader.batch_size == 64
        # To the other program, recipe is a plain new key: our search path is not on its own.
        assert compose("config", ["+recipe=nanogpt_bin"]) == {"a": 1, "recipe": "nanogpt_bin"}
    assert not GlobalHydra.instance().is_initialized()
    load_config("nanogpt_bin")
    assert not GlobalHydra.instance().is_initialized()


def test_threads_may_load_at_once(folder):
    for number in range(4):
        folder(
            f"own{number}/recipes/mine.yaml", f"defaults: [olmo_shards, _self_]\nloader: {{batch_size: {number + 1}}}\n"
        )
    sizes = {}

    def load(number):
        sizes[number] = load_config("mine", config_dir=f"own{number}").loader.batch_size

    threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == {0: 1, 1: 2, 2: 3, 3: 4}


def test_config_and_error_pickle():
    config = load_config("olmo_shards")
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(ConfigError) as caught:
        load_config("olmo_shards", "loader.batch_size=0")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_section_that_is_null_is_filled_with_a_plus():
    (problem,) = problems("mnist", "source.subset.fraction=0.1").values()
    assert problem.message == "not there yet: add it with a leading +, +source.subset.fraction=..."
    assert load_config("mnist", "+source.subset.fraction=0.1").source.subset.fraction == 0.1
