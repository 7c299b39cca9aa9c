"""A job's process group: bounded at its start and its end, who is missing named, exit statuses right on all ranks."""

import os
import signal
import time

import pytest
import torch
from torch import distributed

from flodl_pipe.cluster.arrivals import Address
from flodl_pipe.cluster.process_group import _described, _is_needed, process_group
from flodl_pipe.cluster.world import World
from flodl_pipe.errors import ClusterError
from tests.cluster.ranks import results, run_ranks, told
from tests.support.programs import launching, run

# What a busy machine may add to a deadline; far less than the deadline that would hold otherwise.
IN_TIME_S = 10.0
COMPLETE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}


def a_job(timeout_s, end="well"):
    rank = int(os.environ["RANK"])
    began = time.monotonic()
    try:
        with process_group(timeout_s):
            total = torch.tensor([rank])
            distributed.all_reduce(total)
            world = World.join("one", None, timeout_s)
            found = world.gather(int(total), "a test")
            if rank == 1 and end == "error":
                raise ValueError("rank 1 has had enough")
            if rank == 1 and end == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 1 and end == "late":
                time.sleep(timeout_s + 2)
    finally:
        print(f"took {time.monotonic() - began:.2f}")
    assert not distributed.is_initialized()
    return found


def took_s(rank):
    return float(next(line for line in rank.said.splitlines() if line.startswith("took ")).removeprefix("took "))


@pytest.mark.parametrize(("num_ranks", "agent_store"), [(2, True), (4, False)])
def test_a_job_begins_and_ends_well(num_ranks, agent_store):
    ended = run_ranks(a_job, num_ranks, 20.0, init=False, agent_store=agent_store)
    assert all(rank.status == 0 and rank.result == [sum(range(num_ranks))] * num_ranks for rank in ended), told(ended)
    assert all(len(rank.said.splitlines()) == 1 for rank in ended), told(ended)


@pytest.mark.parametrize(
    ("end", "status", "says"),
    [
        ("error", 1, "rank 1 ended before the job; see what it says"),
        ("killed", -signal.SIGKILL, "rank 1 ended before the job; see what it says"),
        ("late", 1, "rank 1 did not come to the end of the job within 2 s; see what it says"),
    ],
)
def test_a_rank_that_fails_ends_the_others_by_name(end, status, says):
    first, second, third = ended = run_ranks(a_job, 3, 2.0, end, init=False)
    assert [rank.status for rank in ended] == [1, status, 1], told(ended)
    assert f"ClusterError: {says}" in {first.error, third.error}, told(ended)
    assert all(rank.error is not None and rank.error.startswith("ClusterError: rank ") for rank in (first, third))
    assert took_s(first) < 2.0 + IN_TIME_S
    assert second.error == {"error": "ValueError: rank 1 has had enough", "killed": None}.get(end, second.error)


@pytest.mark.parametrize(("away", "agent_store"), [(0, False), (0, True), (2, False)])
def test_a_rank_that_never_starts_is_named(away, agent_store):
    ended = run_ranks(a_job, 3, 2.0, init=False, absent=[away], agent_store=agent_store)
    assert len(ended) == 2
    for rank in ended:
        assert rank.status == 1
        assert rank.error is not None
        if away == 0 and not agent_store:
            assert "no answer from MASTER_ADDR:MASTER_PORT=127.0.0.1:" in rank.error
            assert "within 2 s (cluster.timeout_s): rank 0, which keeps it, did not come" in rank.error
        else:
            assert f"rank {away} of a world of 3 did not come within 2 s (cluster.timeout_s)" in rank.error, told(ended)
        assert took_s(rank) < 2.0 + IN_TIME_S


def own_group(timeout_s):
    with process_group(timeout_s):
        pass
    return distributed.is_initialized()


def test_a_process_group_that_is_there_is_left_alone():
    assert results(own_group, 2, 5.0) == [True, True]


def one_after_the_other():
    """Two attempts that share a store, of which the first leaves its keys behind."""
    for _ in range(2):
        with process_group(10.0):
            distributed.barrier()
    return distributed.is_initialized()


def test_a_store_that_holds_keys_of_an_earlier_attempt_does_no_harm():
    assert results(one_after_the_other, 2, init=False, agent_store=True) == [False, False]


DIES_ONCE = """
import os, signal, sys
from flodl_pipe.cluster.process_group import process_group
from flodl_pipe.cluster.world import World
with process_group(20.0):
    world = World.join("one", None, 20.0)
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    found = world.gather(attempt, "a test")
    if attempt == "0" and world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.gather(1, "the shares")
    if world.rank == 0:
        print("attempts", found)
"""


@pytest.mark.parametrize("shared_store", ["0", "1"])
def test_torchrun_starts_the_ranks_anew(tmp_path, shared_store):
    """With torch's default, where both attempts share one store, and without."""
    script = tmp_path / "script.py"
    script.write_text(DIES_ONCE)
    command = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1", str(script)]
    done = run(
        ["-m", "torch.distributed.run", *command],
        env=launching(tmp_path, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=shared_store),
        timeout=90,
    )
    assert (done.returncode, done.stdout) == (0, "attempts ['1', '1']\n"), done.stderr


def test_a_process_alone_needs_no_group():
    assert not _is_needed({})
    assert not _is_needed({"MASTER_ADDR": "left.over"})
    assert not _is_needed({"RANK": "0", "WORLD_SIZE": "1"})
    assert _is_needed(COMPLETE)
    with process_group(1.0):
        assert not distributed.is_initialized()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"MASTER_ADDR": ""}, r"MASTER_ADDR must be set .*\(RANK=1, WORLD_SIZE=2, MASTER_PORT=29400\); .* torchrun"),
        ({"RANK": "", "MASTER_PORT": ""}, "RANK and MASTER_PORT must be set"),
        ({"RANK": "x"}, "RANK='x' is not a number"),
        ({"RANK": "2"}, "rank 2 is outside a world of 2"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT='70000' is not a port; it must be from 1 to 65535"),
    ],
)
def test_missing_and_wrong_variables_are_named(change, says):
    with pytest.raises(ClusterError, match=says):
        _described(COMPLETE | change)


def test_where_the_store_is():
    assert Address.from_environment(COMPLETE) == ("127.0.0.1", 29400, False)
    assert Address.from_environment(COMPLETE | {"TORCHELASTIC_USE_AGENT_STORE": "True"}) == ("127.0.0.1", 29400, True)
    assert Address.from_environment({"MASTER_ADDR": "a"}) is None
