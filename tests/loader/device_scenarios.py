"""Small runs on a simulated device, between them every way in which batches get there.

Each compares what the loop gets with what a loader that delivers on the CPU gives it, byte by byte. Sets, slabs and
chunks are small, so that memory is used again and again; copies are slow, so that it is while they are under way.
"""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch

from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.tokens import TokenShards
from tests.loader import inside
from tests.loader.streams import Lanes
from tests.support.leftovers import forget_devices

ROWS, ROW_BYTES = 240, 513
# Less than the device's smallest size of 1 MiB, and too much of it to be kept whole while two steps are under way.
LARGE_ROW_BYTES = 4001
MEMORY = {"memory_bytes": 1 << 20, "copy_bytes_per_s": 10_000_000, "latency_s": 1e-3}


def small_pieces(patch):
    """Use memory in pieces that fit into so small a device."""
    inside.small_pieces(patch, slab_bytes=40_000, least_slab_bytes=20_000, chunk_bytes=20_000)


class Sentences:
    """Rows of different lengths."""

    def __len__(self):
        return 90

    def __getitem__(self, index):
        return {"input_ids": np.arange(index % 7 + 1, dtype=np.int64) + index, "label": index % 3}


def write_data(folder):
    rng = np.random.default_rng(0)
    rng.integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8).tofile(folder / "small.bin")
    rng.integers(0, 256, (ROWS, LARGE_ROW_BYTES), dtype=np.uint8).tofile(folder / "large.bin")
    rng.integers(0, 60_000, 17 * 200, dtype=np.uint16).tofile(folder / "tokens.bin")


def records(folder, name="small"):
    size = ROW_BYTES if name == "small" else LARGE_ROW_BYTES
    parts = {"label": RecordPart(0, "uint8", ()), "pixels": RecordPart(1, "uint8", (size - 1,))}
    return Records.open(str(folder / f"{name}.bin"), record_bytes=size, parts=parts)


def tokens(folder):
    return TokenShards.open(str(folder / "tokens.bin"), seq_len=16, file_format="raw", dtype="uint16")


def noise(batch, keys):
    """A transform that makes one of its tensors anew and changes the other in place."""
    label = batch["label"]
    label += 1
    words = torch.from_numpy(keys.words(1).astype(np.int64)).view(-1)[:, None]
    return batch.with_fields(("pixels", "label"), ((batch["pixels"] + words).to(torch.uint8), label))


def copies(batches):
    return [{name: tensor.clone() for name, tensor in batch.items()} for batch in batches]


_expected = {}


def expected(make, epochs, options):
    """Return what a loader on the CPU delivers, and its digest; made once."""
    given = {name: value for name, value in options.items() if name in FOR_BOTH}
    key = (make, epochs, repr(given))
    if key not in _expected:
        with Loader(make(), device="cpu", readers=0, seed=3, keep_digest=True, **given) as loader:
            rows = [copies(loader.epoch(epoch)) for epoch in range(epochs)]
            _expected[key] = rows, loader.statistics().digest
    return _expected[key]


FOR_BOTH = ("batch_size", "collate", "transforms", "augment", "drop_last")


@contextlib.contextmanager
def on_device(source, **options):
    """Give a loader on a new device with small memory, and the device; nobody but the loader has used it."""
    forget_devices()
    with pytest.MonkeyPatch.context() as patch:
        small_pieces(patch)
        with Loader(source, device="simulated", simulated=MEMORY, seed=3, **options) as loader:
            yield loader, inside.device_of(loader)
    forget_devices()


class OtherBytesError(AssertionError):
    """The loop got other bytes than it would have got on the CPU."""


def require_same(batch, wanted, where):
    assert set(batch.names) == set(wanted), where
    for name, tensor in wanted.items():
        if not torch.equal(batch[name], tensor):
            raise OtherBytesError(f"{where}: {name}")


def require_ordered(device):
    """Raise what was found out of order: a background thread may have met it after the loop's last batch."""
    if device.faults:
        raise device.faults[0]


def run(make, *, epochs=2, keeps=False, between=None, asks_digest=False, **options):
    """Deliver some epochs and compare every batch with what the CPU delivers.

    Args:
        make: Makes the source.
        epochs: How many.
        keeps: Whether the loop keeps all batches of an epoch, and compares them once more at its end.
        between: Called with the loader after each epoch, and its number.
        asks_digest: Whether the digest is asked for again and again; else none is kept.
        **options: Of the loader.
    """
    rows, digest = expected(make, epochs, options)
    with on_device(make(), keep_digest=asks_digest, **options) as (loader, device):
        for epoch in range(epochs):
            kept = []
            for step, batch in enumerate(loader.epoch(epoch)):
                require_same(batch, rows[epoch][step], f"epoch {epoch}, step {step}")
                if asks_digest and step % 3 == 1:
                    loader.statistics()
                if keeps:
                    kept.append(batch)
                del batch
            require_ordered(device)
            for step, batch in enumerate(kept):
                require_same(batch, rows[epoch][step], f"epoch {epoch}, step {step}, later")
            if between is not None:
                between(loader, epoch)
        require_ordered(device)
        if asks_digest and loader.statistics().digest != digest:
            raise OtherBytesError("the digest says so")


def cut_pool(loader, epoch):
    """Take half of the samples off the device after it gave all of an epoch, and let them come back."""
    pool = inside.pool_of(loader)
    if epoch == 1:
        assert pool.is_complete
        pool.shrink(ROWS // 2)
        pool.grow(ROWS)


def drop_pool(loader, epoch):
    """Take the pool's memory away after it gave all of an epoch, as a shortage of memory does."""
    pool = inside.pool_of(loader)
    if epoch == 0:
        assert pool.is_complete
        pool.switch_off("a test says so")


def partial_pool(loader, _):
    pool = inside.pool_of(loader)
    assert 0 < pool.num_rows < ROWS
    assert pool.held_bytes > 100_000  # of several slabs


def complete_pool(loader, epoch):
    # Of several slabs each waits for the one before it, so the first epoch leaves gaps.
    assert inside.holds_all(loader) or epoch == 0


def run_stream(**options):
    def given():
        return Lanes(40, 55, 31, 60)

    with Loader(given(), batch_size=6, device="cpu", readers=0, seed=3) as loader:
        wanted = [copies(loader.epoch(epoch)) for epoch in range(2)]
    with on_device(given(), batch_size=6, **options) as (loader, device):
        for epoch in range(2):
            for step, batch in enumerate(loader.epoch(epoch)):
                require_same(batch, wanted[epoch][step], f"epoch {epoch}, step {step}")
        require_ordered(device)


def run_broken_off(make):
    """Break off passes at different places, and go on from there."""
    rows, _ = expected(make, 2, {"batch_size": 16})
    for mode in ("streaming", "resident", "auto"):
        with on_device(make(), batch_size=16, mode=mode, prefetch=2) as (loader, device):
            for epoch, steps in ((0, 1), (0, 5), (1, 3), (1, 15)):
                for step, batch in zip(range(steps), loader.epoch(epoch), strict=False):
                    require_same(batch, rows[epoch][step], f"{mode}, epoch {epoch}, step {step}")
            require_ordered(device)


def run_short_of_memory(make):
    """Let one allocation after the other fail: the step is uploaded once more, from the same slot."""
    rows, _ = expected(make, 2, {"batch_size": 16})
    for skip in range(8):
        with on_device(make(), batch_size=16, mode="streaming", prefetch=2) as (loader, device):
            for epoch in range(2):
                for step, batch in enumerate(loader.epoch(epoch)):
                    require_same(batch, rows[epoch][step], f"epoch {epoch}, step {step}")
                    if step == 3 * epoch + 2:
                        device.fail_next(1, skip=skip)
            require_ordered(device)


def scenarios(folder: Path):
    """Return runs by name."""

    def small():
        return records(folder)

    def large():
        return records(folder, "large")

    def texts():
        return tokens(folder)

    stream = {"mode": "streaming", "prefetch": 2, "batch_size": 16}
    lone = {**stream, "vram_pool": False}
    whole = {"mode": "resident", "batch_size": 16}
    return {
        "no pool": lambda: run(small, epochs=1, **lone),
        "no pool, batches kept": lambda: run(small, epochs=1, keeps=True, batch_size=6, **drop(lone, "batch_size")),
        "no pool, one reader and one step": lambda: run(
            small, epochs=1, readers=1, prefetch=1, **drop(lone, "prefetch")
        ),
        "no pool, no readers": lambda: run(small, epochs=1, readers=0, **lone),
        "partial pool": lambda: run(large, epochs=3, between=partial_pool, **stream),
        "partial pool, digest": lambda: run(large, asks_digest=True, **stream),
        "complete pool": lambda: run(small, epochs=3, between=complete_pool, **stream),
        "complete pool of windows, digest": lambda: run(texts, epochs=3, asks_digest=True, **stream),
        "pool without readers": lambda: run(small, readers=0, **stream),
        "resident": lambda: run(small, between=complete_pool, **whole),
        "resident, no readers": lambda: run(small, readers=0, **whole),
        "resident, no readers, digest": lambda: run(small, readers=0, asks_digest=True, **whole),
        "promoted": lambda: run(small, epochs=3, between=complete_pool, mode="auto", batch_size=6),
        "promoted, digest, kept": lambda: run(small, epochs=3, asks_digest=True, keeps=True, batch_size=16),
        "cut pool": lambda: run(small, epochs=3, between=cut_pool, **whole),
        "cut pool, digest": lambda: run(small, epochs=3, between=cut_pool, asks_digest=True, **whole),
        # Batches of the whole set take memory of the very size that the pool had.
        "pool that is taken away": lambda: run(small, between=drop_pool, batch_size=ROWS, mode="resident", readers=0),
        "transforms": lambda: run(small, transforms=noise, augment=2, drop_last=False, **stream),
        "transforms, resident": lambda: run(small, transforms=noise, drop_last=False, **whole),
        "made batches": lambda: run(Sentences, collate="pad", **{**stream, "batch_size": 8}),
        "stream": lambda: run_stream(prefetch=2),
        "short of memory": lambda: run_short_of_memory(large),
        "broken off": lambda: run_broken_off(small),
    }


def drop(options, name):
    return {key: value for key, value in options.items() if key != name}
