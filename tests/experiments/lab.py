"""Torch's side of the experiments: what its worker processes import, so kept light.

Workers are forked from a server that has torch in memory already, which is quick and safe beside other threads.
"""

import math
import multiprocessing

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info


def torch_loader(dataset, num_workers=2, **keywords):
    """A torch DataLoader whose workers start the same way on every platform."""
    multiprocessing.set_forkserver_preload(["torch", "numpy"])
    context = "forkserver" if num_workers else None
    return DataLoader(dataset, num_workers=num_workers, multiprocessing_context=context, **keywords)


class Integers(IterableDataset):
    """``0 .. n - 1``, one after the other, and nothing about workers or ranks."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


class ShardedIntegers(Integers):
    """The same with what torch asks its users to write: each worker passes over what the others give."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.n, step))


class Part(IterableDataset):
    """One part of the data: the integers ``first .. last - 1``."""

    def __init__(self, first, last):
        self.first, self.last = first, last

    def __iter__(self):
        return iter(range(self.first, self.last))


class TokenWindows(Dataset):
    """Windows of a file of uint16 tokens, some tokens hidden by NumPy's generator of the worker."""

    def __init__(self, path, seq_len, mask_id):
        self.path, self.seq_len, self.mask_id = path, seq_len, mask_id
        self.num_windows = (len(np.memmap(path, dtype=np.uint16, mode="r")) - 1) // seq_len
        self.tokens = self.rng = None

    def __len__(self):
        return self.num_windows

    def __getitem__(self, index):
        if self.tokens is None:
            self.tokens = np.memmap(self.path, dtype=np.uint16, mode="r")
        start = index * self.seq_len
        window = self.tokens[start : start + self.seq_len + 1].astype(np.int64)
        x, y = window[:-1].copy(), window[1:]
        x[self.rng.random(self.seq_len) < 0.15] = self.mask_id
        return torch.from_numpy(x), torch.from_numpy(y.copy())


def seed_worker(worker_id):
    """Give the worker's copy of the dataset a generator of its own."""
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


class Sequences(Dataset):
    """Token sequences of the given lengths; sample ``i`` holds ``i`` everywhere."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.full((self.lengths[index],), index)


def pad(samples):
    """Fill up to the longest sample; return ids and mask."""
    lengths = torch.tensor([len(sample) for sample in samples])
    ids = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()


class BucketBatchSampler(Sampler):
    """Batches of like lengths: shuffle, sort pools of 50 batches by length, slice them, shuffle the batches."""

    def __init__(self, lengths, batch_size, generator, pool_batches=50):
        self.lengths = torch.as_tensor(lengths)
        self.batch_size, self.pool, self.generator = batch_size, batch_size * pool_batches, generator

    def __len__(self):
        return math.ceil(len(self.lengths) / self.batch_size)

    def __iter__(self):
        order = torch.randperm(len(self.lengths), generator=self.generator)
        pools = [pool[self.lengths[pool].argsort()] for pool in order.split(self.pool)]
        batches = [batch for pool in pools for batch in pool.split(self.batch_size)]
        for place in torch.randperm(len(batches), generator=self.generator).tolist():
            yield batches[place].tolist()
