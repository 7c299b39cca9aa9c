"""What tests/gpu needs and no accelerator does: its script, its sums and its look at every thread."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flodl_pipe.devices.accelerator import AcceleratorDevice
from tests.devices.fake_torch import FakeTorch
from tests.gpu import overlap
from tests.gpu.sanitized import run_under
from tests.support import programs

ROOT = Path(__file__).parents[2]
no_accelerator = pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")


@no_accelerator
def test_without_an_accelerator_the_script_says_so():
    done = programs.run(["tests/gpu/overlap.py"], cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no accelerator here, nothing measured: ")


@no_accelerator
@pytest.mark.full
def test_without_an_accelerator_the_suite_skips_and_says_why():
    # A Python of its own, for pytest rewrites what is imported after it.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=programs.environment(),
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert "no accelerator: " in done.stdout
    assert "passed" not in done.stdout


def test_the_scripts_measurements_run():
    device = AcceleratorDevice(
        torch.device("cpu"),
        FakeTorch(total=1 << 30),
        empty_pinned=lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8),
    )
    assert all(rate > 0 for rate in overlap.bandwidth(device, 1 << 16))
    assert all(found > 0 for found in overlap.overlap(device, 1 << 16, 2, 16, torch.float32))
    assert overlap.gather_rate(device, 64, 128, 16) > 0


def test_the_sanitizer_is_shown_the_work_of_threads():
    seen = []

    class Sanitizer(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((threading.current_thread().name, str(func)))
            return func(*args, **(kwargs or {}))

    class Thread(threading.Thread):
        run = run_under(Sanitizer(), threading.Thread.run)

    found = []
    thread = Thread(target=lambda: found.append(torch.zeros(3).add_(2).tolist()), name="transfer")
    thread.start()
    thread.join()
    assert found == [[2.0] * 3]
    assert ("transfer", "aten.add_.Tensor") in seen
