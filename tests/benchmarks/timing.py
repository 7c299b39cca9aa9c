"""Shared by the benchmarks: what machine this is, how fast something iterates, and how a table is printed."""

import itertools
import os
import platform
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import torch


def machine():
    """Return one line that says where and when a figure was measured."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} x {model}, Linux {platform.release()}, Python {platform.python_version()}, "
        f"{datetime.now(tz=UTC):%Y-%m-%d}, load {load:.1f} at start"
    )


def rate(batches, seconds, skip=200):
    """Return batches per second, after ``skip`` untimed ones, over at most ``seconds``."""
    iterator = iter(batches)
    for _ in range(skip):
        next(iterator)
    count, began = 0, time.perf_counter()
    for _ in iterator:
        count += 1
        if not count % 64 and time.perf_counter() - began > seconds:
            break
    return count / (time.perf_counter() - began)


def best_rate(batches, seconds):
    """Return the better rate of torch's own number of threads and of one, over as many passes as it takes."""
    found, threads = [], torch.get_num_threads()
    for count in (threads, 1):
        torch.set_num_threads(count)
        found.append(rate(itertools.chain.from_iterable(itertools.repeat(batches)), seconds))
    torch.set_num_threads(threads)
    return max(found)


def busy(seconds):
    """Do nothing useful in pure Python, holding the interpreter."""
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        count += 1


def mean_wait_us(batches, steps, step_s=1e-3, skip=100):
    """Return the mean time ``next()`` takes beside a loop that computes ``step_s`` a step in pure Python."""
    iterator, waited = iter(batches), 0.0
    for step in range(skip + steps):
        began = time.perf_counter()
        next(iterator)
        if step >= skip:
            waited += time.perf_counter() - began
        busy(step_s)
    return waited / steps * 1e6


def median(values):
    """Return the median and the range of some figures."""
    values = list(values)
    return statistics.median(values), min(values), max(values)


def check(name, value, target, *, at_least=True):
    """Print a figure beside its target and return whether it is met."""
    met = value >= target if at_least else value <= target
    word = "at least" if at_least else "at most"
    print(f"  {'ok  ' if met else 'MISS'} {name}: {value:.2f} ({word} {target:g})")
    return met
