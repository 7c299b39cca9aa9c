import hydra
import pytest
from hydra._internal.utils import get_args_parser

import flodl_pipe
from flodl_pipe.config.arguments import read_arguments, recipe_word, torchrun_rank, without_folder
from flodl_pipe.errors import ConfigError


def as_rank(monkeypatch, rank, world=2):
    for name, value in {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["a=1", "--cfg", "job", "b=2"],
        ["--info", "searchpath", "a=1"],
        ["a=1", "-i"],
        ["a=1", "-m", "b=1,2"],
        ["--help", "--resolve", "-c", "all", "-p", "loader"],
        ["-cn", "other", "x=1", "--hydra-help"],
        ["-sc", "query=bash"],
        ["a=1", "b=2", "a=1"],
        ["-r", "a='--help'"],
    ],
)
def test_the_canonical_form_means_the_same_to_hydra(argv):
    arguments = read_arguments(argv)
    again = get_args_parser().parse_args([*arguments.flags, *arguments.words])
    assert vars(again) == vars(get_args_parser().parse_intermixed_args(argv))


def test_the_config_folder_is_made_absolute(folder, monkeypatch):
    folder("own/x.yaml", "")
    monkeypatch.setenv("HOME", str(folder.path))
    for given in ("own", "~/own"):
        arguments = read_arguments(["--config-dir", given])
        assert arguments.config_dir == folder.path / "own"
        assert arguments.flags == (f"--config-dir={folder.path / 'own'}",)
    with pytest.raises(ConfigError, match="--config-dir nowhere: no such folder"):
        read_arguments(["a=1", "--config-dir", "nowhere"])


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("recipe=a", "+recipe=a"),
        ("recipe=[a,b]", "+recipe=[a,b]"),
        ("recipe/exp=a", "+recipe/exp=a"),
        ("+recipe=a", "+recipe=a"),
        ("recipes=a", "recipes=a"),
        ("loader.recipe=a", "loader.recipe=a"),
    ],
)
def test_a_recipe_needs_no_plus(word, meant):
    assert recipe_word(word) == meant
    assert read_arguments([word]).words == (meant,)


@pytest.mark.parametrize(
    ("argv", "runs"),
    [
        (["a=1"], True),
        (["-r"], True),
        (["-m", "a=1"], False),
        (["hydra.mode=MULTIRUN"], False),
        (["--help"], False),
        (["--cfg", "job"], False),
        (["-i"], False),
        (["-sc", "query=bash"], False),
    ],
)
def test_what_runs_one_job_is_told_from_what_asks(argv, runs):
    assert read_arguments(argv).runs is runs


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--foo"], "unrecognized arguments: --foo; --hydra-help lists the flags"),
        (["--cfg", "everything"], "argument --cfg/-c: invalid choice: 'everything'"),
        (["--config-dir"], "expected one argument"),
        (["--experimental-rerun", "x.pickle"], "it runs code from a pickle"),
        (["--config-path", "conf"], "use --config-dir"),
    ],
)
def test_refused_flags_say_why(argv, message, capsys):
    with pytest.raises(ConfigError, match=message):
        read_arguments(argv)
    assert capsys.readouterr() == ("", "")


def test_the_version_is_ours_and_hydras(capsys):
    with pytest.raises(SystemExit) as stop:
        read_arguments(["--version"])
    assert not stop.value.code
    assert capsys.readouterr() == (f"flodl_pipe {flodl_pipe.__version__} (Hydra {hydra.__version__})\n", "")


def test_only_rank_0_gets_a_run_folder(monkeypatch):
    words = ["a=1", "hydra.run.dir=mine", "hydra/job_logging=default"]
    as_rank(monkeypatch, 0)
    assert read_arguments(words).words == tuple(words)
    as_rank(monkeypatch, 1)
    assert read_arguments(words).words == (
        "a=1",
        "hydra.run.dir=.",
        "hydra.output_subdir=null",
        "hydra/job_logging=stdout",
    )


@pytest.mark.parametrize("argv", [["-m", "a=1,2"], ["hydra.mode=MULTIRUN", "a=1,2"]])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_sweep_under_torchrun_is_refused(argv, rank, monkeypatch):
    as_rank(monkeypatch, rank)
    with pytest.raises(ConfigError, match="one sweep per rank; run the sweep outside"):
        read_arguments(argv)


@pytest.mark.parametrize(("rank", "world"), [("0", "1"), ("", "2"), ("0", ""), ("x", "2"), ("0", "x")])
def test_a_plain_process_has_no_rank(rank, world, monkeypatch):
    as_rank(monkeypatch, rank, world)
    assert torchrun_rank() is None


def test_a_command_line_can_be_made_to_leave_no_folder_behind():
    assert without_folder(read_arguments(["job=schema", "hydra.run.dir=mine"]), "none").words == (
        "job=schema",
        "hydra.run.dir=.",
        "hydra.output_subdir=null",
        "hydra/job_logging=none",
    )
