"""How loop and readers share processors and interpreter, from measured times per step."""

import time
from types import SimpleNamespace

import pytest

from flodl_pipe.loader.loader import Loader
from flodl_pipe.loader.pace import Pace
from tests.loader.sources import Numbers, ids


def measured(num_readers=1, *, loop_s, reader_s=30e-6):
    pace = Pace(num_readers)
    for _ in range(30):
        pace.reader_took(8 * reader_s, 8)
        pace.loop_took(8 * loop_s, 8)
    return pace


def test_before_anything_is_measured_readers_are_left_alone():
    pace = Pace(1)
    assert not pace.helps
    assert not pace.hands_over


def test_a_loop_faster_than_its_readers_helps():
    pace = measured(loop_s=8e-6)
    assert pace.helps
    assert not pace.hands_over


def test_more_readers_need_a_faster_loop_before_it_helps():
    assert not measured(4, loop_s=10e-6).helps


def test_a_slow_loop_hands_over():
    pace = measured(loop_s=1e-3)
    assert pace.hands_over
    assert not pace.helps


def test_a_loop_that_waits_does_not_hand_over():
    pace = Pace(1)
    for _ in range(30):
        pace.reader_took(8 * 30e-6, 8)
        pace.loop_computed(8 * 5e-6, 8)
        pace.loop_took(8e-3, 8)
    assert (pace.helps, pace.hands_over) == (False, False)


def test_a_loop_that_changes_is_followed():
    pace = measured(loop_s=8e-6)
    for _ in range(30):
        pace.loop_took(8e-3, 8)
    assert (pace.helps, pace.hands_over) == (False, True)


def test_without_readers_the_loop_always_reads():
    assert Pace(0).helps
    assert measured(0, loop_s=1.0).helps


@pytest.mark.parametrize(
    ("decided", "behind", "handed_over"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_the_interpreter_is_handed_over_while_readers_are_behind(monkeypatch, decided, behind, handed_over):
    slept = []
    clock = SimpleNamespace(perf_counter=time.perf_counter, thread_time=time.thread_time, sleep=slept.append)
    monkeypatch.setattr("flodl_pipe.loader.reading.time", clock)
    monkeypatch.setattr("flodl_pipe.loader.pace.Pace.loop_took", lambda pace, *_: setattr(pace, "hands_over", decided))
    monkeypatch.setattr("flodl_pipe.loader.groups.SequenceTable.runs_low", property(lambda _: behind))
    with Loader(Numbers(400), batch_size=4, readers=1, prefetch=8, mode="streaming") as loader:
        assert len(ids(loader)) == 100
    assert (slept != []) == handed_over
    assert set(slept) <= {0}


def test_how_many_steps_fit_into_a_time_is_seen_from_the_quick_ones():
    pace = Pace(1)
    assert pace.steps_within(10.0) == 1  # nothing is known yet
    pace.reader_took(1e-6, 4, wall_s=0.04)
    assert pace.steps_within(0.02) == 2
    pace.reader_took(1e-6, 1, wall_s=0.001)  # what was in the way has gone
    assert pace.steps_within(0.02) == 20
    pace.reader_took(1e-6, 1, wall_s=0.1)  # somebody else had the processor, for once
    assert pace.steps_within(0.02) < 20
    assert pace.steps_within(1e-9) == 1
