"""Figures of the accelerator at hand: copies and work side by side, copies alone, gathers, and whole loaders.

    python tests/gpu/overlap.py [--device cuda:0] [--no-loader]

Without an accelerator it says so and ends with status 0. Nothing is asserted: the tests beside it do that.
"""

import argparse
import contextlib
import platform
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # it runs from a checkout as well

from flodl_pipe.devices.choose import KINDS, find_device
from flodl_pipe.units import format_bytes, format_duration

MIB = 1 << 20


def timed(device, stream, enqueue, repeats=5):
    """Return the median of the seconds from enqueueing to the end of what was enqueued, after one untimed time."""
    found = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        enqueue()
        device.synchronize(device.record(stream))
        if not device.has_streams:
            torch.get_device_module(device.torch_device).synchronize()
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


def bandwidth(device, num_bytes=256 * MIB):
    """Return bytes a second from page-locked and from ordinary host memory, and back to page-locked memory."""
    stream = device.stream("transfer")
    slab, ordinary = device.host_slab(num_bytes), np.ones(num_bytes, np.uint8)
    slab[:] = 1
    rows = device.allocate(num_bytes, stream)
    return (
        num_bytes / timed(device, stream, lambda: device.copy_in(stream, slab, rows)),
        num_bytes / timed(device, stream, lambda: device.copy_in(stream, ordinary, rows)),
        num_bytes / timed(device, stream, lambda: device.copy_out(stream, rows, slab)),
    )


def overlap(device, num_bytes=64 * MIB, num_copies=16, size=4096, dtype=torch.float16):
    """Return the seconds of copies alone, of steps alone, and of both, each on a stream of its own.

    A step is as many products of two matrices as take about as long as a copy.
    """
    transfer, consumer = device.stream("transfer"), device.consumer()
    slab = device.host_slab(num_bytes)
    slab[:] = 1
    rows = device.allocate(num_bytes, transfer)
    a = torch.full((size, size), 1 / size, dtype=dtype, device=device.torch_device)
    copy_s = timed(device, transfer, lambda: device.copy_in(transfer, slab, rows))
    product_s = timed(device, consumer, lambda: device.compute(consumer, lambda: [a @ a for _ in range(8)], reads=[a]))
    num_products = max(1, round(8 * copy_s / product_s))

    def step():
        return [a @ a for _ in range(num_products)]

    def copies():
        for _ in range(num_copies):
            device.copy_in(transfer, slab, rows)

    def steps():
        for _ in range(num_copies):
            device.compute(consumer, step, reads=[a])

    def both():
        for _ in range(num_copies):
            device.copy_in(transfer, slab, rows)
            device.compute(consumer, step, reads=[a])
        device.synchronize(device.record(transfer))

    return timed(device, transfer, copies), timed(device, consumer, steps), timed(device, consumer, both)


def gather_rate(device, row_bytes, num_rows=1 << 18, batch=1024):
    """Return rows a second of ``index_select`` from a pool on the device, indices there already."""
    consumer = device.consumer()
    num_rows = min(num_rows, device.memory().free_bytes // 4 // row_bytes)
    pool = device.allocate(num_rows * row_bytes, consumer).view(num_rows, row_bytes)
    pool.fill_(1)
    indices = torch.randint(num_rows, (32, batch), device=device.torch_device)

    def gathers():
        for row in range(32):
            device.compute(consumer, lambda row=row: pool.index_select(0, indices[row]), reads=[pool])

    return 32 * batch / timed(device, consumer, gathers)


def loader_figures(device, num_rows=40_000, epochs=3, **options):
    """Yield batches a second and bytes copied to the device, per epoch of CIFAR-like pictures in batches of 128."""
    from flodl_pipe import Loader

    copied = [0]
    kind = type(device)
    real = kind.copy_in

    def copy_in(self, stream, source, target):
        copied[0] += source.nbytes
        real(self, stream, source, target)

    rng = np.random.default_rng(0)
    pictures = torch.from_numpy(rng.integers(0, 256, (num_rows, 3, 32, 32), dtype=np.uint8))
    data = torch.utils.data.TensorDataset(pictures, torch.from_numpy(rng.integers(0, 10, num_rows)))
    kind.copy_in = copy_in
    try:
        with contextlib.closing(Loader(data, batch_size=128, device=device.name, **options)) as loader:
            for epoch in range(epochs):
                before, began, count = copied[0], time.perf_counter(), 0
                for _ in loader.epoch(epoch):
                    count += 1
                torch.get_device_module(device.torch_device).synchronize()
                yield count / (time.perf_counter() - began), copied[0] - before
    finally:
        kind.copy_in = real


def report(device, with_loader):
    """Print everything."""
    memory = device.memory()
    name = getattr(torch.get_device_module(device.torch_device), "get_device_name", platform.processor)()
    print(
        f"{name}, {platform.system()} {platform.release()}, torch {torch.__version__}, {datetime.now(tz=UTC):%Y-%m-%d}"
    )
    shared = ", shared with the host" if memory.is_shared else ""
    print(f"{device.name}: {format_bytes(memory.free_bytes)} of {format_bytes(memory.total_bytes)} free{shared}")
    to_pinned, to_ordinary, back = bandwidth(device)
    print(f"to the device: {to_pinned / 1e9:.1f} GB/s page-locked, {to_ordinary / 1e9:.1f} GB/s ordinary memory")
    print(f"from the device: {back / 1e9:.1f} GB/s page-locked")
    copies_s, steps_s, both_s = overlap(device)
    saved = (copies_s + steps_s - both_s) / min(copies_s, steps_s)
    print(
        f"overlap: copies {format_duration(copies_s)}, steps {format_duration(steps_s)}, both "
        f"{format_duration(both_s)}: {100 * saved:.0f} % of the shorter one is hidden"
    )
    for name, row_bytes in (("CIFAR pictures", 3072), ("windows of 1024 tokens", 2050)):
        rate = gather_rate(device, row_bytes)
        print(f"gather of {name}: {rate:,.0f} rows/s, {rate * row_bytes / 1e9:.0f} GB/s")
    if not with_loader:
        return
    for options in (
        {"mode": "resident"},
        {"mode": "streaming"},
        {"mode": "streaming", "vram_pool": False},
        {"mode": "streaming", "vram_pool": False, "sample_cache": False},
    ):
        for epoch, (rate, copied) in enumerate(loader_figures(device, **options)):
            print(f"loader {options}, epoch {epoch}: {rate:,.0f} batches/s, {format_bytes(copied)} to the device")


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--device", default="auto")
    arguments.add_argument("--no-loader", action="store_true", help="the device alone")
    options = arguments.parse_args()
    device = find_device(options.device, simulated=lambda: None)
    if device is None:
        print("no accelerator here, nothing measured: " + "; ".join(kind.why_none() for kind in KINDS))
        return
    report(device, not options.no_loader)
    device.close()


if __name__ == "__main__":
    main()
