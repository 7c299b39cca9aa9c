"""What a loop that waits for a dataset is told: once, when it matters, and what would help."""

import logging
import time

import pytest

from flodl_pipe.loader.advice import Advice
from tests.loader.waiting import HANG_S


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (
            0.95,
            "Reading lets go of the interpreter, so that 4 threads could do up to 4 times as much: if it may be read",
        ),
        (0.95, "the loop waits 50% of its time for My, 2.0 ms a sample"),
        (0.95, "say thread_safe=True, readers=4"),
        (0.5, "Reading keeps the interpreter, so that threads would gain nothing; processes could do up to 4 times"),
        (0.5, "reader_kind='process', readers=4"),
    ],
)
def test_it_is_told_once_with_the_remedy(caplog, share, words):
    advice = Advice("My", num_cpus=4)
    advice.measured(2e-3, share)
    advice.tell(10, 20)
    advice.tell(20, 40)
    (record,) = caplog.records
    assert words in record.getMessage()
    assert record.levelno == logging.WARNING


@pytest.mark.parametrize(("wait_s", "run_s"), [(1, 1), (10, 100)])
def test_a_loop_that_waits_little_is_left_alone(caplog, wait_s, run_s):
    advice = Advice("My", num_cpus=2)
    advice.measured(2e-3, 0.9)
    advice.tell(wait_s, run_s)
    assert not caplog.records


def test_nothing_is_told_of_what_was_not_watched(caplog):
    advice = Advice("My", num_cpus=2)
    with advice.watching(8, sample_s=1e-6):
        pass
    advice.tell(10, 10)
    assert advice.sample_s is None
    assert not caplog.records


def test_reading_that_waits_lets_go_of_the_interpreter():
    advice = Advice("My", num_cpus=2)
    with advice.watching(2, sample_s=1.0):
        time.sleep(0.02)
    assert 0.01 <= advice.sample_s < HANG_S
