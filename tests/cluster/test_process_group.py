"""A job's process group: bounded at its start and its end, who is missing named, exit statuses right on all ranks.

A deadline that must not pass is longer than the harness lets ranks run (PATIENT_S): who waits for it fails the test.

White box: what a deadline of the end is set to, how long the store is waited for, and the clock by which ranks wait for
each other; and what the environment says is asked of the functions that read it.
"""

import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import distributed

from flodl_pipe.cluster import arrivals
from flodl_pipe.cluster import process_group as groups
from flodl_pipe.cluster.arrivals import Address, absent_ranks, meet, open_store
from flodl_pipe.cluster.process_group import _described, _is_needed, _part, process_group
from flodl_pipe.cluster.world import World
from flodl_pipe.errors import ClusterError
from tests.cluster.ranks import PATIENT_S, results, run_ranks, told
from tests.support.programs import launching, run

COMPLETE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}


def a_job(end="well"):
    rank = int(os.environ["RANK"])
    with process_group(PATIENT_S):
        total = torch.tensor([rank])
        distributed.all_reduce(total)
        world = World.join("one", None, PATIENT_S)
        found = world.gather(int(total), "a test")
        if rank == 1 and end == "error":
            raise ValueError("rank 1 has had enough")
        if rank == 1 and end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    assert not distributed.is_initialized()
    return found


@pytest.mark.parametrize(("num_ranks", "agent_store"), [(2, True), pytest.param(4, False, marks=pytest.mark.full)])
def test_a_job_begins_and_ends_well(num_ranks, agent_store):
    ended = run_ranks(a_job, num_ranks, init=False, agent_store=agent_store)
    assert all(rank.status == 0 and rank.result == [sum(range(num_ranks))] * num_ranks for rank in ended), told(ended)
    assert all(rank.said == "" for rank in ended), told(ended)


@pytest.mark.parametrize(
    ("end", "status"), [("error", 1), pytest.param("killed", -signal.SIGKILL, marks=pytest.mark.full)]
)
def test_a_rank_that_fails_ends_the_others_by_name(end, status):
    first, second, third = ended = run_ranks(a_job, 3, end, init=False)
    assert [rank.status for rank in ended] == [1, status, 1], told(ended)
    says = "ClusterError: rank 1 ended before the job; see what it says"
    assert says in {first.error, third.error}, told(ended)
    assert all(rank.error is not None and rank.error.startswith("ClusterError: rank ") for rank in (first, third))
    assert second.error == {"error": "ValueError: rank 1 has had enough", "killed": None}[end]


def one_is_late(folder):
    """Rank 1 comes to the end when rank 0 has given up, which waits for a moment only."""
    gave_up = Path(folder, "gave_up")
    with patch.object(groups, "_part", lambda context, _: _part(context, 0.2)):
        try:
            with process_group(PATIENT_S):
                while os.environ["RANK"] == "1" and not gave_up.exists():
                    time.sleep(0.01)
        finally:
            gave_up.touch()


@pytest.mark.full
def test_a_rank_that_does_not_come_to_the_end_is_named(tmp_path):
    first, second = ended = run_ranks(one_is_late, 2, str(tmp_path), init=False, finalize=False)
    assert [rank.status for rank in ended] == [1, 1], told(ended)
    assert first.error == "ClusterError: rank 1 did not come to the end of the job within 0.2 s; see what it says"
    assert second.error == "ClusterError: rank 0 ended before the job; see what it says"


class Waiting:
    """The time, for one of the ranks that come: it passes once nobody but some others is missing."""

    def __init__(self, missing):
        self.now, self.missing, self.passes = time.monotonic(), missing, False

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        time.sleep(seconds)
        self.now += seconds if self.passes else 0.0

    def absent_ranks(self, store, place, world_size):
        found = absent_ranks(store, place, world_size)
        self.passes = self.passes or found == self.missing
        return found


def wait_in_vain(away, store_is_there):
    """Wait for others with little time; for a store that is there, with as much as it takes."""
    with ExitStack() as patched:
        if store_is_there:
            patched.enter_context(patch.object(groups, "open_store", open_patiently))
        if away != 0:  # which tells the others where to meet
            waiting = Waiting([away])
            patched.enter_context(patch.object(arrivals, "time", waiting))
            patched.enter_context(patch.object(arrivals, "absent_ranks", waiting.absent_ranks))
        with process_group(0.5):
            raise AssertionError("a rank is missing")


def open_patiently(address, *, serve, timeout_s):
    return open_store(address, serve=serve, timeout_s=60.0)


@pytest.mark.parametrize(
    ("away", "agent_store"),
    [pytest.param(0, False, marks=pytest.mark.full), pytest.param(0, True, marks=pytest.mark.full), (2, True)],
)
def test_a_rank_that_never_starts_is_named(away, agent_store):
    ended = run_ranks(
        wait_in_vain, 3, away, agent_store, init=False, absent=[away], agent_store=agent_store, finalize=False
    )
    assert [rank.status for rank in ended] == [1, 1]
    for rank in ended:
        if agent_store:
            assert rank.error.startswith(
                f"ClusterError: rank {away} of a world of 3 did not come within 0.5 s (cluster.timeout_s)"
            )
        else:
            assert "no answer from MASTER_ADDR:MASTER_PORT=127.0.0.1:" in rank.error
            assert "within 0.5 s (cluster.timeout_s): rank 0, which keeps it, did not come" in rank.error


@pytest.mark.full
def test_rank_0_names_who_never_starts_before_it_takes_the_store_along():
    first, second = run_ranks(wait_in_vain, 3, 2, True, init=False, absent=[2], finalize=False)
    assert first.error.startswith("ClusterError: rank 2 of a world of 3 did not come within 0.5 s")
    # It stays for a moment, for the others to look; who comes too late for that has lost it.
    assert second.error.startswith(("ClusterError: rank 2 of a world", "ClusterError: rank 1 lost the others"))


class Kept:
    """A store of this process; its time, which stands for the module `time`, passes once so many ranks have come."""

    def __init__(self, num_come):
        self.values, self.num_come, self.now = {}, num_come, 0.0

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        time.sleep(0.001)
        if sum("/came/" in key for key in list(self.values)) == self.num_come:
            self.now += seconds


def test_all_who_wait_name_who_is_missing(monkeypatch):
    come = (0, 1, 3)
    store, said = Kept(len(come)), {}
    monkeypatch.setattr(arrivals, "time", store)

    def wait(rank):
        try:
            meet(store, rank, 5, 2.0, began=0.0)
        except ClusterError as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=wait, args=(rank,)) for rank in come]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (text,) = set(said.values())
    assert sorted(said) == list(come)
    assert text.startswith("rank 2, 4 of a world of 5 did not come within 2 s (cluster.timeout_s); see what became of")
    assert store.now >= 2.0


def own_group(timeout_s):
    with process_group(timeout_s):
        pass
    return distributed.is_initialized()


def test_a_process_group_that_is_there_is_left_alone():
    assert results(own_group, 2, PATIENT_S) == [True, True]


def one_after_the_other():
    """Two attempts that share a store, of which the first leaves its keys behind."""
    for _ in range(2):
        with process_group(PATIENT_S):
            distributed.barrier()
    return distributed.is_initialized()


@pytest.mark.full
def test_a_store_that_holds_keys_of_an_earlier_attempt_does_no_harm():
    assert results(one_after_the_other, 2, init=False, agent_store=True) == [False, False]


DIES_ONCE = """
import os, signal, sys
from flodl_pipe.cluster.process_group import process_group
from flodl_pipe.cluster.world import World
with process_group(300.0):
    world = World.join("one", None, 300.0)
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    found = world.gather(attempt, "a test")
    if attempt == "0" and world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.gather(1, "the shares")
    if world.rank == 0:
        print("attempts", found)
"""


@pytest.mark.full
@pytest.mark.parametrize("shared_store", ["0", "1"])
def test_torchrun_starts_the_ranks_anew(tmp_path, shared_store):
    """With torch's default, where both attempts share one store, and without."""
    script = tmp_path / "script.py"
    script.write_text(DIES_ONCE)
    command = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1", str(script)]
    done = run(
        ["-m", "torch.distributed.run", *command],
        env=launching(tmp_path, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=shared_store),
        timeout=120,
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
