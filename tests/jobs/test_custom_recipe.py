"""The recipe ``custom`` from the command line: nothing is imported without a word, and with it the example runs."""

import shutil
import sys
from pathlib import Path

import pytest

import flodl_pipe
from flodl_pipe.errors import ConfigError
from tests.support import programs

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = ("FLODL_PIPE_CONFIG_PATH", "FLODL_PIPE_ALLOW_IMPORT", "HYDRA_FULL_ERROR", "RANK", "WORLD_SIZE", "LOCAL_RANK")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with the example in it."""
    for name in OUTSIDE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.copy(ROOT / "docs" / "examples" / "squares.py", tmp_path)
    yield tmp_path
    sys.modules.pop("squares", None)


@pytest.fixture
def program(here):
    def run(*argv, **environment):
        return programs.run(
            ["-m", "flodl_pipe", "+recipe=custom", *argv], cwd=here, env=programs.environment(**environment)
        )

    return run


@pytest.mark.full
def test_it_plans_and_runs_with_permission(program):
    plan = program("job=plan", "allow_import=[squares]")
    assert plan.returncode == 0, plan.stderr
    assert "squares.Squares, 4,096 samples" in plan.stdout
    run = program("+source.args.num_samples=1000", FLODL_PIPE_ALLOW_IMPORT="squares")
    assert run.returncode == 0, run.stderr
    assert "squares.Squares, 1,000 samples" in run.stdout


@pytest.mark.full
def test_without_permission_it_ends_with_the_remedy(program, here):
    (here / "squares.py").write_text("open('ran', 'w')\n")
    for job in ("run", "plan"):
        done = program(f"job={job}", "hydra.run.dir=.", "hydra.output_subdir=null")
        assert done.returncode == 2
        assert "source.factory: squares:make_dataset would import code of the module squares" in done.stderr
        assert "allow_import=[squares]" in done.stderr
    assert not (here / "ran").exists()


def test_a_recipe_cannot_give_itself_permission(here):
    (here / "recipes").mkdir()
    text = "defaults: [custom]\nallow_import: [squares]\n"
    (here / "recipes" / "evil.yaml").write_text(text)
    with pytest.raises(ConfigError, match="allow_import: a config file cannot") as caught:
        flodl_pipe.load("evil", "allow_import=[squares]")
    assert caught.value.problems[0].where == "recipes/evil.yaml:2"


def test_load_takes_it_as_an_override(here):
    with flodl_pipe.load("custom", "allow_import=[squares]", "loader.batch_size=10") as loader:
        x, y = next(iter(loader))
    assert (x * x == y).all()
    with pytest.raises(ConfigError, match="only modules that you allow are imported"):
        flodl_pipe.load("custom")
