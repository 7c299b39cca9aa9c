"""Devices without streams, as MPS is: the loop uploads by itself, and delivers the same."""

import types

import pytest
import torch

from flodl_pipe.devices.mps import MpsDevice
from flodl_pipe.loader.loader import Loader
from tests.loader.device_cases import Fields, Sentences, on_cpu, require_same, run, small_device
from tests.loader.sources import Numbers
from tests.loader.streams import Lanes


def one_queue(memory_bytes, **_):
    """Return a device that behaves like MPS, over host memory."""
    module = types.SimpleNamespace(
        recommended_max_memory=lambda: memory_bytes, current_allocated_memory=lambda: 0, empty_cache=lambda: None
    )
    return MpsDevice(torch.device("cpu"), module)


# Each two of them together.
@pytest.mark.parametrize(
    ("memory_bytes", "readers", "mode"),
    [
        (64 << 20, 0, "auto"),
        pytest.param(64 << 20, 2, "streaming", marks=pytest.mark.full),
        pytest.param(3 << 19, 0, "streaming", marks=pytest.mark.full),
        (3 << 19, 2, "auto"),
    ],
)
@pytest.mark.parametrize(
    ("make", "more"),
    [
        (Fields, {"drop_last": "pad"}),
        (lambda: Numbers(300, 40), {"augment": 2}),
        (Sentences, {"collate": "pad"}),
        (lambda: Lanes(40, 75, 31), {"drop_last": False}),
        (lambda: Fields(bad={7, 30}), {"on_error": "skip"}),
    ],
)
def test_it_delivers_what_the_cpu_does(memory_bytes, readers, mode, make, more):
    settings = {"batch_size": 16, "seed": 3, "keep_digest": True, **more}
    with on_cpu(make(), **settings) as loader:
        wanted, digest = run(loader, 3), loader.statistics().digest
    with (
        small_device(memory_bytes, make=one_queue) as (options, get),
        Loader(make(), mode=mode, readers=readers, **settings, **options) as loader,
    ):
        require_same(run(loader, 3), wanted)
        assert loader.statistics().digest == digest
        assert not get().has_streams
        assert not loader.pin_memory
