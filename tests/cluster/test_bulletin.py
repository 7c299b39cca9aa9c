"""The bulletin on real ranks: what one posts is found by all, without meeting, and nothing hangs when it ends.

Ranks wait for each other here with barriers of the default group, which the bulletin itself never does.
"""

import logging
import os
import threading
import time
from types import SimpleNamespace

import pytest
from torch import distributed

from flodl_pipe.cluster import bulletin as bulletins
from flodl_pipe.cluster.bulletin import Bulletin
from flodl_pipe.cluster.world import World
from tests.cluster.ranks import PATIENT_S, in_a_fork, results, run_ranks, told


def join():
    return World.join("one", distributed.get_rank(), PATIENT_S)


class Told(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("flodl_pipe").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


def posted_and_read():
    world = join()
    first, second = world.bulletin("words"), world.bulletin("other words")
    rank = world.rank
    found = {"empty": first.read(), "open": first.is_open}
    distributed.barrier()
    if rank == 1:
        first.post("one of rank 1, ü")
        second.post("on the second")
    distributed.barrier()
    found["one"] = first.read()
    found["again"] = first.read(1)
    distributed.barrier()
    first.post(f"of rank {rank}")
    distributed.barrier()
    found["after one"] = first.read(1)
    found["second"] = second.read()
    found["forked"] = in_a_fork(lambda: repr((first.is_open, first.post("of a child"), first.read())))
    distributed.barrier()
    found["after the fork"] = first.read()
    return found


@pytest.mark.parametrize("agent_store", [False, pytest.param(True, marks=pytest.mark.full)])
def test_all_ranks_find_what_one_has_posted(agent_store):
    all_found = results(posted_and_read, 3, agent_store=agent_store)
    for found in all_found:
        assert found["empty"] == []
        assert found["open"]
        assert found["one"] == ["one of rank 1, ü"]
        assert found["again"] == []
        assert sorted(found["after one"]) == ["of rank 0", "of rank 1", "of rank 2"]
        assert found["after one"] == all_found[0]["after one"]
        assert found["second"] == ["on the second"]
        assert found["forked"] == repr((False, None, ["one of rank 1, ü", *found["after one"]]))
        assert len(found["after the fork"]) == 4


def post_in_threads(num_threads, each):
    bulletin = join().bulletin("numbers")
    rank = distributed.get_rank()
    met = []

    def work(thread):
        for number in range(each):
            text = f"{rank} {thread} {number}"
            bulletin.post(text)
            met.append(text in bulletin.read())

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(num_threads)]
    for thread in threads:
        thread.start()
    # The connection of the group is in use at the same time, as by a training loop.
    for _ in range(20):
        distributed.barrier()
    for thread in threads:
        thread.join()
    distributed.barrier()
    return all(met), bulletin.read()


@pytest.mark.full
def test_threads_of_several_ranks_lose_nothing():
    found = results(post_in_threads, 2, 3, 20)
    wanted = sorted(f"{rank} {thread} {number}" for rank in range(2) for thread in range(3) for number in range(20))
    for own_were_read, texts in found:
        assert own_were_read
        assert sorted(texts) == wanted


def join_again():
    one = join()
    bulletin = one.bulletin("words")
    bulletin.post("of the first world")
    distributed.barrier()
    one.close()
    other = join().bulletin("words")
    distributed.barrier()
    return len(bulletin.read()), other.read()


def test_ranks_that_join_anew_begin_with_nothing():
    assert results(join_again, 2, agent_store=True) == [(2, [])] * 2


class Stored:
    """A store of this process, of which an entry can be missing."""

    def __init__(self):
        self.values = {}
        self.count = 0

    def add(self, _, number):
        self.count += number
        return self.count

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)


def test_an_entry_that_comes_late_holds_up_no_other(monkeypatch):
    monkeypatch.setattr(Bulletin, "is_open", True)
    store = Stored()
    bulletin = Bulletin(store, "words")
    assert store.add("taken", 1) == 1  # and its rank is slow
    bulletin.post("second")
    assert bulletin.read() == ["second"]
    store.set("1", "first")
    assert bulletin.read(1) == ["first"]
    assert bulletin.read() == ["second", "first"]


def go_on_after_rank_0():
    bulletin, said = join().bulletin("skipped samples"), Told()
    bulletin.post(f"of {distributed.get_rank()}")
    distributed.barrier()
    bulletin.read()
    distributed.barrier()
    if distributed.get_rank() == 0:
        os._exit(0)  # and with it the store
    deadline = time.monotonic() + 60
    while bulletin.is_open and time.monotonic() < deadline:
        time.sleep(0.02)
        bulletin.read()
    bulletin.post("nobody hears this")
    return bulletin.is_open, sorted(bulletin.read()), said.lines


def test_without_a_store_a_rank_goes_on_alone_and_says_so_once():
    ended = run_ranks(go_on_after_rank_0, 2, finalize=False)
    assert ended[1].result is not None, told(ended)
    is_open, texts, said = ended[1].result
    assert not is_open
    assert texts == ["of 0", "of 1"]
    assert len(said) == 1
    assert said[0].startswith("skipped samples are no longer shared with the other ranks, each goes on alone: ")


class Gone(Stored):
    """A store that is no longer there, once it is gone."""

    is_gone, num_asked = False, 0

    def add(self, key, number):
        self.num_asked += 1
        if self.is_gone:
            raise RuntimeError("nobody answers")
        return super().add(key, number)


@pytest.mark.parametrize("does", ["read", "post"])
def test_a_store_that_is_gone_is_asked_once(monkeypatch, caplog, does):
    """So a rank that goes on alone does not wait for it at each step."""
    monkeypatch.setattr(bulletins, "distributed", SimpleNamespace(group=SimpleNamespace(WORLD=Group())))
    store = Gone()
    bulletin = Bulletin(store, "words")
    bulletin.post("one")
    assert bulletin.read() == ["one"]
    store.is_gone, before = True, store.num_asked
    bulletin.read() if does == "read" else bulletin.post("two")
    assert not bulletin.is_open
    for _ in range(3):
        bulletin.post("nobody hears this")
        assert bulletin.read() == ["one"]
    assert store.num_asked == before + 1
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith("each goes on alone: nobody answers")


class Group:
    """A process group that can be referred to weakly."""


def end_the_group():
    world = join()
    bulletin, said = world.bulletin("skipped samples"), Told()
    bulletin.post("before")
    distributed.barrier()
    bulletin.read()
    distributed.destroy_process_group()
    found = [bulletin.is_open, len(bulletin.read()), len(said.lines)]
    bulletin.post("after")
    bulletin.post("after")
    late = world.bulletin("later ones")
    late.post("after")
    found += [bulletin.read(), late.read(), said.lines]
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)  # for the harness
    return found


def test_a_process_that_has_ended_its_group_is_told_when_it_posts():
    for is_open, num_read, num_said, texts, late, said in results(end_the_group, 2):
        assert (is_open, num_read, num_said) == (False, 2, 0)
        assert texts == ["before", "before"]
        assert late == []
        assert [line.partition(" are no longer")[0] for line in said] == ["skipped samples", "later ones"]
        assert said[0].endswith("the process group has ended")
