"""The Makefile: what it would do, told by ``make --dry-run``, and what it says when Python is not there."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
INSTALL = "-m pip --disable-pip-version-check install --constraint constraints.txt --editable"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def make(tmp_path):
    venv = tmp_path / "venv"
    # The tests may run under make themselves, and its command line would be handed down.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"}

    def run(*argv):
        command = ["make", "--no-print-directory", f"VENV={venv}", *argv]
        return subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=60)

    run.venv = venv
    return run


@pytest.fixture
def installed(make):
    """Pretend that everything was installed a moment ago."""
    make.venv.mkdir()
    for stamp in ("made", "installed", "installed-test", "installed-full", "installed-dev"):
        (make.venv / stamp).touch()


@pytest.mark.parametrize(
    ("target", "extras", "command"),
    [
        ("run", "'.'", "-m flodl_pipe +recipe=olmo_shards"),
        ("test", "'.[test]'", '-m "not full"'),
        ("test-full", "'.[test,ecosystem,slurm]'", "--dist worksteal"),
        ("lint", "'.[dev]'", "mypy"),
    ],
)
def test_on_a_bare_machine_it_makes_the_venv_installs_and_goes(make, target, extras, command):
    told = make("--dry-run", target).stdout
    assert f"-m venv {make.venv}" in told
    assert f"{INSTALL} {extras}" in told
    assert told.splitlines()[-1].rstrip().endswith(command)


@pytest.mark.usefixtures("installed")
def test_a_second_time_it_only_goes(make):
    assert make("--dry-run", "run").stdout.splitlines() == [f"{make.venv}/bin/python -m flodl_pipe +recipe=olmo_shards"]


@pytest.mark.usefixtures("installed")
def test_every_processor_runs_tests_and_bytecode_is_kept_in_the_venv(make):
    processors = len(os.sched_getaffinity(0))
    for target in ("test", "test-full"):
        assert f"-m pytest --numprocesses {processors} " in make("--dry-run", target).stdout
    told = make("--eval", "show:; @echo $$PYTHONPYCACHEPREFIX, $$PYTHONDONTWRITEBYTECODE.", "show").stdout
    assert told == f"{make.venv}/pycache, .\n"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_it_installs_again_when_the_requirements_changed(make, changed):
    told = make("--dry-run", f"--what-if={changed}", "test").stdout
    assert INSTALL in told
    assert "-m venv" not in told


@pytest.mark.usefixtures("installed")
def test_arguments_take_the_place_of_the_defaults(make):
    assert make("--dry-run", "run", "ARGS=job=schema").stdout.endswith("-m flodl_pipe job=schema\n")
    for target in ("test", "test-full"):
        assert make("--dry-run", target, "ARGS=tests/batch -x").stdout.endswith("-m pytest tests/batch -x\n")


def test_a_missing_python_is_told_with_the_remedy(make):
    done = make("run", "PYTHON=python-that-is-not-there")
    assert done.returncode != 0
    assert "python-that-is-not-there not found; install Python 3.11 or newer" in done.stderr
    assert not make.venv.exists()
