"""``job=launch`` with real ranks that do real runs: one stream, whoever started them and whatever ended them."""

import importlib.util
import os
import signal
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from flodl_pipe.config.compose import load_config
from flodl_pipe.jobs import run
from tests.jobs import watched
from tests.support.programs import Program, launching

WORDS = (
    *("+recipe=olmo_shards", "source.seq_len=64", "loader.global_batch_size=16", "loader.device=cpu"),
    *("job.max_steps=40", "reports.progress=false"),
)


@pytest.fixture
def start(tmp_path):
    """Start the program in an empty folder; what is left of it is ended after the test."""
    started = []

    def begin(*words, program=("-m", "flodl_pipe")):
        process = Program(
            [*program, *words],
            stdout=PIPE,
            stderr=PIPE,
            text=True,
            cwd=tmp_path,
            env=launching(tmp_path.parent, COLUMNS="120"),
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        watched.end(process)


def finish(process):
    out, err = process.communicate(timeout=watched.LIMIT_S)
    return process.returncode, out, err


@pytest.fixture
def digest(table):
    """What one process delivers."""
    return table(run.main, load_config(*WORDS))[1]["digest"]


def is_running(pid):
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def test_two_ranks_deliver_what_one_process_does_and_one_of_them_speaks(start, digest, saved, tmp_path):
    status, out, err = finish(start(*WORDS, "job=launch", "job.nproc=2", "job.save=a.json", "hydra.run.dir=two"))
    assert status == 0, err
    assert saved("a.json")["digest"] == digest
    assert out.count(digest) == 1
    assert "starting 2 ranks here" in out
    assert len(list((tmp_path / "two").glob(".hydra"))) == 1
    assert (tmp_path / "two" / "flodl_pipe.log").exists()


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "flodl_pipe")


@pytest.mark.full
def test_torchrun_alone_does_the_same(start, digest):
    status, out, err = finish(start(*WORDS, program=TORCHRUN))
    assert status == 0, err
    assert out.count(digest) == 1


@pytest.mark.full
def test_torchrun_sweeps_nothing(start, tmp_path):
    status, _, err = finish(start(*WORDS, "sampling.seed=1,2", program=(*TORCHRUN, "-m")))
    assert status != 0
    assert "--multirun under torchrun would start one sweep per rank" in err
    assert list(tmp_path.iterdir()) == []


SAVED = (*watched.WORDS, "job=launch", "job.nproc=2", "job.save=run.json", "job.resume=run.json")


@pytest.fixture
def undisturbed(start, tmp_path, saved):
    """Return the digest of the watched run by one process."""
    watched.write(tmp_path)

    def digest():
        watched.go_on(tmp_path)
        status, _, err = finish(start(*watched.WORDS, "job.save=alone.json"))
        assert status == 0, err
        return saved("alone.json")["digest"]

    return digest


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_launch_that_is_told_to_end_saves_and_goes_on_later(start, undisturbed, saved, tmp_path):
    watched.go_on(tmp_path)
    # Steps of ten minutes: both ranks are in one when the signal comes, however late that is.
    process = start(*SAVED, "job.step_time_s=600")
    watched.await_(lambda: watched.are_reading(tmp_path, 2), process)
    ranks = watched.ranks_of(process.pid)
    assert len(ranks) == 2
    process.terminate()
    status, out, _ = finish(process)
    assert status == 143
    assert "interrupted after 1 step" in out
    assert not any(map(is_running, ranks))
    status, out, err = finish(start(*SAVED))
    assert status == 0, err
    assert "resumed from" in out
    assert saved("run.json")["digest"] == undisturbed()


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_that_is_killed_costs_nothing_but_time(start, undisturbed, saved, tmp_path):
    process = start(*SAVED, "job.save_every_steps=2")
    file = tmp_path / "run.json"
    watched.await_(lambda: file.exists() and saved(file)["num_steps"] == 4, process)
    os.kill(watched.ranks_of(process.pid)[1], signal.SIGKILL)
    watched.go_on(tmp_path)
    status, out, err = finish(process)
    assert status == 0, err
    assert "restart 1" in out
    assert saved(file)["num_steps"] == 16
    assert saved(file)["digest"] == undisturbed()


@pytest.mark.full
@pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None or importlib.util.find_spec("hydra_plugins") is None,
    reason="hydra-submitit-launcher is not installed; pip install 'flodl-pipe[slurm]'",
)
@pytest.mark.parametrize("job", [("job=run",), ("job=launch", "job.nproc=2")], ids=["one process", "ranks"])
def test_submitit_runs_each_point_of_a_sweep_as_a_job(start, saved, tmp_path, job):
    local = ("hydra/launcher=submitit_local", "hydra.sweep.dir=s", "hydra.launcher.timeout_min=5")
    words = (*WORDS, *job, "job.save='run-${sampling.seed}.json'")
    status, out, err = finish(start(*words, "-m", "sampling.seed=1,2", *local))
    assert status == 0, out + err
    for number in (0, 1):
        folder = tmp_path / "s" / str(number)
        assert (folder / "flodl_pipe.log").exists()
        assert f"sampling.seed={number + 1}" in (folder / ".hydra" / "overrides.yaml").read_text()
    assert saved("run-1.json")["digest"] != saved("run-2.json")["digest"]
    assert not (tmp_path / "outputs").exists()
