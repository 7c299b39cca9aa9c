"""What a run measures of itself."""

import pytest

from flodl_pipe.reports.metrics import MemoryPeak, Moment, Recent, peak_rss_bytes
from tests.support import programs


def at(at_s, num_steps, wait_s=0.0):
    return Moment(at_s, epoch=0, num_steps=num_steps, num_samples=num_steps * 4, wait_s=wait_s)


def test_rates_are_those_of_the_last_seconds():
    recent = Recent(at(0, 0))
    for second in range(1, 101):  # 10 steps a second, then 1
        recent.add(at(second, 10 * min(second, 50) + max(0, second - 50), wait_s=max(0, second - 50) / 2))
    assert recent.steps_per_s == pytest.approx(1.0)
    assert recent.samples_per_s == pytest.approx(4.0)
    assert recent.wait_s / recent.span_s == pytest.approx(0.5)


def test_one_slow_step_still_has_a_rate():
    recent = Recent(at(0, 0))
    recent.add(at(100, 1))
    recent.add(at(200, 2))
    assert recent.steps_per_s == pytest.approx(0.01)


def test_nothing_measured_is_no_rate():
    assert Recent(at(0, 7)).steps_per_s == 0.0


def test_the_peak_is_kept_after_memory_is_given_back():
    # In a process of its own: in this one, what other tests have left may be given back at the same moment.
    script = """
import numpy as np
from flodl_pipe.reports.metrics import MemoryPeak
peak = MemoryPeak()
block = np.ones(64 << 20, dtype=np.uint8)
peak.look()
del block
peak.look()
print(peak.most_bytes - peak.start_bytes)
"""
    found = programs.run(["-c", script], check=True)
    assert int(found.stdout) > 48 << 20


def test_the_kernels_peak_is_at_least_what_is_private_now():
    assert peak_rss_bytes() >= MemoryPeak().start_bytes > 1 << 20
