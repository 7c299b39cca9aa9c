"""What a rank takes by itself: data and compute count, other ranks and validation do not.

White box: a device is kept busy in the way that torch's own tests do it.
"""

import time

import pytest
import torch

from flodl_pipe.cluster.clock import StepClock, Window, clock_for


class Time:
    """Time that stands still unless told."""

    def __init__(self):
        self.now = 0.0
        self.lag = 0.0

    def mark(self):
        return Mark(self, self.now)

    def clock(self):
        clock = StepClock(self.mark)
        for _ in range(2):  # steps that compile and tune
            self.step(clock, 1.0, 100.0)
        return clock

    def step(self, clock, wait, compute, num_rows=4):
        clock.asked()
        self.now += wait
        clock.given(num_rows)
        self.now += compute
        clock.computed()


class Mark:
    def __init__(self, time, at):
        self.time, self.at = time, at

    def has_passed(self):
        return self.time.now >= self.at + self.time.lag

    def seconds_since(self, earlier):
        return self.at - earlier.at


def test_waiting_for_data_and_computing_count_and_the_rest_does_not():
    time = Time()
    clock = time.clock()
    for _ in range(3):
        time.step(clock, 2.0, 5.0)
        time.now += 50.0  # all-reduce, optimizer
    assert clock.window() == Window(21.0, 12)
    assert clock.window() == Window(0.0, 0)


def test_batches_that_are_accumulated_are_one_step():
    time = Time()
    clock = time.clock()
    for _ in range(3):
        clock.asked()
        time.now += 1.0
        clock.given(2)
        time.now += 1.0
    clock.computed()
    assert clock.window() == Window(6.0, 6)


def test_what_a_loop_does_after_a_pass_is_no_step():
    time = Time()
    clock = time.clock()
    clock.asked()
    clock.break_off()
    time.now += 1000.0
    time.step(clock, 1.0, 2.0)
    assert clock.window() == Window(3.0, 4)


def test_a_second_model_does_not_count_again():
    time = Time()
    clock = time.clock()
    time.step(clock, 1.0, 1.0)
    time.now += 10.0
    clock.computed()
    assert clock.window() == Window(2.0, 4)


def test_steps_that_a_device_has_not_done_yet_come_in_the_next_window():
    time = Time()
    clock = time.clock()
    time.lag = 5.0
    time.step(clock, 1.0, 1.0)
    assert clock.window() == Window(0.0, 0)
    time.now += 5.0
    assert clock.window() == Window(2.0, 4)


def test_the_host_clock_runs():
    clock = clock_for(torch.device("cpu"))
    began_s = time.perf_counter()
    for _ in range(3):
        clock.asked()
        clock.given(1)
        at_s = time.perf_counter()
        while time.perf_counter() == at_s:  # it ticks
            pass
        clock.computed()
    seconds, num_rows = clock.window()
    assert num_rows == 1
    assert 0.0 < seconds < time.perf_counter() - began_s


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_clock_of_a_device_counts_what_runs_there():
    device = torch.device("cuda")
    clock = clock_for(device)
    for _ in range(4):
        clock.asked()
        clock.given(1)
        torch.cuda._sleep(20_000_000)
        clock.computed()
    torch.cuda.synchronize()
    seconds, num_rows = clock.window()
    assert num_rows == 2
    assert seconds > 0.005
