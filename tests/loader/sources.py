"""Sources for loader tests: the least a source must offer, and ways for it to misbehave."""

import threading
import time

import numpy as np

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.sources.protocol import Fingerprint


class Numbers:
    """Sample ``i`` holds ``i`` in an id and ``width`` narrow values; nothing but the source contract.

    Args:
        n: Number of samples.
        width: Values of a row.
        bad: Samples whose reading fails.
        delay_s: Time a read takes.
        thread_safe: As the contract says.
    """

    def __init__(self, n, width=3, *, bad=(), delay_s=0.0, thread_safe=True):
        self.spec = SampleSpec.of(id=("int64", ()), values=("uint8", (width,)))
        self.delivered = SampleSpec.of(id=("int64", ()), values=("float32", (width,)))
        self.thread_safe = thread_safe
        self.n, self.width, self.bad, self.delay_s = n, width, frozenset(bad), delay_s
        self.reads = 0
        self.inside = 0
        self.most_inside = 0
        self.lock = threading.Lock()

    def __len__(self):
        return self.n

    def read_into(self, indices, rows, out):
        with self.lock:
            self.reads += 1
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        if self.delay_s:
            time.sleep(self.delay_s)
        for index in indices.tolist():
            if index in self.bad:
                with self.lock:
                    self.inside -= 1
                raise OSError(f"record {index} of numbers.bin is bad")
        out["id"][rows] = indices
        out["values"][rows] = values(indices, self.width)
        with self.lock:
            self.inside -= 1

    def deliver(self, stored, out):
        np.copyto(out["id"], stored["id"])
        np.copyto(out["values"], stored["values"])

    def fingerprint(self, *, full=False):
        return Fingerprint(f"numbers: {self.n} x {self.width}", f"{self.n:08x}{self.width:08x}", full)


def values(indices, width):
    """What sample ``indices`` holds."""
    return ((np.asarray(indices)[:, None] * 31 + np.arange(width) * 7) % 251).astype(np.uint8)


def ids(iterator):
    """Return the ids of every batch, checking the other field against them."""
    found = []
    for batch in iterator:
        assert batch.valid is None or len(batch.valid) == batch.size
        assert batch["id"].tolist() == batch.pick_keys.sample.tolist()
        width = batch["values"].shape[1]
        assert np.array_equal(batch["values"].numpy(), values(batch["id"].numpy(), width).astype(np.float32))
        found.append(batch["id"].tolist())
    return found
