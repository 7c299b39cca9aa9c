"""Batches of a loader that delivers to the accelerator, beside those of one that delivers to the CPU."""

import contextlib

import numpy as np
import pytest
import torch

from flodl_pipe import Loader
from flodl_pipe.devices.accelerator import AcceleratorDevice

ROWS, BATCH = 3000, 128


def data():
    rng = np.random.default_rng(0)
    return torch.utils.data.TensorDataset(
        torch.from_numpy(rng.integers(0, 256, (ROWS, 3, 32, 32), dtype=np.uint8)),
        torch.from_numpy(rng.integers(0, 10, ROWS)),
    )


def batches(device, epochs=3, **options):
    loader = Loader(data(), batch_size=BATCH, seed=7, device=device, **options)
    with contextlib.closing(loader):
        return [[field.cpu() for field in batch] for epoch in range(epochs) for batch in loader.epoch(epoch)]


@pytest.fixture(scope="module")
def expected():
    return batches("cpu")


@pytest.fixture
def copied(monkeypatch):
    """Count bytes copied to the device."""
    counts = [0]
    real = AcceleratorDevice.copy_in

    def copy_in(self, stream, source, target):
        counts[0] += source.nbytes
        real(self, stream, source, target)

    monkeypatch.setattr(AcceleratorDevice, "copy_in", copy_in)
    return counts


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "resident"},
        {"mode": "streaming"},
        {"mode": "streaming", "vram_pool": False},
        {"mode": "streaming", "vram_pool": False, "sample_cache": False},
        {"mode": "streaming", "readers": 0},
        {"mode": "streaming", "prefetch": 1},
        {"mode": "auto"},
    ],
    ids=str,
)
def test_delivers_the_same_bytes_as_on_the_cpu(device, expected, options):
    found = batches(device.name, **options)
    assert len(found) == len(expected)
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other), f"step {step}"


def test_batches_lie_on_the_device_and_are_owned(device):
    with contextlib.closing(Loader(data(), batch_size=BATCH, device=device.name, mode="streaming")) as loader:
        kept = []
        for batch in loader.epoch(0):
            x, _ = batch
            assert x.device == device.torch_device
            kept.append((x, x.to(torch.int64).sum()))
            torch.mm(torch.rand(512, 512, device=x.device), torch.rand(512, 512, device=x.device))
        pointers = {x.data_ptr() for x, _ in kept}
        assert len(pointers) == len(kept)
        assert all(x.to(torch.int64).sum().item() == total.item() for x, total in kept)


def test_resident_batches_cost_no_copies(streaming_device, copied):
    with contextlib.closing(Loader(data(), batch_size=BATCH, device=streaming_device.name, mode="resident")) as loader:
        list(loader.epoch(0))
        loaded, copied[0] = copied[0], 0
        for epoch in (1, 2):
            list(loader.epoch(epoch))
    row_bytes = 3 * 32 * 32 + 8
    assert loaded >= ROWS * row_bytes
    assert copied[0] <= 0.02 * loaded  # the order of an epoch, 8 bytes a row at most


def test_closing_gives_the_devices_memory_back(device):
    list(zip(range(3), iter(Loader(data(), batch_size=BATCH, device=device.name)), strict=False))
    before = device.memory().free_bytes
    loader = Loader(data(), batch_size=BATCH, device=device.name, mode="resident")
    list(loader.epoch(0))
    loader.close()
    del loader
    assert device.memory().free_bytes >= before - (8 << 20)
