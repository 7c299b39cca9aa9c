"""Tests on a real accelerator: the one of this machine, or the one that FLODL_TEST_DEVICE names. Without one they skip.

Under torch's CUDA sanitizer (see README.md) every thread's work is looked at, not only the main thread's.
"""

from pathlib import Path

import pytest

from tests.gpu.found import find
from tests.gpu.sanitized import look_at_every_thread

HERE = Path(__file__).parent


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: runs on a real accelerator, and is skipped without one")
    look_at_every_thread()


def pytest_collection_modifyitems(items):
    ours = [item for item in items if HERE in item.path.parents]
    if not ours:
        return
    device, why = find()
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if device is None:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def found_device():
    return find()[0]


@pytest.fixture
def device(found_device):
    """The accelerator, with nothing of an earlier test in its allocator."""
    found_device.empty_cache()
    return found_device


@pytest.fixture
def streaming_device(device):
    if not device.has_streams:
        pytest.skip(f"{device.name} has no streams: work of others does not overlap with the loop's there")
    return device
