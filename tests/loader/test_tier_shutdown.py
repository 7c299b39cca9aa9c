"""Shutdown of loaders with tiers of the host leaves no thread, process, descriptor, file or grant.

``FLODL_PIPE_SHUTDOWNS`` says how many endings are tried; the seed is fixed.
"""

import contextlib
import os
import random
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from flodl_pipe.loader import outline, stores
from flodl_pipe.loader.loader import Loader
from flodl_pipe.staging.ram_cache import RamCache
from flodl_pipe.staging.ram_ragged import RaggedCache
from tests.loader.device_scenarios import Sentences, records, tokens, write_data
from tests.loader.endings import ENDINGS, end_all, end_each
from tests.loader.process_sources import FaultyElsewhere, Rows
from tests.loader.sources import Numbers
from tests.loader.streams import Lanes
from tests.loader.waiting import HANG_S, until
from tests.support.programs import Program, environment

COUNT = int(os.environ.get("FLODL_PIPE_SHUTDOWNS", "250"))

FULL = pytest.mark.full
KINDS = {
    "RAM cache of files": 4,
    "RAM cache of a slow source": 4,
    "RAM cache of a dataset": 2,
    "resident": 2,
    "resident slowly": 2,
    "disk stage": 4,
    "RAM cache and disk stage": 4,
    "ragged": 2,
    "stream": 1,
}

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")


@pytest.fixture(autouse=True)
def _little_room(monkeypatch):
    """Give the tiers room for half of a set, and let them fill in many pieces."""
    real = outline.plan_tiers

    def plan_tiers(source, *args, room_bytes, **options):
        # Of ragged rows the size is not known before.
        half = 1_500 if source.spec.is_ragged else len(source) * source.spec.row_bytes // 2
        return real(source, *args, room_bytes=min(room_bytes, half), **options)

    monkeypatch.setattr(outline, "plan_tiers", plan_tiers)
    monkeypatch.setattr(stores, "CHUNK_BYTES", 4_000)
    for cache in (RamCache, RaggedCache):
        monkeypatch.setitem(cache.fill.__kwdefaults__, "chunk_bytes", 4_000)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "left").mkdir()
    write_data(tmp_path / "data")
    return tmp_path / "data"


def maker(folder):
    left = folder.parent / "left"
    seen = {}

    def make(kind, rng):
        options = {
            "device": "cpu",
            "mode": "streaming",
            "batch_size": rng.choice([4, 16, 60]),
            "readers": rng.choice([0, 1, 2, 3]),
            "prefetch": rng.choice(["auto", 1, 3]),
            "keep_digest": rng.random() < 0.5,
        }
        source = tokens(folder) if rng.random() < 0.3 else records(folder)
        match kind:
            case "RAM cache of a slow source":
                source = Numbers(2_000, 30, delay_s=0.003)
            case "RAM cache of a dataset":
                source = Rows(300)
            case "resident" | "resident slowly":
                options["mode"] = "resident"
                if kind == "resident slowly":
                    source = Numbers(2_000, 30, delay_s=0.003)
            case "disk stage":
                options |= {"sample_cache": False, "disk_stage": 1 << 20, "disk_stage_dir": str(left)}
            case "RAM cache and disk stage":
                source = records(folder)
                options |= {"disk_stage": 1 << 20, "disk_stage_dir": str(left)}
            case "ragged":
                source, options["collate"] = Sentences(), "pad"
            case "stream":
                source = Lanes(40, 55, 31, 60)
            case "reader processes":
                source = Rows(300, busy_us=500)
                options |= {"reader_kind": "process", "readers": rng.choice([1, 2])}
            case "stuck reader processes":
                source = FaultyElsewhere(200)
                options |= {"reader_kind": "process", "readers": 2, "batch_size": 4, "shuffle": False}
        loader = Loader(source, seed=rng.randrange(1000), **options)
        seen[kind] = loader.granted()
        return loader

    return make, seen


def test_every_ending_leaves_nothing_of_the_tiers(data):
    make, seen = maker(data)
    end_each(random.Random(6), KINDS, list(ENDINGS), make, data.parent / "left")
    assert set(seen) == set(KINDS)
    require_kinds(seen)


@pytest.mark.full
def test_random_endings_leave_nothing_of_the_tiers(data):
    make, seen = maker(data)
    end_all(random.Random(7), COUNT, KINDS, list(ENDINGS), make, data.parent / "left")
    require_kinds(seen)


def require_kinds(seen):
    """Check that the kinds are what their names say."""
    for kind, granted in seen.items():
        purposes = {purpose for purpose, num_bytes in granted if num_bytes}
        assert ("disk stage" in purposes) == ("disk stage" in kind), kind
        assert "RAM cache" not in kind or "RAM cache" in purposes, (kind, granted)
        assert "resident" not in kind or "resident set" in purposes, (kind, granted)


@pytest.mark.full
def test_random_endings_leave_no_reader_process(data):
    make, _ = maker(data)
    with make("reader processes", random.Random(1)) as loader:
        next(iter(loader))  # the server of forks starts, and stays
    kinds = {"reader processes": 2, "stuck reader processes": 1}
    count = max(6, COUNT // 20)
    end_all(random.Random(9), count, kinds, [name for name in ENDINGS if name != "finish"], make, data.parent / "left")


MODES = ("disk stage", "processes", "slow source", "device", "resident")
# How the program ends, and the status that it ends with.
PROGRAM_ENDS = {
    "return": 0,
    "status": 3,
    "error": 1,
    "interrupt": -signal.SIGINT,
    "terminate": -signal.SIGTERM,
    "kill": -signal.SIGKILL,
}
SIGNALS = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "kill": signal.SIGKILL}


def program(mode, end, folder, mark):
    """Start the program in a session of its own; every process that it starts inherits the mark."""
    # Errors go to a file: a server of forks that outlives its parent for a moment holds a pipe open.
    with (folder.parent / mark).open("w") as errors:
        return Program(
            [Path(__file__).with_name("program_to_end.py"), mode, end, folder],
            env=environment(FLODL_PIPE_MARK=mark),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def errors_of(folder, mark):
    return (folder.parent / mark).read_text()


def marked(mark):
    """Return the processes with a mark, but for those that have ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and f"FLODL_PIPE_MARK={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def require_none_left(mark, folder, files):
    until(lambda: not marked(mark), "the end of all its processes")
    assert {path.name for path in folder.iterdir()} == files


# A third of the combinations, every mode and every end among them, unless more endings than usual are asked for.
PROGRAMS = [
    pytest.param(mode, end, marks=() if (mode, end) in {("device", "return"), ("disk stage", "interrupt")} else FULL)
    for row, mode in enumerate(MODES)
    for column, end in enumerate(PROGRAM_ENDS)
    if (row + column) % 3 == 0 or COUNT > 250
]


@pytest.mark.parametrize(("mode", "end"), PROGRAMS)
def test_a_program_ends_and_leaves_nothing(mode, end, data):
    mark, files = uuid.uuid4().hex, {path.name for path in data.iterdir()}
    with program(mode, end, data, mark) as process:
        if end in SIGNALS:
            assert process.stdout.readline() == "at work\n", errors_of(data, mark)
            # From a terminal the whole group gets it.
            (os.killpg if end == "interrupt" else os.kill)(process.pid, SIGNALS[end])
        process.stdout.read()
        assert process.wait(HANG_S) == PROGRAM_ENDS[end], errors_of(data, mark)
    require_none_left(mark, data, files)
    text = errors_of(data, mark)
    assert "Fatal" not in text
    assert text.count("Traceback") == (end in ("error", "interrupt")), text


@pytest.mark.full
def test_a_killed_reader_process_ends_the_loop_and_leaves_nothing(data):
    mark, files = uuid.uuid4().hex, {path.name for path in data.iterdir()}
    with program("processes", "run", data, mark) as process:
        assert process.stdout.readline() == "at work\n", errors_of(data, mark)
        # One that dies between two passes is replaced in silence: so it is done until one dies at work.
        victims = []
        while process.poll() is None:
            with contextlib.suppress(OSError, StopIteration):
                victim = next(pid for pid in readers_of(process.pid, mark) if pid not in victims)
                victims.append(victim)
                os.kill(victim, signal.SIGKILL)
            until(
                lambda: process.poll() is not None or set(readers_of(process.pid, mark)) - set(victims),
                "the end of the program, or of what the process that was killed is replaced by",
            )
        assert process.wait(HANG_S) == 1
    require_none_left(mark, data, files)
    assert any(f"process {victim}" in errors_of(data, mark) for victim in victims)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def readers_of(program_pid, mark):
    """Return the processes that were started by the program's server of forks, a child of the program."""
    found = []
    for pid in marked(mark):
        with contextlib.suppress(OSError):
            if parent_of(pid) != program_pid and parent_of(parent_of(pid)) == program_pid:
                found.append(pid)
    return found


def test_an_error_before_the_loader_leaves_nothing(data):
    mark, files = uuid.uuid4().hex, {path.name for path in data.iterdir()}
    with program("processes", "import", data, mark) as process:
        assert process.wait(HANG_S) == 1
    require_none_left(mark, data, files)
