import itertools
import json
import logging
from functools import partial
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

from flodl_pipe.jobs import digest, fetch, plan, run, verify
from flodl_pipe.jobs.plan_probe import probe_reads
from flodl_pipe.reports.tables import Section, print_sections
from tests.jobs.composed import composed
from tests.support.programs import Program

SMALL = (
    *("source.path=part-0.bin", "source.dtype=uint16", "source.format=raw", "source.seq_len=8"),
    "loader.batch_size=4",
)
OUTSIDE = (
    "FLODL_PIPE_CONFIG_PATH",
    "FLODL_PIPE_ALLOW_IMPORT",
    "HYDRA_FULL_ERROR",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "COLUMNS",
)


@pytest.fixture(autouse=True)
def _clean(tmp_path, monkeypatch):
    """An empty working directory, no rank; Hydra sets up logging for a whole process, so it is put back."""
    for name in OUTSIDE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        if handler not in root.handlers:
            root.addHandler(handler)
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _even_speed(monkeypatch):
    """A plan measures how fast it reads. Here each look at its clock is a microsecond after the one before."""
    clock = itertools.count(step=1e-6)
    monkeypatch.setattr(plan, "probe_reads", partial(probe_reads, clock=lambda: next(clock)))


@pytest.fixture
def tokens(tmp_path):
    """Write a raw uint16 shard of some tokens; returns its path."""

    def write(num_tokens=1000, name="part-0.bin", seed=0):
        ids = np.random.default_rng(seed).integers(0, 60000, num_tokens).astype("<u2")
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(ids.tobytes())
        return str(file)

    return write


@pytest.fixture
def config(tokens, tmp_path):
    """Compose a small pipeline: windows of 8 tokens, 4 to a batch, over ``part-0.bin`` (124 windows, 31 steps)."""

    def compose(*overrides):
        if not (tmp_path / "part-0.bin").exists():
            tokens()
        return composed(*SMALL, *overrides)

    return compose


class Shown(dict):
    """What tables held: name -> value, and their titles, in order."""

    def __init__(self):
        super().__init__()
        self.titles = []


@pytest.fixture
def shown(monkeypatch):
    """What jobs have shown in tables so far: name -> value, as it was before it was fitted into a terminal."""
    found = Shown()
    for module in (digest, fetch, plan, run, verify):
        monkeypatch.setattr(module, "print_sections", partial(_note, found))
    return found


def _note(found, sections, file):
    for section in sections:
        found.titles.append(section.title)
        if isinstance(section, Section):
            name = ""
            for label, value in section.rows:
                name = label or name  # without a name: more of the row above
                found[name] = value if label else f"{found[name]} {value}"
        else:  # a grid: its first column names a line
            found |= {line[0].strip(): "  ".join(line[1:]) for line in section.rows}
    print_sections(sections, file)


@pytest.fixture
def table(shown):
    """Run a job in this process; returns what it returned and the rows of its tables."""

    def ran(main, config):
        shown.clear()
        value = main(config)
        return value, dict(shown)

    return ran


@pytest.fixture
def saved():
    """Read a save file as JSON."""
    return lambda path: json.loads(Path(path).read_text())


@pytest.fixture
def call(capsys):
    """Run the program in this process; returns (status, stdout, stderr)."""
    from flodl_pipe.cli.main import main

    def run(*argv):
        status = 0
        try:
            main(argv)
        except SystemExit as stop:
            status = stop.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def program(tmp_path):
    """Start the program in the working directory, in a process of its own: a `Popen`, whose output is text."""

    def start(*argv, **options):
        options = {"stdout": PIPE, "stderr": PIPE, "text": True, "cwd": tmp_path, **options}
        return Program(["-m", "flodl_pipe", *argv], **options)

    return start
