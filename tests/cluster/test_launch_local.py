"""Ranks of this host under torch's elastic agent: their output, their end, and that none is left behind."""

import contextlib
import re
import signal
import socket
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from flodl_pipe.cluster.local_ranks import (
    require_free_port,
    require_outside_torchrun,
    require_reachable,
)
from flodl_pipe.errors import ClusterError
from tests.support.programs import Program, launching, run

RANK = """
import os, signal, sys
word, rank, start = sys.argv[1], os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]

if word == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

def say(text):
    os.write(1, f"{text}\\n".encode())  # at once: two ranks write to one pipe

say(f"rank {rank} of {os.environ['WORLD_SIZE']}, start {start}, pid {os.getpid()}, {sys.argv[2:]}")
if word == "fail" and rank == "1":
    sys.exit(3)
if word == "killed" and rank == "1" and start == "0":
    os.kill(os.getpid(), signal.SIGKILL)
if word == "killed_always" and rank == "0":
    os.kill(os.getpid(), signal.SIGKILL)
if word in ("wait", "deaf"):
    signal.pause()
if word == "variables":
    say(sorted(f"{name}={os.environ.get(name)}" for name in ("OMP_NUM_THREADS", "FLODL_PIPE_HOST")))
"""

LAUNCHER = """
import sys
from flodl_pipe.cluster.launch import local_command
from flodl_pipe.cluster.local_ranks import run_ranks
from flodl_pipe.config.cluster import ClusterConfig
command = local_command(2, ClusterConfig(rendezvous={"max_restarts": int(sys.argv[1])}), sys.argv[3:],
                        program=[sys.argv[2]], host="here")
failure = run_ranks(command)
print(failure, flush=True)
sys.exit(0 if failure is None else failure.status)
"""


@pytest.fixture
def start(tmp_path):
    """Start a launcher of two ranks in a process of its own; what is left of it is ended after the test."""
    (tmp_path / "rank.py").write_text(RANK)
    shape = launching(tmp_path)
    shape.pop("OMP_NUM_THREADS", None)
    started = []

    def run(*words, max_restarts=0, **more):
        words = ["-c", LAUNCHER, str(max_restarts), str(tmp_path / "rank.py"), *words]
        process = Program(words, stdout=PIPE, stderr=PIPE, text=True, env={**shape, **more})
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()  # of one that has ended as well: its pipes are open


def finish(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def pids(out):
    return [int(pid) for pid in re.findall(r"pid (\d+)", out)]


def is_alive(pid):
    """Whether a process runs; one that ended and was not waited for has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def test_all_ranks_run_and_their_output_comes_through(start):
    status, out, _ = finish(start("ok", "a b", "c=${d}"))
    assert status == 0
    assert sorted(line.partition(", pid")[0] for line in out.splitlines()) == [
        "None",
        "rank 0 of 2, start 0",
        "rank 1 of 2, start 0",
    ]
    assert out.count("['a b', 'c=${d}']") == 2


@pytest.mark.full
def test_no_warning_of_torchrun_about_threads(start):
    status, out, err = finish(start("variables"))
    assert (status, err) == (0, "")
    assert out.count("['FLODL_PIPE_HOST=here', 'OMP_NUM_THREADS=1']") == 2


@pytest.mark.full
def test_the_threads_that_were_asked_for_are_kept(start):
    assert finish(start("variables", OMP_NUM_THREADS="3"))[1].count("OMP_NUM_THREADS=3") == 2


@pytest.mark.full
def test_the_status_of_a_rank_that_failed_is_handed_on(start):
    status, out, _ = finish(start("fail"))
    assert status == 3
    assert "rank 1 (local rank 1) ended with exit status 3" in out


@pytest.mark.full
def test_the_status_of_a_rank_that_was_killed_is_that_of_the_shell(start):
    status, out, _ = finish(start("killed_always", max_restarts=1))
    assert status == 128 + signal.SIGKILL
    assert "rank 0 (local rank 0) was ended by SIGKILL" in out
    assert "rank 0 of 2, start 1" in out


@pytest.mark.full
def test_a_rank_that_was_killed_has_all_started_anew(start):
    status, out, _ = finish(start("killed", max_restarts=1))
    assert status == 0
    assert [out.count(f"rank {rank} of 2, start 1") for rank in (0, 1)] == [1, 1]


def is_gone_soon(pid):
    """Wait for a process that was told to end; whoever starts it waits for it, so this takes no longer than that."""
    end = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_alive(pid)


def ranks_of(process):
    """Read the output of a launcher until both ranks have spoken; returns their process ids."""
    return pids("".join(process.stdout.readline() for _ in range(2)))


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, -signal.SIGINT, marks=pytest.mark.full),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.full),
    ],
)
def test_a_signal_ends_all_ranks(start, number, status):
    process = start("wait", max_restarts=3)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    assert all(map(is_alive, ranks))
    process.send_signal(number)
    assert finish(process)[0] == status
    assert all(map(is_gone_soon, ranks))


@pytest.mark.full
def test_ranks_that_do_not_listen_are_ended_all_the_same(start):
    process = start("deaf", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="1")
    ranks = ranks_of(process)
    process.terminate()
    assert finish(process)[0] == 143
    assert all(map(is_gone_soon, ranks))


AFTERWARDS = """
import os, signal, sys
from flodl_pipe.cluster.launch import local_command
from flodl_pipe.cluster.local_ranks import RankFailure, run_ranks
from flodl_pipe.config.cluster import ClusterConfig

def state():
    return dict(os.environ), [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

before = state()
for word, failure in (("ok", None), ("fail", RankFailure(1, 1, 3))):
    command = local_command(2, ClusterConfig(rendezvous={"max_restarts": 0}), [word], program=[sys.argv[1]])
    assert run_ranks(command) == failure
assert state() == before
"""


@pytest.mark.full
def test_the_launcher_is_afterwards_as_it_was(tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    done = run(["-c", AFTERWARDS, tmp_path / "rank.py"], env=launching(tmp_path), check=True)
    assert done.stdout.count("rank 0 of 2") == 2


def test_ranks_launch_no_ranks():
    require_outside_torchrun({"HOME": "/", "MASTER_ADDR": "set by a cluster's own scripts"})
    with pytest.raises(ClusterError, match=r"a rank of it \(RANK=1, WORLD_SIZE=2\); .* 'env -u RANK -u WORLD_SIZE'"):
        require_outside_torchrun({"RANK": "1", "WORLD_SIZE": "2"})


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_that_is_taken_is_refused(family):
    if family is socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")
    with socket.socket(family) as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=rf"port={port} cannot be opened on this host \(Address already in use"):
            require_free_port(port)


def test_a_port_that_is_free_is_taken_for_one():
    for _ in range(20):  # somebody else may take it in between, but not always
        with socket.socket() as free, contextlib.suppress(ClusterError):
            free.bind(("", 0))
            port = free.getsockname()[1]
            free.close()
            require_free_port(port)
            return
    pytest.fail("no port is free")


def test_a_name_that_means_nothing_is_refused(monkeypatch):
    """What names mean is given: a resolver that cannot be reached takes its time, and some know every name."""

    def resolve(host, port):
        if host != "known":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    require_reachable("127.0.0.1", "x")
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    require_reachable("known", "x")
    with pytest.raises(
        ClusterError,
        match=r"'no-such-host.invalid' means nothing on this host \(Name or service not known\); set cluster.x to",
    ):
        require_reachable("no-such-host.invalid", "cluster.x")
