"""``job=launch`` with real ranks that do real runs: one stream, whoever started them and whatever ended them."""

import importlib.util
import os
import re
import signal
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.support.programs import Program, launching

START = (
    *("+recipe=olmo_shards", "source.seq_len=64", "loader.global_batch_size=16", "loader.device=cpu"),
    *("job.max_steps=40", "reports.progress=false"),
)


def popen(folder, words, program=("-m", "flodl_pipe")):
    return Program(
        [*program, *START, *words],
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        cwd=folder,
        env=launching(folder.parent, COLUMNS="120"),
    )


@pytest.fixture
def start(tmp_path):
    """Start the program in an empty folder; what is left of it is ended after the test."""
    started = []

    def run(*words, **more):
        started.append(popen(tmp_path, words, **more))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=60)


def finish(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def digests(text):
    return re.findall(r"^  digest +([0-9a-f]{32})$", text, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def digest(tmp_path_factory):
    """What one process delivers."""
    status, out, err = finish(popen(tmp_path_factory.mktemp("one"), ()))
    assert status == 0, err
    (found,) = digests(out)
    return found


def ranks_below(process):
    """Return the process ids of the ranks that a launcher has started: their leader's sessions are their own."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == process.pid and b"flodl_pipe" in words:
            found.append(int(folder.name))
    return sorted(found)


def wait_for(file, at_least):
    """Wait until a save is that far."""
    end = time.monotonic() + 100
    while time.monotonic() < end:
        if file.exists() and int(re.search(r'"num_steps": *(\d+)', file.read_text())[1]) >= at_least:
            return
        time.sleep(0.05)
    pytest.fail(f"no save of step {at_least}: {file.read_text() if file.exists() else 'none at all'}")


def is_running(pid):
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def test_two_ranks_deliver_what_one_process_does_and_one_of_them_speaks(start, digest, tmp_path):
    status, out, err = finish(start("job=launch", "job.nproc=2", "hydra.run.dir=two"))
    assert status == 0, err
    assert digests(out) == [digest]
    assert "starting 2 ranks here" in out
    assert len(list((tmp_path / "two").glob(".hydra"))) == 1
    assert (tmp_path / "two" / "flodl_pipe.log").exists()


def test_torchrun_alone_does_the_same(start, digest):
    arguments = ("--standalone", "--nproc-per-node=2", "-m", "flodl_pipe")
    status, out, err = finish(start(program=("-m", "torch.distributed.run", *arguments)))
    assert status == 0, err
    assert digests(out) == [digest]


def test_torchrun_sweeps_nothing(start, tmp_path):
    arguments = ("--standalone", "--nproc-per-node=2", "-m", "flodl_pipe", "-m")
    status, _, err = finish(start("sampling.seed=1,2", program=("-m", "torch.distributed.run", *arguments)))
    assert status != 0
    assert "--multirun under torchrun would start one sweep per rank" in err
    assert list(tmp_path.iterdir()) == []


SAVED = ("job=launch", "job.nproc=2", "job.step_time_s=0.05", "job.save=run.json", "job.resume=run.json")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_launch_that_is_told_to_end_saves_and_goes_on_later(start, digest, tmp_path):
    process = start(*SAVED, "job.save_every_steps=5")
    wait_for(tmp_path / "run.json", 5)
    ranks = ranks_below(process)
    assert len(ranks) == 2
    process.terminate()
    status, out, _ = finish(process)
    assert status == 143
    assert "interrupted after" in out
    assert not any(map(is_running, ranks))
    status, out, err = finish(start(*SAVED))
    assert status == 0, err
    assert digests(out) == [digest]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_that_is_killed_costs_nothing_but_time(start, digest, tmp_path):
    process = start(*SAVED, "job.save_every_steps=5")
    wait_for(tmp_path / "run.json", 10)
    os.kill(ranks_below(process)[1], signal.SIGKILL)
    status, out, err = finish(process)
    assert status == 0, err
    assert "restart 1" in out
    assert digests(out) == [digest]


@pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None or importlib.util.find_spec("hydra_plugins") is None,
    reason="hydra-submitit-launcher is not installed; pip install 'flodl-pipe[slurm]'",
)
@pytest.mark.parametrize("job", [("job=run",), ("job=launch", "job.nproc=2")], ids=["one process", "ranks"])
def test_submitit_runs_each_point_of_a_sweep_as_a_job(start, tmp_path, job):
    local = ("hydra/launcher=submitit_local", "hydra.sweep.dir=s", "hydra.launcher.timeout_min=2")
    status, out, err = finish(start(*job, "-m", "sampling.seed=1,2", *local))
    assert status == 0, out + err
    found = set()
    for number in (0, 1):
        folder = tmp_path / "s" / str(number)
        assert (folder / "flodl_pipe.log").exists()
        assert f"sampling.seed={number + 1}" in (folder / ".hydra" / "overrides.yaml").read_text()
    for log in (tmp_path / "s" / ".submitit").glob("*/*_log.out"):
        found.update(digests(log.read_text()))
    assert len(found) == 2
    assert not (tmp_path / "outputs").exists()
