"""Samples a second with 0 and 2 workers: a dataset whose samples take a while is read sooner by two, and no otherwise.

A sample takes its time asleep, so that the ratio holds on a machine with one core and on a busy one.
"""

import os
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from flodl_pipe import Loader
from tests.experiments.lab import torch_loader

N, BATCH, SAMPLE_S = 256, 16, 2e-3


class Slow(Dataset):
    """A row of known values, the process that made it, after a while."""

    def __init__(self, sample_s=SAMPLE_S):
        self.sample_s = sample_s

    def __len__(self):
        return N

    def __getitem__(self, index):
        time.sleep(self.sample_s)
        return {"row": torch.arange(8, dtype=torch.float32) + index, "index": index, "pid": os.getpid()}


def ours(readers, **keywords):
    settings = {"batch_size": BATCH, "shuffle": True, "seed": 7, "mode": "streaming", "reader_kind": "process"}
    return Loader(Slow(), readers=readers, **{**settings, **keywords})


def torchs(num_workers):
    generator = torch.Generator().manual_seed(7)
    return torch_loader(Slow(), num_workers, batch_size=BATCH, shuffle=True, generator=generator)


def samples_per_s(batches):
    """How many samples come in a second, once the first batch is there: to start is another matter."""
    iterator = iter(batches)
    next(iterator)
    began_s, count = time.perf_counter(), 0
    for batch in iterator:
        count += len(batch["index"])
        ended_s = time.perf_counter()  # to end workers takes a while, too
    return count / (ended_s - began_s)


def rows(batches):
    return [(batch["index"].tolist(), batch["row"].tolist()) for batch in batches]


def pids(batches):
    return {pid for batch in batches for pid in batch["pid"].tolist()}


def test_two_of_torchs_workers_are_quicker_than_none():
    assert samples_per_s(torchs(2)) > 1.3 * samples_per_s(torchs(0))


def test_two_processes_here_are_quicker_than_none():
    with ours(0) as none, ours(2) as two:
        assert samples_per_s(two) > 1.3 * samples_per_s(none)


def test_two_processes_here_keep_up_with_two_workers_of_torch():
    with ours(2) as two:
        assert samples_per_s(two) > 0.7 * samples_per_s(torchs(2))


def test_who_reads_is_who_was_asked_to():
    with ours(0) as loader:
        assert pids(loader) == {os.getpid()}
    with ours(2) as loader:
        found = pids(loader)
        assert len(found) == 2
        assert os.getpid() not in found
        assert pids(loader.epoch(1)) == found  # they stay from one epoch to the next


@pytest.mark.parametrize("readers", [1, 2, 3])
def test_batches_are_the_same_whatever_reads(readers):
    with ours(0) as none, ours(readers) as some:
        expected = rows(none)
        assert rows(some) == expected
    assert sorted(index for indices, _ in expected for index in indices) == list(range(N))


def test_torchs_workers_give_the_same_for_a_dataset_without_randomness():
    assert rows(torchs(2)) == rows(torchs(0))


class Flipped(Slow):
    """Flips half of the rows, by NumPy's global generator."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        if np.random.random() < 0.5:  # noqa: NPY002 - what datasets do
            sample["row"] = sample["row"].flip(0)
        return sample


def flipped(readers, *, epoch=0):
    settings = {"batch_size": BATCH, "seed": 7, "reader_kind": "process", "pure": False}
    with Loader(Flipped(0.0), readers=readers, **settings) as loader:
        return rows(loader.epoch(epoch))


def test_randomness_within_a_dataset_changes_with_torchs_workers_and_not_here():
    def theirs(num_workers):
        torch.manual_seed(7)
        np.random.seed(7)  # noqa: NPY002 - as above
        generator = torch.Generator().manual_seed(7)
        return rows(torch_loader(Flipped(0.0), num_workers, batch_size=BATCH, shuffle=True, generator=generator))

    before = np.random.get_state()  # noqa: NPY002 - as above
    assert theirs(1) != theirs(2)
    np.random.set_state(before)  # noqa: NPY002 - as above
    first = flipped(0)
    assert first == flipped(1) == flipped(2)
    assert first != flipped(0, epoch=1)
    assert 0.35 < np.mean([row[0] > row[1] for _, batch in first for row in batch]) < 0.65
