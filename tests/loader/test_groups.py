"""The sequence table: groups in order, parts shared, credits bounding what is in flight."""

import threading

import pytest

from flodl_pipe.loader.groups import Group, SequenceTable
from tests.loader.waiting import HANG_S, joined, until


def new_group(first, count, parts):
    return Group(first, count, parts, [])


def table(
    num_steps=10, *, group_steps=4, max_steps=8, last_is_short=False, chunk_steps=1000, step_parts=1, make=new_group
):
    return SequenceTable(
        num_steps,
        last_is_short=last_is_short,
        chunk_steps=chunk_steps,
        step_parts=step_parts,
        group_steps=group_steps,
        max_steps=max_steps,
        new_group=make,
    )


def sizes(found):
    """Claim everything, giving credit at once, and return (first step, number of steps) of each group."""
    result = []
    while (part := found.claim(wait=False)) is not None:
        group, _ = part
        found.finish(group)
        assert found.take() is group
        found.give_credit(group.num_steps)
        result.append((group.first_step, group.num_steps))
    return result


def test_groups_cover_the_steps_in_order():
    assert sizes(table()) == [(0, 4), (4, 4), (8, 2)]


def test_a_short_last_step_is_a_group_of_its_own():
    assert sizes(table(9, last_is_short=True)) == [(0, 4), (4, 4), (8, 1)]
    assert sizes(table(8, last_is_short=True)) == [(0, 4), (4, 3), (7, 1)]


def test_groups_end_at_chunks():
    assert sizes(table(chunk_steps=3)) == [(0, 3), (3, 3), (6, 3), (9, 1)]


def test_credits_bound_what_is_in_flight():
    found = table(100)
    first, _ = found.claim(wait=False)
    found.claim(wait=False)
    assert found.claim(wait=False) is None
    found.finish(first)
    assert found.take() is first
    assert found.claim(wait=False) is None, "a group that is being handed out still counts"
    found.give_credit(first.num_steps)
    assert found.claim(wait=False)[0].first_step == 8


def test_a_group_larger_than_the_credits_can_still_be_opened():
    assert sizes(table(6, max_steps=1)) == [(0, 4), (4, 2)]


def test_it_is_known_whether_readers_fall_behind():
    claimed, may_claim = [], threading.Event()

    def make(first, count, parts):
        if first == 8:
            may_claim.wait(HANG_S)
        return new_group(first, count, parts)

    found = table(100, make=make)

    def read():
        found.reader_starts()
        while (part := found.claim()) is not None:
            claimed.append(part)
        found.reader_ends()

    assert not found.runs_low, "nobody reads"
    thread = threading.Thread(target=read)
    thread.start()
    # It claims all there is credit for, then waits.
    until(lambda: len(claimed) == 2 and not found.runs_low, "a reader that waits")
    first, second = claimed[0][0], claimed[1][0]
    found.finish(first)
    found.take()
    found.give_credit(first.num_steps)
    assert found.runs_low, "a reader that was given credit has work from then on, not from when it runs"
    may_claim.set()
    until(lambda: len(claimed) == 3, "the next claim")
    found.finish(second)
    found.finish(claimed[2][0])
    found.give_credit(0)
    assert not found.runs_low, "half is ready"
    found.stop()
    joined(thread)


def test_groups_are_taken_in_order_whatever_finishes_first():
    found = table()
    first, second = found.claim(wait=False)[0], found.claim(wait=False)[0]
    found.finish(second)
    assert not found.is_ready()
    found.finish(first)
    assert found.is_ready()
    assert [found.take(), found.take()] == [first, second]


def test_a_group_is_ready_when_its_last_part_is():
    found = table(2, group_steps=1, max_steps=4, step_parts=3)
    parts = [found.claim(wait=False) for _ in range(3)]
    assert [part for _, part in parts] == [0, 1, 2]
    group = parts[0][0]
    for left in (2, 1, 0):
        found.finish(group)
        assert found.is_ready() == (left == 0)


@pytest.mark.parametrize("waiting", ["claim", "take"])
def test_stop_ends_every_wait(waiting):
    found = table(100)
    for _ in range(2):
        found.claim(wait=False)
    results = []
    thread = threading.Thread(target=lambda: results.append(getattr(found, waiting)()))
    thread.start()
    found.stop()  # it waits by then, or is about to
    joined(thread)
    assert results == [None]
    assert found.claim() is None
    assert len(found.drain()) == 2


def test_the_earliest_error_of_a_group_counts():
    group = Group(0, 8, 1, [])
    late, early = ValueError("late"), ValueError("early")
    group.fail(late, 5)
    group.fail(early, 2)
    group.fail(late, 7)
    assert (group.error, group.failed_step) == (early, 2)
