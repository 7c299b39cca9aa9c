"""Who reads, from measured times: readers ahead, the loop beside them, or the loop alone."""

import pytest

from flodl_pipe.loader.pace import _ALONE_GROUPS, _CHANCE_GROUPS, Pace

STEP_S, READ_S = 1e-3, 30e-6


def groups(pace, count, *, loop_s=STEP_S, wait_s=0.0, read_s=READ_S, alone_s=None):
    """Hand out groups of 8 steps to a loop; return whether each was read alone."""
    was_alone = []
    for _ in range(count):
        pace.loop_took(8 * loop_s, 8)
        pace.reader_took(8 * read_s, 8)
        was_alone.append(pace.alone)
        pace.loop_waited(8 * ((read_s if alone_s is None else alone_s) if pace.alone else wait_s), 8)
    return was_alone


@pytest.fixture
def pace():
    return Pace(1)


def test_readers_that_keep_ahead_are_left_to_it(pace):
    assert not any(groups(pace, 1000, wait_s=5e-6))


def test_a_loop_that_waits_longer_than_a_read_takes_goes_on_alone(pace):
    assert groups(pace, _CHANCE_GROUPS + 1, wait_s=300e-6) == [False] * _CHANCE_GROUPS + [True]


def test_the_readers_get_another_chance_and_may_keep_it(pace):
    groups(pace, _CHANCE_GROUPS, wait_s=300e-6)
    assert all(groups(pace, _ALONE_GROUPS))
    assert not any(groups(pace, 1000, wait_s=5e-6))


def test_a_chance_that_was_missed_is_short(pace):
    was_alone = groups(pace, 2000, wait_s=300e-6)
    assert sum(was_alone) / len(was_alone) > 0.98


def test_reading_alone_is_given_up_where_reads_wait_for_a_disk(pace):
    was_alone = groups(pace, 1000, wait_s=300e-6, alone_s=5e-3)
    assert sum(was_alone) <= 2


def test_a_loop_faster_than_its_readers_helps(pace):
    groups(pace, 50, loop_s=8e-6, wait_s=20e-6)
    assert pace.helps
    assert not pace.alone
    groups(pace, 50)
    assert not pace.helps


def test_more_readers_need_a_faster_loop_before_it_helps():
    pace = Pace(4)
    groups(pace, 50, loop_s=10e-6, wait_s=20e-6)
    assert not pace.helps


def test_without_readers_the_loop_is_always_alone():
    pace = Pace(0)
    assert all(groups(pace, 600, wait_s=1.0))
