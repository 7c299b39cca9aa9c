"""README and docs: the examples run, the links lead somewhere, the table of today's features is true."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def run(tmp_path):
    """Run Python in a folder that holds the README's recipe and nothing else."""
    (recipe,) = blocks("yaml")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(recipe)
    outside = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "FLODL_PIPE_CONFIG_PATH", "FLODL_PIPE_ALLOW_IMPORT")
    environment = {name: value for name, value in os.environ.items() if name not in outside}

    def start(*argv):
        done = subprocess.run(
            [sys.executable, *argv],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT)},
            text=True,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return start


def test_the_readme_has_the_examples_tested_here():
    assert [len(blocks(language)) for language in ("yaml", "bash", "python")] == [1, 2, 3]


@pytest.mark.full
@pytest.mark.parametrize("commands", blocks("bash"), ids=["run", "resume"])
def test_the_commands_of_the_readme_run(run, commands):
    for line in commands.splitlines():
        program, *argv = shlex.split(line)
        assert program == "flodl-pipe"
        assert run("-m", "flodl_pipe", *argv)


@pytest.mark.full
@pytest.mark.parametrize("code", blocks("python"), ids=["load", "resume", "dataset"])
def test_the_python_of_the_readme_runs(run, code):
    # Warnings are errors here as in the other tests.
    run("-W", "error", "-c", code)


def test_the_loader_of_the_readme_gives_what_its_comment_says(run):
    code = (
        "import flodl_pipe\n"
        "with flodl_pipe.load('mine', 'loader.batch_size=64') as loader:\n"
        "    x, y = next(iter(loader))\n"
        "    print(x.dtype, y.dtype, tuple(x.shape), tuple(y.shape))"
    )
    assert "torch.int64 torch.int64 (64, 128) (64, 128)" in run("-c", code)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(page):
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"`((?:flodl_pipe|tests|docs|conf|\.ci)/[\w/.-]*)`", text)
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_every_page_of_the_docs_is_linked_from_the_readme_or_from_its_chapter():
    pages = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").glob("*.md")]
    assert [page for page in pages if f"]({page})" not in README] == []
    chapter = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    parts = [page.name for page in (ROOT / "docs" / "sources").glob("*.md")]
    assert [part for part in parts if f"](sources/{part})" not in chapter] == []


def test_the_makefile_has_the_targets_that_are_named():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {target for page in PAGES for target in re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), re.MULTILINE)}
    assert {"run", "test", "lint", "bench"} <= named
    assert [target for target in named if not re.search(rf"^{target}:", makefile, flags=re.MULTILINE)] == []
