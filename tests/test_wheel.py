"""The wheel as a stranger gets it: it holds what it needs, nothing of the checkout, and runs away from it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def stranger(wheel, tmp_path_factory):
    """Run the unpacked wheel's Python in an empty folder that is not the checkout."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    outside = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "FLODL_PIPE_CONFIG_PATH")
    # PYTHONPATH goes before the editable install that the tests themselves run from.
    environment = {name: value for name, value in os.environ.items() if name not in outside} | {"PYTHONPATH": str(site)}

    def run(*argv):
        return subprocess.run(
            [sys.executable, *argv], cwd=elsewhere, env=environment, text=True, capture_output=True, timeout=120
        )

    run.site = site
    return run


def files_below(folder, suffixes):
    return {
        file.relative_to(ROOT / folder).as_posix() for file in (ROOT / folder).rglob("*") if file.suffix in suffixes
    }


@pytest.mark.parametrize("folder", ["conf", "recipes"])
def test_it_carries_the_config_files(names, folder):
    inside = {
        name.removeprefix(f"flodl_pipe/_{folder}/") for name in names if name.startswith(f"flodl_pipe/_{folder}/")
    }
    assert inside == files_below(folder, {".yaml"})


def test_it_carries_the_package_whole(names):
    modules = {f"flodl_pipe/{name}" for name in files_below("flodl_pipe", {".py"})}
    assert modules <= names
    assert {"flodl_pipe/py.typed", "flodl_pipe/recipe.schema.json"} <= names


def test_it_carries_nothing_else(names):
    roots = {name.partition("/")[0] for name in names}
    (info,) = roots - {"flodl_pipe"}
    assert info.endswith(".dist-info")
    assert [name for name in names if "__pycache__" in name or "test" in name] == []


def test_it_names_its_console_script_and_version(wheel):
    import flodl_pipe

    with zipfile.ZipFile(wheel) as archive:
        info = f"flodl_pipe-{flodl_pipe.__version__}.dist-info"
        assert "flodl-pipe = flodl_pipe.cli.main:main" in archive.read(f"{info}/entry_points.txt").decode()
        assert "Requires-Python: >=3.11" in archive.read(f"{info}/METADATA").decode()


def test_it_finds_its_own_config_files_and_not_the_checkouts(stranger):
    code = (
        "import flodl_pipe\nfrom flodl_pipe.config.places import conf_dir, recipe_dirs\n"
        "print(flodl_pipe.__file__, conf_dir(), *(folder for _, folder in recipe_dirs()), sep='\\n')"
    )
    done = stranger("-c", code)
    assert done.returncode == 0, done.stderr
    paths = [Path(line) for line in done.stdout.splitlines()]
    assert [path.relative_to(stranger.site).as_posix() for path in paths] == [
        "flodl_pipe/__init__.py",
        "flodl_pipe/_conf",
        "flodl_pipe/_recipes",
    ]


@pytest.mark.full
def test_it_runs_the_main_job(stranger):
    done = stranger("-m", "flodl_pipe", "+recipe=olmo_shards", "job.max_steps=5")
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stdout + done.stderr
