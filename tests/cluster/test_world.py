"""Ranks find each other and say small things; who does not come, or has gone, is named, and nobody waits for it longer.

A deadline that must not pass is longer than the harness lets ranks run (PATIENT_S): who waits for it fails the test.

White box: the store is waited for patiently where the deadline is short; and how members are counted is asked of the
function that does it.
"""

import os
import signal
from datetime import timedelta
from unittest.mock import patch

import pytest
from torch import distributed

from flodl_pipe.cluster import exchange
from flodl_pipe.cluster import world as worlds
from flodl_pipe.cluster.arrivals import open_store
from flodl_pipe.cluster.world import World, _members
from flodl_pipe.errors import ClusterError
from tests.cluster.ranks import PATIENT_S, in_a_fork, results, run_ranks, told

LONG = "x" * 100_000
# Bits of floats that arithmetic, or text, would lose.
FLOATS = (0.1, -0.0, 1e-320, float("inf"))


def host():
    return os.environ["FLODL_PIPE_HOST"]


def join(timeout_s=PATIENT_S):
    return World.join(host(), int(os.environ["LOCAL_RANK"]), timeout_s)


def error_of(call):
    """Return what a call raises."""
    try:
        call()
    except ClusterError as error:
        return str(error)
    return "nothing was raised"


def everything_that_goes_well():
    world = join()
    rank = world.rank
    found = {
        "again": join() is world,
        "members": world.members,
        "names": [world.name(rank) for rank in range(world.world_size)],
        "co_hosted": world.co_hosted,
        "short": world.gather({"rank": rank, "none": None}, "a test"),
        "long": [len(value) for value in world.gather(LONG[: rank * 40_000], "a test")],
        "floats": world.gather_floats([*FLOATS, float(rank)], "a test"),
        "uneven": world.gather_floats([1.5] * rank, "a test"),
        "elsewhere": error_of(lambda: World.join("elsewhere", 0, PATIENT_S)),
        "forked": in_a_fork(lambda: error_of(lambda: world.gather(1, "a test"))),
    }
    found["many"] = [world.gather_floats([float(rank + step)], "a test") for step in range(50)]
    world.close()
    world.close()
    found["closed"] = error_of(lambda: world.gather(1, "a test"))
    found["anew"] = join().gather(rank, "a test")
    distributed.barrier()
    found["default group"] = distributed.is_initialized()
    return found


def test_ranks_tell_each_other_things():
    all_found = results(everything_that_goes_well, 3, hosts=["b", "a", "b"])
    for rank, found in enumerate(all_found):
        assert found["again"]
        assert found["members"] == (("b", 0), ("a", 0), ("b", 1))
        assert found["names"] == ["b/0", "a/0", "b/1"]
        assert found["co_hosted"] == ((0, 2), (1,), (0, 2))[rank]
        assert found["short"] == [{"rank": rank, "none": None} for rank in range(3)]
        assert found["long"] == [0, 40_000, 80_000]
        assert found["floats"] == [(*FLOATS, float(rank)) for rank in range(3)]
        assert [str(values[1]) for values in found["floats"]] == ["-0.0"] * 3
        assert found["uneven"] == [(), (1.5,), (1.5, 1.5)]
        assert "has joined the other ranks as" in found["elsewhere"]
        assert "this process was forked from one" in found["forked"]
        assert found["many"] == [[(0.0 + step,), (1.0 + step,), (2.0 + step,)] for step in range(50)]
        assert "no longer talk to each other" in found["closed"]
        assert found["anew"] == [0, 1, 2]
        assert found["default group"]


def a_quiet_run():
    World.join("one", None, PATIENT_S).gather("word", "a test")


@pytest.mark.parametrize("agent_store", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_run_says_nothing_by_itself(agent_store):
    ended = run_ranks(a_quiet_run, 2, agent_store=agent_store)
    assert [(rank.status, rank.said) for rank in ended] == [(0, ""), (0, "")]


def stay_away(rank_that_stays, timeout_s):
    world = join()
    world.gather(1, "a test")
    if world.rank == rank_that_stays:
        distributed.barrier()  # until the others have given up
        return error_of(lambda: world.gather(1, "the shares"))
    world.timeout_s = timeout_s
    late = error_of(lambda: world.gather(1, "the shares"))
    world.timeout_s = PATIENT_S
    again = error_of(lambda: world.gather(1, "the end"))
    rejoined = error_of(lambda: join().gather(1, "the end"))
    distributed.barrier()
    return late, again, rejoined


@pytest.mark.parametrize("away", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_rank_that_does_not_come_is_named_in_time(away):
    """It comes when the others have given up, so it is the deadline that has ended their waiting."""
    ended = results(stay_away, 3, away, 0.2, hosts=["a", "a", "b"])
    name = ("a/0", "a/1", "b/0")[away]
    assert "closed its connection before the shares" in ended.pop(away)
    late = [said[0] for said in ended]
    # One gives up first, and with it the connections of the other, which may find them closed before its time is over.
    named = [said for said in late if "did not come to the shares within 0.2 s" in said]
    assert named, late
    assert all(name in said for said in named), late
    assert all("closed its connection before the shares" in said for said in late if said not in named), late
    for _, again, rejoined in ended:
        for said in (again, rejoined):
            assert "no longer talk to each other, because of an earlier failure: the shares: rank" in said


class Frames:
    """What stands for torch.distributed: frames of some peers come, of others not before the time is over."""

    def __init__(self, clock, *, come, waits_for=lambda timeout: timeout.total_seconds()):
        self.clock, self.come, self.waits_for = clock, come, waits_for
        self.group = distributed.group
        self.ended = []

    def isend(self, sent, dst, group):
        return Work(self, dst)

    def irecv(self, buffer, src, group):
        buffer[0] = src in self.come
        return Work(self, src)

    def destroy_process_group(self, group):
        self.ended.append(group)


class Work:
    def __init__(self, frames, peer):
        self.frames, self.peer = frames, peer

    def wait(self, timeout):
        if self.peer not in self.frames.come:
            self.frames.clock.now += self.frames.waits_for(timeout)
            raise RuntimeError("of gloo")


class Clock:
    """What stands for the module `time`; a look at it takes a while, if told so."""

    def __init__(self, tick_s=0.0):
        self.now, self.tick_s = 1000.0, tick_s

    def monotonic(self):
        self.now += self.tick_s
        return self.now


def lost_of(monkeypatch, frames):
    group = Group()
    monkeypatch.setattr(exchange, "time", frames.clock)
    monkeypatch.setattr(exchange, "distributed", frames)
    with pytest.raises(exchange.Lost) as caught:
        exchange.Exchange(group, 1, 7).all(exchange.Record(1, b"word"), 7.0, "the shares")
    assert frames.ended == [group]
    return caught.value


def test_of_many_ranks_those_that_did_not_come_are_named(monkeypatch):
    frames = Frames(Clock(), come={0, 3, 4})
    lost = lost_of(monkeypatch, frames)
    assert (lost.ranks, lost.is_late) == ((2, 5, 6), True)
    assert frames.clock.now == pytest.approx(1007.0, abs=0.002)


def test_a_wait_that_gloo_has_cut_to_milliseconds_is_late_all_the_same(monkeypatch):
    whole_ms = timedelta(milliseconds=1)
    clock = Clock(tick_s=0.0001)  # so that no whole number of them is left
    frames = Frames(clock, come={0, 3, 4}, waits_for=lambda timeout: timeout // whole_ms / 1e3)
    lost = lost_of(monkeypatch, frames)
    assert (lost.ranks, lost.is_late) == ((2, 5, 6), True)


class Group:
    """A process group that can be referred to weakly."""


def die_or_wait(who):
    world = join()
    world.gather(1, "a test")
    if world.rank == who:
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(lambda: world.gather(1, "the shares"))


@pytest.mark.full
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_dies_is_named_at_once(who):
    ended = run_ranks(die_or_wait, 3, who, hosts=["a", "b", "c"], finalize=False)
    assert ended[who].status == -signal.SIGKILL
    name = "abc"[who] + "/0"
    said = [rank.result for rank in ended if rank.rank != who]
    assert all("closed its connection before the shares" in text for text in said), told(ended)
    assert any(text.startswith(name) for text in said)


def several_refusals():
    rank = distributed.get_rank()
    found = {"same": error_of(lambda: World.join("same", 0, PATIENT_S))}
    world = World.join(f"host{rank}", None, PATIENT_S)
    calls = [lambda: world.gather(1, "a save"), lambda: world.gather_floats([1.0], "the shares")]
    found["places"] = error_of(calls[rank])
    found["words"] = error_of(lambda: world.gather({}, ["building the loader", "at attach()"][rank]))
    found["after"] = world.gather(rank, "what comes after")
    world.close()
    if rank == 0:
        # Only the first meeting has so little time.
        with patch.object(worlds, "open_store", lambda address, **_: open_store(address, serve=False, timeout_s=60.0)):
            found["alone"] = error_of(lambda: World.join("host", None, 0.2))
    distributed.barrier()
    return found


def test_ranks_at_different_places_or_with_one_name_are_refused():
    first, second = ended = run_ranks(several_refusals, 2, finalize=False)
    for rank in ended:
        assert rank.status == 0, told(ended)
        found = rank.result
        assert found["same"].startswith("rank 0, 1 all say that they are same/0")
        assert found["places"].startswith("ranks wait for each other at different places")
        assert found["places"].endswith("host0/0: a save; host1/0: the shares")
        assert "different places" in found["words"]
        assert found["words"].endswith("host0/0: building the loader; host1/0: at attach()")
        assert found["after"] == [0, 1]
    assert first.result["alone"].startswith(
        "rank 1 of a world of 2 did not come to the first meeting of the ranks within 0.2 s"
    )
    assert "hosts host0, host1 are one machine" in first.said
    assert "one machine" not in second.said


def test_torch_distributed_must_be_initialised():
    with pytest.raises(ClusterError, match=r"call torch\.distributed\.init_process_group\(\)"):
        World.join("a", 0, 1.0)


def test_ranks_without_a_number_are_counted_on_their_host():
    assert _members([("a", None), ("b", None), ("a", None), ("c", 5)]) == [("a", 0), ("b", 0), ("a", 1), ("c", 5)]
