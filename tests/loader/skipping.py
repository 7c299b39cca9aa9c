"""Helpers of the tests of skipping: sources with faults, batches as plain values, and what they should be."""

import numpy as np
import pytest

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.protocol import Fingerprint

WAYS = [
    {"readers": 0, "mode": "streaming"},
    {"readers": 1, "mode": "streaming"},
    {"readers": 3, "mode": "streaming"},
    {"readers": 3, "mode": "streaming", "prefetch": 1},
    {"readers": 0, "mode": "resident"},
    {"readers": 2, "mode": "resident"},
]
N, BATCH = 101, 8
BAD = frozenset({0, 3, 40, 41, 42, 96, 97, 98, 99, 100, *range(48, 57)})
TORN = frozenset({2, 17, 18, 19, 50, 88})


def skipping(source, **options):
    return Loader(source, **{"on_error": "skip", "batch_size": BATCH, "seed": 11, "drop_last": False, **options})


def plain(batch):
    valid = None if batch.valid is None else batch.valid.tolist()
    keys = batch.pick_keys
    fields = [tensor.numpy().copy() for tensor in batch]
    return keys.sample.tolist(), keys.repeat.tolist(), valid, batch.weight, fields


def run(loader, epochs=1):
    return [plain(batch) for epoch in range(epochs) for batch in loader.epoch(epoch)]


def same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one[:4] == other[:4]
        for field, expected in zip(one[4], other[4], strict=True):
            np.testing.assert_array_equal(field, expected)


def stand_in(samples, row, bad):
    """Return the row whose values a skipped one gets; None for zeros."""
    before = [r for r in range(row) if samples[r] not in bad]
    after = [r for r in range(row, len(samples)) if samples[r] not in bad]
    return before[-1] if before else after[0] if after else None


def require_skipped(found, whole, bad):
    """Compare batches with those of the same data without faults."""
    assert len(found) == len(whole)
    for (samples, repeats, valid, weight, fields), (*keys, planned, full, expected) in zip(found, whole, strict=True):
        assert [samples, repeats] == keys
        counted = planned or [True] * len(samples)
        good = [p and sample not in bad for sample, p in zip(samples, counted, strict=True)]
        if all(good):
            assert valid is None
        else:
            assert valid == good
        assert weight == pytest.approx(full * sum(good) / max(1, sum(counted)))
        for row, sample in enumerate(samples):
            origin = row if sample not in bad else stand_in(samples, row, bad)
            for field, other in zip(fields, expected, strict=True):
                wanted = np.zeros_like(other[row]) if origin is None else other[origin]
                np.testing.assert_array_equal(field[row], wanted)


class Pictures:
    """Pictures with labels, some of which cannot be read."""

    def __init__(self, bad=(), n=90, side=10):
        self.spec = self.delivered = SampleSpec.of(image=("uint8", (3, side, side)), label=("int64", ()))
        self.thread_safe = True
        self.bad = frozenset(bad)
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (n, 3, side, side), dtype=np.uint8)
        self.labels = rng.integers(0, 5, n)

    def __len__(self):
        return len(self.labels)

    def read_into(self, indices, rows, out):
        torn = self.bad & set(indices.tolist())
        if torn:
            raise ValueError(f"picture {min(torn)} is torn")
        out["image"][rows] = self.images[indices]
        out["label"][rows] = self.labels[indices]

    def deliver(self, stored, out):
        for name in stored:
            np.copyto(out[name], stored[name])

    def fingerprint(self, *, full=False):
        return Fingerprint(f"pictures: {len(self)}", "0" * 32, full)
