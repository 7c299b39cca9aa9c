"""Who may allow an import: what is typed counts, what files, sweepers and Hydra's settings say does not.

White box: what a job of a sweep takes with it to another process is pickled.
"""

import pickle

import pytest

from flodl_pipe.config import compose
from flodl_pipe.config.allow_import import VARIABLE, Permission
from flodl_pipe.config.compose import load_config, run_hydra
from flodl_pipe.errors import ConfigError

MINE = "defaults: [{override /source: token_shards}]\nsource: {seq_len: 4}\nloader: {batch_size: 1}\n"
GROUP = "# @package _global_\nallow_import: [evil]\n"


@pytest.fixture(autouse=True)
def _nothing_allowed(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def seen(folder, monkeypatch):
    """What the program's jobs were allowed, in order."""
    folder("recipes/mine.yaml", MINE)
    found = []

    def start(*argv):
        found.clear()
        run_hydra([*argv, "hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=none"], _note)
        return found

    monkeypatch.setattr(f"{__name__}._seen", found)
    return start


_seen = []


def _note(config):
    _seen.append(config.allow_import)


def allowed(*words, **options):
    return load_config("mine", *words, **options).allow_import


def refused(call, *words, **options):
    with pytest.raises(ConfigError) as caught:
        call(*words, **options)
    (problem,) = [problem for problem in caught.value.problems if problem.key == "allow_import"]
    return problem


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        ((), []),
        (("allow_import=[]",), []),
        (("allow_import=[a]",), ["a"]),
        (("++allow_import=[a, b.c]",), ["a", "b.c"]),
        (("allow_import=['a',\"b\"]",), ["a", "b"]),
        (("allow_import=[a]", "allow_import=[b]"), ["b"]),
        (("allow_import=[a]", "~allow_import"), []),
        (("~allow_import",), []),
        (("~allow_import", "+allow_import=[a]"), ["a"]),
    ],
)
def test_what_is_typed_counts(folder, seen, words, modules):
    assert allowed(*words) == modules
    if "~allow_import" not in words or len(words) == 1:
        assert seen("+recipe=mine", *words) == [modules]


def test_the_environment_adds_to_what_is_typed(folder, seen, monkeypatch):
    monkeypatch.setenv(VARIABLE, " b.c , a,,")
    assert allowed() == ["b.c", "a"]
    assert allowed("allow_import=[x,a]") == ["x", "a", "b.c"]
    assert seen("+recipe=mine") == [["b.c", "a"]]


@pytest.mark.parametrize("name", ["a-b", "a:f", "", "a.", ".a", "*", "a b", "a/b"])
def test_what_is_no_module_is_refused(folder, seen, monkeypatch, name):
    problem = refused(allowed, f"allow_import=['{name}']")
    assert "must name modules such as mypkg or mypkg.data" in problem.message
    assert problem.where.startswith("command line: allow_import=")
    if name:
        monkeypatch.setenv(VARIABLE, name)
        assert refused(allowed).where == f"environment: {VARIABLE}={name}"


@pytest.mark.parametrize("words", [("allow_import=a",), ("allow_import=[1]",), ("allow_import=null", "allow_import=1")])
def test_what_is_no_list_of_text_is_refused(folder, seen, words):
    with pytest.raises(ConfigError, match=r"allow_import.*: must be (a list|text)"):
        allowed(*words)


@pytest.mark.parametrize("word", ["allow_import.0=a", "allow_import[0]=a", "+allow_import.0=a"])
def test_a_part_of_the_list_cannot_be_typed(folder, seen, word):
    with pytest.raises(ConfigError):
        allowed("allow_import=[b]", word)


VALUES = ["[evil]", "[]", "null", "evil", "${source.kind}", "[${oc.env:HOME}]", "${oc.decode:'[evil]'}", "???"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("words", [(), ("++allow_import=[evil]",)])
def test_a_recipe_cannot_say_it_whatever_is_typed_beside_it(folder, value, words):
    folder(
        "recipes/mine.yaml", f'{MINE}"allow_import": "{value}"\n' if "$" in value else f"{MINE}allow_import: {value}\n"
    )
    problem = refused(allowed, *words)
    assert problem.where == "recipes/mine.yaml:4"
    assert "only the person who starts the program can" in problem.message
    assert f"allow_import=[MODULE] on the command line, or {VARIABLE}=MODULE" in problem.message


def test_a_recipe_cannot_say_it_through_another_or_through_yaml(folder):
    folder("recipes/other.yaml", "allow_import: [evil]\n")
    folder("recipes/mine.yaml", MINE.replace("[{", "[other, {"))
    assert refused(allowed).where == "recipes/other.yaml:1"
    folder("recipes/mine.yaml", f"x: &x {{allow_import: [evil]}}\n<<: *x\n{MINE}")
    assert refused(allowed).where == "recipes/mine.yaml"
    folder("recipes/mine.yaml", f"# @package allow_import\n{MINE}")
    with pytest.raises(ConfigError, match="package allow_import is not allowed in a recipe"):
        allowed()


@pytest.mark.parametrize("words", [(), ("allow_import=[mine]",), ("++allow_import=[evil]",)])
def test_the_users_config_folders_cannot_say_it(folder, monkeypatch, words):
    folder("recipes/mine.yaml", MINE.replace("token_shards", "extra"))
    folder("dir/source/extra.yaml", f"{GROUP}source: {{kind: token_shards}}\n")
    assert refused(allowed, *words, config_dir="dir").where == "dir/source/extra.yaml:2"
    monkeypatch.setenv("FLODL_PIPE_CONFIG_PATH", str(folder.path / "dir"))
    assert refused(allowed, *words).where == "dir/source/extra.yaml:2"


@pytest.mark.parametrize(
    "text",
    [
        "defaults: [config, _self_]\nallow_import: [evil]\n",
        "defaults: [config, more@_global_: evil, _self_]\n",
        "defaults: [config, /more/evil, _self_]\n",
        "defaults: [config, _self_]\nx: [evil]\nallow_import: ${x}\n",
    ],
    ids=["key", "package", "global", "interpolation"],
)
@pytest.mark.parametrize("words", [(), ("allow_import=[mine]",)])
def test_a_primary_config_of_ones_own_cannot_say_it(folder, text, words):
    folder("dir/mine.yaml", text)
    folder("dir/more/evil.yaml", GROUP)
    with pytest.raises(ConfigError, match=r"allow_import: a config file cannot") as caught:
        run_hydra(
            ["--config-dir", "dir", "--config-name", "mine", "source.seq_len=1", "loader.batch_size=1", *words], _note
        )
    (problem,) = [problem for problem in caught.value.problems if problem.key == "allow_import"]
    assert problem.where in ("dir/mine.yaml:2", "dir/mine.yaml:3", "dir/more/evil.yaml:2")


@pytest.mark.parametrize("word", ["allow_import=${source.evil}", "allow_import=[${oc.env:EVIL}]", "allow_import=${x}"])
def test_an_interpolation_that_is_typed_does_not_count(folder, seen, monkeypatch, word):
    monkeypatch.setenv("EVIL", "evil")
    problem = refused(allowed, "+x=[evil]", "+source.evil=[evil]", word)
    assert "written out and without ${...}" in problem.message
    assert problem.where == f"command line: {word}"


SWEEPS = ["allow_import", "+allow_import", "++allow_import", "' ++allow_import'", "allow_import.0", "'~allow_import'"]


@pytest.mark.parametrize("key", SWEEPS)
def test_a_recipes_sweep_cannot_say_it(folder, seen, key):
    folder("recipes/mine.yaml", f"{MINE}hydra: {{sweeper: {{params: {{{key}: '[evil]'}}}}}}\n")
    with pytest.raises(ConfigError, match="not allowed in a recipe"):
        seen("-m", "+recipe=mine", "loader.batch_size=1,2")
    assert _seen == []


def test_jobs_of_a_sweep_may_what_was_typed_and_nothing_else(folder, seen, monkeypatch):
    sweep = [f"hydra.sweep.dir={folder.path}/sweep", "hydra/hydra_logging=none"]
    monkeypatch.setenv(VARIABLE, "b")
    assert seen("-m", "+recipe=mine", "loader.batch_size=1,2", "allow_import=[a]", *sweep) == [["a", "b"]] * 2
    monkeypatch.delenv(VARIABLE)
    folder("dir/hydra/sweeper/mine.yaml", "defaults: [basic]\nparams: {allow_import: '[evil]'}\n")
    mine = ["-m", "--config-dir=dir", "+recipe=mine", "hydra/sweeper=mine", *sweep]
    with pytest.raises(ConfigError, match=r"is \['evil'\], and \[\] was typed"):
        seen(*mine)
    assert _seen == []
    assert seen(*mine, "allow_import=[a]") == [["a"]]  # what is typed goes over what a sweeper adds
    with pytest.raises(ConfigError, match="cannot be swept"):
        seen("-m", "+recipe=mine", "allow_import=[a],[b]", *sweep)


def test_a_variable_that_hydra_sets_for_a_job_does_not_count(folder, seen):
    folder("dir/hydra/mine.yaml", f"# @package hydra\njob: {{env_set: {{{VARIABLE}: evil}}}}\n")
    assert seen("--config-dir=dir", "+recipe=mine", "+hydra=mine") == [[]]
    folder("recipes/mine.yaml", f"{MINE}hydra: {{job: {{env_set: {{{VARIABLE}: evil}}}}}}\n")
    with pytest.raises(ConfigError, match=r"hydra.job: not allowed in a recipe"):
        allowed()


def test_the_fault_comes_with_all_others(folder, seen):
    with pytest.raises(ConfigError) as caught:
        allowed("allow_import=[a-b]", "loader.batch_size=0")
    assert {problem.key for problem in caught.value.problems} == {"allow_import", "loader.batch_size"}


def test_what_was_typed_goes_with_a_job_to_another_process(monkeypatch):
    monkeypatch.setenv(VARIABLE, "b")
    task = compose._Task(_note, Permission.typed(["allow_import=[a]"]))
    assert pickle.loads(pickle.dumps(task)).permission == Permission(("allow_import=[a]",), "b")
