"""Datasets for tests of reader processes, at the top level of a module as they must be there."""

import os
import random
import signal
import time
from dataclasses import dataclass

import numpy as np
import torch

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.sources.protocol import Fingerprint

WIDTH = 5


def values(index):
    return (np.arange(WIDTH) * 7 + index * 31).astype(np.uint16)


class Rows:
    """Sample ``i`` is known; a number of microseconds each, busy: so that there is something to break off."""

    def __init__(self, n=1000, busy_us=0):
        self.n, self.busy_us = n, busy_us

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        end = time.perf_counter() + self.busy_us * 1e-6
        while time.perf_counter() < end:
            pass
        return {"id": index, "values": values(index)}


class Items(Rows):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Batches(Rows):
    __getitem__ = None

    def get_batch(self, indices):
        return {"id": indices, "values": np.stack([values(index) for index in indices])}


@dataclass
class Sample:
    id: int
    values: torch.Tensor


class Dataclasses(Rows):
    def __getitem__(self, index):
        return Sample(index, torch.from_numpy(values(index)))


class Ragged(Rows):
    """Sample ``i`` has ``i % 4`` values."""

    def __getitem__(self, index):
        return {"id": index, "values": np.arange(index % 4) + index}


class Where(Rows):
    """Which process read a sample, and with how many threads torch computes there."""

    def __getitem__(self, index):
        return os.getpid() if index else 0, torch.get_num_threads()


class OddError(Exception):
    """Is not made of its text."""

    def __init__(self, code, *, reason):
        super().__init__(f"{reason} ({code})")
        self.code = code


def _raise(error):
    raise error


STUCK = 106
FAULTS = {
    101: lambda: _raise(KeyError("label")),
    102: lambda: _raise(OddError(7, reason="out of order")),
    103: lambda: _raise(SystemExit("enough")),
    104: lambda: os._exit(3),
    105: lambda: os.kill(os.getpid(), signal.SIGSEGV),
    STUCK: lambda: time.sleep(600),
    107: lambda: _raise(StopIteration),
    108: lambda: os.kill(os.getpid(), signal.SIGKILL),
}


class FaultyElsewhere(Rows):
    """Faulty in reader processes only: a fingerprint reads samples in the process of the test."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.home = os.getpid()

    def __getitem__(self, index):
        if index in FAULTS and os.getpid() != self.home:
            FAULTS[index]()
        return super().__getitem__(index)


class Faulty(Rows):
    """Faulty everywhere; a file says that a process has come to the sample whose reading never ends."""

    def __init__(self, *args, told=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.told = told

    def __getitem__(self, index):
        if index == STUCK and self.told is not None:
            self.told.touch()
        if index in FAULTS:
            FAULTS[index]()
        return super().__getitem__(index)


class Held:
    """Samples out of a tensor and an array that the dataset holds, and changes in place."""

    def __init__(self, n=64):
        self.tensor = torch.arange(n * 1000, dtype=torch.int32).reshape(n, 1000)
        self.array = np.arange(n * 1000, dtype=np.float32).reshape(n, 1000)
        self.brain = torch.linspace(0, 1, n).to(torch.bfloat16)
        self.weight = torch.ones(n, requires_grad=True)
        self.seen = np.zeros(n)

    def __len__(self):
        return len(self.tensor)

    def __getitem__(self, index):
        self.seen[index] += 1
        return self.tensor[index], self.array[index], self.brain[index].float(), self.weight[index].detach()


class Random(Rows):
    """Draws from every global generator."""

    def __getitem__(self, index):
        return {
            "id": index,
            "torch": torch.rand(2),
            "numpy": np.random.rand(2),  # noqa: NPY002 - as datasets do
            "python": random.random(),
        }


class RandomRagged(Rows):
    """As many values as it draws."""

    def __getitem__(self, index):
        return {"id": index, "values": torch.randn(int(np.random.randint(0, 4)))}  # noqa: NPY002 - as above


class Squares:
    """The source contract and nothing else."""

    spec = delivered = SampleSpec.of(square=("int64", ()))
    thread_safe = True

    def __len__(self):
        return 40

    def read_into(self, indices, rows, out):
        out["square"][rows] = indices**2

    def deliver(self, stored, out):
        np.copyto(out["square"], stored["square"])

    def fingerprint(self, *, full=False):
        return Fingerprint("squares", "40", full)
