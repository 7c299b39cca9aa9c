"""Ranks find each other and say small things; who does not come, or has gone, is named, in time."""

import os
import signal
import time

import pytest
from torch import distributed

from flodl_pipe.cluster.world import World, _members
from flodl_pipe.errors import ClusterError
from tests.cluster.ranks import results, run_ranks, told

# What a busy machine may add to a deadline.
IN_TIME_S = 10.0
LONG = "x" * 100_000
# Bits of floats that arithmetic, or text, would lose.
FLOATS = (0.1, -0.0, 1e-320, float("inf"))


def host():
    return os.environ["FLODL_PIPE_HOST"]


def join(timeout_s=20.0):
    return World.join(host(), int(os.environ["LOCAL_RANK"]), timeout_s)


def error_of(call):
    """Return what a call raises, and how long it took."""
    began = time.monotonic()
    try:
        call()
    except ClusterError as error:
        return str(error), time.monotonic() - began
    return "nothing was raised", 0.0


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
        "elsewhere": error_of(lambda: World.join("elsewhere", 0, 20.0))[0],
        "forked": in_a_fork(lambda: world.gather(1, "a test")),
    }
    began = time.perf_counter()
    for step in range(50):
        world.gather_floats([float(step)] * 3, "a test")
    found["each_s"] = (time.perf_counter() - began) / 50
    world.close()
    world.close()
    found["closed"] = error_of(lambda: world.gather(1, "a test"))[0]
    found["anew"] = join().gather(rank, "a test")
    distributed.barrier()
    found["default group"] = distributed.is_initialized()
    return found


def in_a_fork(call):
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writes, error_of(call)[0].encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        return pipe.read()


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
        assert found["each_s"] < 0.5
        assert "no longer talk to each other" in found["closed"]
        assert found["anew"] == [0, 1, 2]
        assert found["default group"]


def a_quiet_run():
    World.join("one", None, 20.0).gather("word", "a test")


@pytest.mark.parametrize("agent_store", [False, True])
def test_a_run_says_nothing_by_itself(agent_store):
    ended = run_ranks(a_quiet_run, 2, agent_store=agent_store)
    assert [(rank.status, rank.said) for rank in ended] == [(0, ""), (0, "")]


def stay_away(rank_that_stays, timeout_s):
    world = join(timeout_s)
    if world.rank == rank_that_stays:
        time.sleep(timeout_s + 2)
        return error_of(lambda: world.gather(1, "the shares"))
    late = error_of(lambda: world.gather(1, "the shares"))
    again = error_of(lambda: world.gather(1, "the end"))
    rejoined = error_of(lambda: join(timeout_s).gather(1, "the end"))
    return late, again, rejoined


@pytest.mark.parametrize("away", [0, 2])
def test_a_rank_that_does_not_come_is_named_in_time(away):
    ended = run_ranks(stay_away, 3, away, 1.5, hosts=["a", "a", "b"], init=True)
    name = ("a/0", "a/1", "b/0")[away]
    for rank in ended:
        if rank.rank == away:
            assert "closed its connection before the shares" in rank.result[0]
            assert rank.result[1] < 1.0
            continue
        (late, took_s), (again, again_s), (rejoined, rejoined_s) = rank.result
        assert late.startswith(f"{name} did not come to the shares within 1.5 s"), told(ended)
        assert took_s < 1.5 + IN_TIME_S
        for said, seconds in ((again, again_s), (rejoined, rejoined_s)):
            assert "no longer talk to each other, because of an earlier failure: the shares: rank" in said
            assert seconds < 1.0


def die_or_wait(who):
    world = join(30.0)
    world.gather(1, "a test")
    if world.rank == who:
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(lambda: world.gather(1, "the shares"))


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_dies_is_named_at_once(who):
    ended = run_ranks(die_or_wait, 3, who, hosts=["a", "b", "c"])
    assert ended[who].status == -signal.SIGKILL
    name = "abc"[who] + "/0"
    said = [rank.result[0] for rank in ended if rank.rank != who]
    assert all("closed its connection before the shares" in text for text in said), told(ended)
    assert any(text.startswith(name) for text in said)
    assert all(rank.result[1] < IN_TIME_S for rank in ended if rank.rank != who)


def several_refusals():
    rank = distributed.get_rank()
    found = [error_of(lambda: World.join("same", 0, 20.0))[0]]
    world = World.join(f"host{rank}", None, 20.0)
    calls = [lambda: world.gather(1, "a save"), lambda: world.gather_floats([1.0], "the shares")]
    found.append(error_of(calls[rank])[0])
    found.append(error_of(lambda: world.gather({}, ["building the loader", "at attach()"][rank]))[0])
    found.append(str(world.gather(rank, "what comes after")))
    world.close()
    if rank == 1:
        time.sleep(3.0)
        return found
    found.append(error_of(lambda: World.join("host", None, 1.0))[0])
    return found


def test_ranks_at_different_places_or_with_one_name_are_refused():
    first, second = run_ranks(several_refusals, 2)
    for rank in (first, second):
        same, places, words, after, *_ = rank.result
        assert "different places" in words
        assert words.endswith("host0/0: building the loader; host1/0: at attach()")
        assert same.startswith("rank 0, 1 all say that they are same/0"), told([first, second])
        assert places.endswith("host0/0: a save; host1/0: the shares")
        assert after == "[0, 1]"
    assert first.result[4].startswith(
        "rank 1 of a world of 2 did not come to the first meeting of the ranks within 1 s"
    )
    assert "hosts host0, host1 are one machine" in first.said
    assert "one machine" not in second.said


def test_torch_distributed_must_be_initialised():
    with pytest.raises(ClusterError, match=r"call torch\.distributed\.init_process_group\(\)"):
        World.join("a", 0, 1.0)


def test_ranks_without_a_number_are_counted_on_their_host():
    assert _members([("a", None), ("b", None), ("a", None), ("c", 5)]) == [("a", 0), ("b", 0), ("a", 1), ("c", 5)]
