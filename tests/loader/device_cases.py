"""Sources, plain values of batches and combinations of settings, for tests of delivery on a device."""

import contextlib
import itertools

import numpy as np
import pytest
import torch

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.loader import host_budget
from flodl_pipe.loader.loader import Loader
from flodl_pipe.memory.ledger import process_ledger
from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.sources.protocol import Fingerprint
from tests.loader import inside
from tests.loader.inside import simulated_device
from tests.support.leftovers import forget_devices


class Fields:
    """Rows of several fields, delivered as they are stored: scalars, empty ones, and one that makes up most of it.

    Args:
        n: Samples.
        width: Bytes of the large field.
        bad: Samples whose reading fails.
        on_read: Called with the samples of each read.
    """

    delivery = "as stored"

    def __init__(self, n=331, width=4000, *, bad=(), on_read=None):
        self.spec = self.delivered = SampleSpec.of(
            id=("int64", ()),
            nothing=("float32", (0,)),
            pixels=("uint8", (width,)),
            grid=("int16", (2, 3)),
            flag=("bool", ()),
        )
        self.thread_safe = True
        self.n, self.width, self.bad, self.on_read = n, width, frozenset(bad), on_read
        self.rows_read = 0
        self.pattern = (np.arange(width) * 7 % 241).astype(np.uint8)

    def __len__(self):
        return self.n

    def read_into(self, indices, rows, out):
        if self.on_read is not None:
            self.on_read(indices)
        torn = self.bad & set(indices.tolist())
        if torn:
            raise OSError(f"sample {min(torn)} is torn")
        self.rows_read += len(indices)
        out["id"][rows] = indices
        out["pixels"][rows] = (indices * 31 % 251).astype(np.uint8)[:, None] + self.pattern
        out["grid"][rows] = (indices[:, None] * 5 - np.arange(6)).reshape(-1, 2, 3)
        out["flag"][rows] = indices % 3 == 0

    def deliver(self, stored, out):
        for name, column in stored.items():
            np.copyto(out[name], column)

    def fingerprint(self, *, full=False):
        return Fingerprint(f"fields: {self.n} x {self.width}", f"{self.n:08x}{self.width:08x}", full)


class Sentences:
    """Rows of different lengths, of a user's dataset."""

    def __init__(self, n=131):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return {"input_ids": np.arange(index % 13 + 1, dtype=np.int64) + index, "label": index % 3}


def plain(batch):
    """Return a batch as values that can be compared: fields, keys, validity, weight and place."""
    fields = {}
    for name, tensor in batch.items():
        parts = [*tensor.unbind()] if tensor.is_nested else [tensor]
        assert not any(part.is_inference() for part in parts)
        fields[name] = [(part.dtype, tuple(part.shape), part.detach().clone()) for part in parts]
    keys = batch.pick_keys
    valid = None if batch.valid is None else batch.valid.tolist()
    # Which samples were skipped so far depends on how far ahead they are read.
    place = {name: value for name, value in batch.cursor.items() if name != "skipped"}
    return keys.sample.tolist(), keys.repeat.tolist(), valid, batch.weight, place, fields


def require_same(found, wanted):
    """Compare batches, bit by bit."""
    assert len(found) == len(wanted)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one[:-1] == other[:-1], number
        assert one[-1].keys() == other[-1].keys()
        for name, parts in other[-1].items():
            for (dtype, shape, tensor), (own_dtype, own_shape, own) in zip(one[-1][name], parts, strict=True):
                assert (dtype, shape) == (own_dtype, own_shape), (number, name)
                # NaN is no number that equals itself; bits are.
                assert torch.equal(bits(tensor), bits(own)), (number, name)


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor


@contextlib.contextmanager
def small_device(memory_bytes, *, slab_bytes=150_000, make=None, **options):
    """Give a device of its own to whatever asks for a simulated one of so much memory; its slabs are small.

    Args:
        memory_bytes: Its memory.
        slab_bytes: Bytes of a slab of the pool.
        make: Makes another device in its place.
        **options: Of ``loader.simulated``.

    Yields:
        Options for a loader, and a function that returns the device.
    """
    forget_devices()
    with pytest.MonkeyPatch.context() as patch:
        inside.small_pieces(patch, slab_bytes=slab_bytes)
        if make is not None:
            inside.make_devices(patch, make)
        try:
            yield {"device": "simulated", "simulated": {"memory_bytes": memory_bytes, **options}}, simulated_device
            assert process_ledger().accounts() == {}
        finally:
            forget_devices()


@contextlib.contextmanager
def small_host(available_bytes):
    """Let the host have little memory, so that the RAM cache holds a part of the samples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_budget, "probe_host", lambda: HostMemory(1 << 36, available_bytes, "host"))
        yield


def pairwise(values):
    """Return combinations that hold every pair of values of two settings at least once; always the same ones.

    Args:
        values: For each setting its values.
    """
    names = list(values)
    pairs = {
        (one, a, other, b)
        for one, other in itertools.combinations(range(len(names)), 2)
        for a in range(len(values[names[one]]))
        for b in range(len(values[names[other]]))
    }
    found = []
    while pairs:
        first = min(pairs)
        chosen = {first[0]: first[1], first[2]: first[3]}
        for setting in range(len(names)):
            if setting not in chosen:
                chosen[setting] = max(
                    range(len(values[names[setting]])),
                    key=lambda value: (sum(pair in pairs for pair in _pairs(chosen, setting, value)), -value),
                )
        for one, other in itertools.combinations(range(len(names)), 2):
            pairs.discard((one, chosen[one], other, chosen[other]))
        found.append({name: values[name][chosen[number]] for number, name in enumerate(names)})
    return found


def _pairs(chosen, setting, value):
    return [
        (other, have, setting, value) if other < setting else (setting, value, other, have)
        for other, have in chosen.items()
    ]


def run(loader, epochs):
    return [plain(batch) for epoch in range(epochs) for batch in loader.epoch(epoch)]


def on_cpu(source, **options):
    return Loader(source, device="cpu", mode="streaming", readers=0, **options)
