"""Sources whose rows follow from their index, and a reader that asks a disk stage before one of them.

White box: the descriptor of a stage's file, by which tests damage it.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.sources.protocol import Fingerprint
from flodl_pipe.staging.disk_stage import DiskStage

SPECS = {
    "scalar": SampleSpec.of(label=("int64", ())),
    "one byte": SampleSpec.of(flag=("bool", ())),
    "odd": SampleSpec.of(bytes=("uint8", (1025, 2)), label=("uint8", ()), pair=("float32", (2,))),
    "fields": SampleSpec.of(
        image=("uint8", (3, 32, 32)), empty=("int64", (0,)), label=("int16", ()), z=("float64", ())
    ),
    "empty": SampleSpec.of(nothing=("float32", (0, 4))),
    "words": SampleSpec.of(tokens=("uint16", (1024,))),
    "megabyte": SampleSpec.of(volume=("uint8", (1 << 20,)), label=("uint8", ())),
    "beyond the scratch": SampleSpec.of(volume=("uint8", (3 << 20,))),
}


class Rows:
    """``num_samples`` samples; every byte follows from the sample's index and its place in the row."""

    thread_safe = True

    def __init__(self, spec: SampleSpec, num_samples: int) -> None:
        self.spec = self.delivered = spec
        self.num_samples = num_samples
        self.num_read = 0

    def __len__(self) -> int:
        return self.num_samples

    def read_into(self, indices, rows, out: Mapping[str, np.ndarray]) -> None:
        self.num_read += len(indices)
        for name, array in self.rows(indices).items():
            out[name][rows] = array

    def rows(self, indices) -> dict[str, np.ndarray]:
        found = {}
        for number, field in enumerate(self.spec):
            places = np.arange(field.row_bytes, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15 + 2 * number)
            words = (np.asarray(indices, dtype=np.uint64)[:, None] + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9)
            raw = ((words ^ places) >> np.uint64(29)).astype(np.uint8)
            raw = raw & 1 if field.dtype == "bool" else raw
            found[field.name] = raw.view(field.dtype).reshape(len(indices), *field.shape)
        return found

    def deliver(self, stored, out) -> None:
        for name, array in stored.items():
            out[name][...] = array

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        return Fingerprint("rows", "0", full)


class InOrder:
    def ranks(self, indices):
        return indices


class Reversed:
    def __init__(self, num_samples: int) -> None:
        self.last = num_samples - 1

    def ranks(self, indices):
        return self.last - indices


def make_stage(source: Rows, folder: Path, *, first: int = 0, count: int | None = None, ranking=None) -> DiskStage:
    count = len(source) - first if count is None else count
    return DiskStage(source, ranking or InOrder(), folder=folder, first_rank=first, num_ranks=count)


def read_through(stage: DiskStage, source: Rows, indices) -> int:
    """Read samples by way of the stage, compare every byte, and return how many it had."""
    indices = np.asarray(indices, dtype=np.int64)
    out = source.spec.empty(len(indices) + 1)
    for array in out.values():
        array.view(np.uint8)[...] = 1
    rows = np.arange(len(indices), dtype=np.int64)[::-1].copy() + 1
    held = stage.read_into(indices, rows, out)
    missing = np.flatnonzero(~held)
    if len(missing):
        source.read_into(indices[missing], rows[missing], out)
        stage.offer(indices[missing], rows[missing], out)
    for name, expected in source.rows(indices).items():
        got = out[name][rows]
        assert got.tobytes() == expected.tobytes(), f"field {name} differs"
        assert (out[name][0:1].view(np.uint8) == 1).all(), "a row that was not asked for was written to"
    return int(held.sum())


def fill(stage: DiskStage, source: Rows, indices, batch: int = 64) -> None:
    for first in range(0, len(indices), batch):
        read_through(stage, source, indices[first : first + batch])


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def file_path(stage: DiskStage) -> str:
    """Return a path by which a test can write to the file that has no name."""
    assert stage._file is not None
    return f"/proc/self/fd/{stage._file.descriptor}"


def overwrite(stage: DiskStage, offset: int, content: bytes) -> None:
    descriptor = os.open(file_path(stage), os.O_WRONLY)
    try:
        assert os.pwrite(descriptor, content, offset) == len(content)
    finally:
        os.close(descriptor)


def peek(stage: DiskStage, offset: int, num_bytes: int) -> bytes:
    return os.pread(stage._file.descriptor, num_bytes, offset)


def failing(number: int, *, after: int = 0, part: int = 0):
    """Return a stand-in for ``os.pwrite`` that fails, after some calls and some bytes of one more."""
    write, lock, calls = os.pwrite, threading.Lock(), [0]

    def pwrite(descriptor, content, offset):
        with lock:
            calls[0] += 1
            call = calls[0]
        if call <= after:
            return write(descriptor, content, offset)
        if call == after + 1 and part:
            return write(descriptor, content[:part], offset)
        raise OSError(number, os.strerror(number))

    return pwrite
