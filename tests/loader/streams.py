"""A stream for loader tests: lanes of numbers, and ways for it to misbehave."""

import numpy as np

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.keyed.permute import permutation
from flodl_pipe.sources.protocol import Fact, Fingerprint


class Lanes:
    """Lane ``k`` holds the rows ``1000 k, 1000 k + 1, ...``; shuffled, all rows of a lane are permuted.

    Args:
        lengths: Rows of each lane.
        bad: Rows whose reading fails.
        marks: Whether marks say where they are; without, a lane is read again from its begin.
    """

    def __init__(self, *lengths, bad=(), marks=True):
        self.spec = SampleSpec.of(id=("int64", ()))
        self.delivered = SampleSpec.of(id=("int64", ()), half=("float32", ()))
        self.lengths, self.bad, self.marks = lengths, frozenset(bad), marks
        self.num_lanes = len(lengths)
        self.buffer_bytes = 0
        self.tag = f"lanes={len(lengths)}"
        self.num_samples_estimate = None
        self.opened = []
        self.rows_read = 0

    def open_lane(self, lane, *, seed, epoch, shuffle, mark=""):
        self.opened.append(lane)
        rows = np.arange(self.lengths[lane])
        if shuffle and len(rows):
            rows = permutation(len(rows), seed, epoch, lane).at(rows)
        return Reader(self, 1000 * lane + rows, int(mark or 0))

    def count_lane(self, lane, *, seed, epoch, shuffle):
        return self.lengths[lane]

    def deliver(self, stored, out):
        np.copyto(out["id"], stored["id"])
        np.copyto(out["half"], stored["id"] / 2)

    def fingerprint(self, *, full=False):
        return Fingerprint(f"lanes {self.lengths}", "00", full)

    def facts(self):
        return (Fact("lanes", str(self.num_lanes)),)

    def check_unchanged(self):
        pass

    def close(self):
        pass


class Reader:
    def __init__(self, stream, rows, at):
        self.stream, self.rows, self.at = stream, rows, at

    def read_into(self, out, first_row, num_rows):
        rows = self.rows[self.at : self.at + num_rows]
        if self.stream.bad & set(rows.tolist()):
            raise OSError("a row of lanes.bin is bad")
        out["id"][first_row : first_row + len(rows)] = rows
        self.at += len(rows)
        self.stream.rows_read += len(rows)
        return len(rows)

    def skip(self, num_rows):
        passed = min(num_rows, len(self.rows) - self.at)
        self.at += passed
        return passed

    def mark(self):
        return str(self.at) if self.stream.marks else ""

    def close(self):
        pass


def ids(iterator):
    """Return the ids of every batch, checking fields and pick keys against each other."""
    found = []
    for batch in iterator:
        numbers = batch["id"].numpy()
        assert (batch["half"].numpy() == numbers / 2).all()
        assert (batch.pick_keys.sample >> 40 == numbers // 1000).all()
        found.append(numbers.tolist())
    return found
