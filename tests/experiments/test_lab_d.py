"""256 samples read by 0 and 2 workers: who reads, and that it makes no difference to what comes.

How much sooner two read a dataset whose samples take a while is for tests/benchmarks/workers.py.
"""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from flodl_pipe import Loader
from tests.experiments.lab import torch_loader

N, BATCH = 256, 16
LIMIT_S = 120  # of what waits for a process to start


class Rows(Dataset):
    """A row of known values, and the process that made it.

    Args:
        folder: Where each process that reads leaves its number, but this one, which looks at a sample for its fields.
        num_readers: How many must have done so before any returns a sample: none can read everything before the others
            have begun.
    """

    def __init__(self, folder=None, num_readers=0):
        self.folder, self.num_readers, self.made_in = folder, num_readers, os.getpid()

    def __len__(self):
        return N

    def __getitem__(self, index):
        if self.num_readers and os.getpid() != self.made_in:
            Path(self.folder, str(os.getpid())).touch()
            deadline = time.monotonic() + LIMIT_S
            while len(os.listdir(self.folder)) < self.num_readers:
                assert time.monotonic() < deadline, "a reader does not read"
                time.sleep(0.001)
        return {"row": torch.arange(8, dtype=torch.float32) + index, "index": index, "pid": os.getpid()}


def ours(readers, dataset=None, **keywords):
    settings = {"batch_size": BATCH, "shuffle": True, "seed": 7, "mode": "streaming", "reader_kind": "process"}
    return Loader(dataset or Rows(), readers=readers, **{**settings, **keywords})


def torchs(num_workers):
    generator = torch.Generator().manual_seed(7)
    return torch_loader(Rows(), num_workers, batch_size=BATCH, shuffle=True, generator=generator)


def rows(batches):
    return [(batch["index"].tolist(), batch["row"].tolist()) for batch in batches]


def pids(batches):
    return {pid for batch in batches for pid in batch["pid"].tolist()}


@pytest.mark.full
def test_who_reads_is_who_was_asked_to(tmp_path):
    with ours(0) as loader:
        assert pids(loader) == {os.getpid()}
    with ours(2, Rows(str(tmp_path), 2), sample_cache=False, check_purity=False) as loader:
        found = pids(loader)
        assert len(found) == 2
        assert os.getpid() not in found
        assert pids(loader.epoch(1)) <= found  # they stay from one epoch to the next
    assert {int(name) for name in os.listdir(tmp_path)} == found


@pytest.mark.parametrize(
    "readers", [pytest.param(1, marks=pytest.mark.full), 2, pytest.param(3, marks=pytest.mark.full)]
)
def test_batches_are_the_same_whatever_reads(readers):
    with ours(0) as none, ours(readers) as some:
        expected = rows(none)
        assert rows(some) == expected
    assert sorted(index for indices, _ in expected for index in indices) == list(range(N))


@pytest.mark.full
def test_torchs_workers_give_the_same_for_a_dataset_without_randomness():
    assert rows(torchs(2)) == rows(torchs(0))


class Flipped(Rows):
    """Flips half of the rows, by NumPy's global generator."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        if np.random.random() < 0.5:  # noqa: NPY002 - what datasets do
            sample["row"] = sample["row"].flip(0)
        return sample


def flipped(readers, *, epoch=0):
    settings = {"batch_size": BATCH, "seed": 7, "reader_kind": "process", "pure": False}
    with Loader(Flipped(), readers=readers, **settings) as loader:
        return rows(loader.epoch(epoch))


@pytest.mark.full
def test_randomness_within_a_dataset_changes_with_torchs_workers_and_not_here():
    def theirs(num_workers):
        torch.manual_seed(7)
        np.random.seed(7)  # noqa: NPY002 - as above
        generator = torch.Generator().manual_seed(7)
        return rows(torch_loader(Flipped(), num_workers, batch_size=BATCH, shuffle=True, generator=generator))

    before = np.random.get_state()  # noqa: NPY002 - as above
    assert theirs(1) != theirs(2)
    np.random.set_state(before)  # noqa: NPY002 - as above
    first = flipped(0)
    assert first == flipped(1) == flipped(2)
    assert first != flipped(0, epoch=1)
    assert 0.35 < np.mean([row[0] > row[1] for _, batch in first for row in batch]) < 0.65
