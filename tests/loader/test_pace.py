"""How loop and readers share processors and interpreter, from measured times per step."""

import time

from flodl_pipe.loader.loader import Loader
from flodl_pipe.loader.pace import Pace
from tests.loader.sources import Numbers


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


def test_a_loop_that_changes_is_followed():
    pace = measured(loop_s=8e-6)
    for _ in range(30):
        pace.loop_took(8e-3, 8)
    assert (pace.helps, pace.hands_over) == (False, True)


def test_without_readers_the_loop_always_reads():
    assert Pace(0).helps
    assert measured(0, loop_s=1.0).helps


def test_a_reader_keeps_up_beside_a_loop_that_keeps_the_interpreter():
    """Without the hand-over a reader may wait for the interpreter for seconds."""
    with Loader(Numbers(20_000, width=64), batch_size=4, readers=1, mode="streaming") as loader:
        iterator, waited_s, began = iter(loader), 0.0, time.perf_counter()
        for _ in range(600):
            asked = time.perf_counter()
            next(iterator)
            waited_s += time.perf_counter() - asked
            end = time.perf_counter() + 0.5e-3
            while time.perf_counter() < end:
                pass
        assert waited_s < 0.5 * (time.perf_counter() - began)
