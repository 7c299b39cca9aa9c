"""Token shards against torch's DataLoader, in one run: 4 shards of 50 million uint16, seq_len 1024, batch 32, shuffled.

Contenders: ``T``, a plain DataLoader with ``num_workers=0`` and ``__getitem__`` over memmaps; ``V``, the same with
``__getitems__``; ours straight from the ``files``, ``streaming`` with a full RAM cache, as it is by default, and
``resident`` in memory. All deliver int64 x and y. Two have no loader around them, and all tokens in memory: ``select``
is a loop of index_select and widening, new tensors every time, and what the cache is held against; ``bare`` gathers and
widens 8 batches at a time to the same memory, which no loop can keep.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from timing import best_rate, check, machine, mean_wait_us, median, rate
from torch.utils.data import DataLoader, Dataset

from flodl_pipe.loader.loader import Loader
from flodl_pipe.memory.probe import resident_set_bytes
from flodl_pipe.sources.tokens import TokenShards

SHARDS, TOKENS, SEQ_LEN, BATCH = 4, 50_000_000, 1024, 32


class Items(Dataset):
    """nanoGPT's habit as a map-style dataset: a window is a slice of a memmap."""

    def __init__(self, paths):
        self.shards = [np.memmap(path, np.uint16, "r") for path in paths]
        self.ends = np.cumsum([0] + [(len(shard) - 1) // SEQ_LEN for shard in self.shards])

    def __len__(self):
        return int(self.ends[-1])

    def __getitem__(self, index):
        shard = int(np.searchsorted(self.ends, index, "right")) - 1
        start = (index - self.ends[shard]) * SEQ_LEN
        window = torch.from_numpy(self.shards[shard][start : start + SEQ_LEN + 1].astype(np.int64))
        return window[:-1], window[1:]


class Vectorised(Items):
    """The same, a batch at a time."""

    def __getitems__(self, indices):
        indices = np.asarray(indices)
        shards = np.searchsorted(self.ends, indices, "right") - 1
        starts = (indices - self.ends[shards]) * SEQ_LEN
        windows = np.empty((len(indices), SEQ_LEN + 1), np.int64)
        for row, (shard, start) in enumerate(zip(shards.tolist(), starts.tolist(), strict=True)):
            windows[row] = self.shards[shard][start : start + SEQ_LEN + 1]
        rows = torch.from_numpy(windows)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Select:
    """What a loop does for itself with all tokens in memory."""

    def __init__(self, paths):
        tokens = torch.from_numpy(np.concatenate([np.fromfile(path, np.int16) for path in paths]))
        self.windows = tokens.unfold(0, SEQ_LEN + 1, SEQ_LEN)

    def __iter__(self):
        for indices in torch.randperm(len(self.windows)).split(BATCH):
            rows = self.windows.index_select(0, indices).view(torch.uint16)  # taken as bits: uint16 cannot be selected
            yield rows[:, :-1].to(torch.int64), rows[:, 1:].to(torch.int64)


def bare_rate(paths, seconds):
    """Gather and widen, 8 batches at a time, from one array in memory."""
    data = np.concatenate([np.fromfile(path, np.uint16) for path in paths])
    views = np.lib.stride_tricks.as_strided(data, (len(data) - SEQ_LEN, SEQ_LEN + 1), (2, 2))
    starts = np.random.default_rng(0).permutation(len(data) // SEQ_LEN - 1) * SEQ_LEN
    out = np.empty((2, 8 * BATCH, SEQ_LEN), np.int64)
    count, began = 0, time.perf_counter()
    for first in itertools.cycle(range(0, len(starts) - 8 * BATCH, 8 * BATCH)):
        windows = views[starts[first : first + 8 * BATCH]]
        np.copyto(out[0], windows[:, :-1])
        np.copyto(out[1], windows[:, 1:])
        count += 8
        if time.perf_counter() - began > seconds:
            return count / (time.perf_counter() - began)
    return 0.0


def peer(kind, paths):
    dataset = {"T": Items, "V": Vectorised}[kind](paths)
    collate = {"T": None, "V": lambda rows: rows}[kind]
    return DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=collate)


def ours(mode, paths, **options):
    source = TokenShards.open(paths, seq_len=SEQ_LEN, file_format="raw", dtype="uint16")
    return Loader(source, batch_size=BATCH, mode=mode, **options)


def full(loader):
    """Wait until every sample is in memory, and return the loader and how long that took from its first batch on."""
    began = time.perf_counter()
    next(iter(loader))
    while not loader.tiers()[0].held_bytes:
        time.sleep(0.01)
    return loader, time.perf_counter() - began


def memory(paths):
    """Report, from a process of its own, anonymous memory while streaming, and first-batch times, as JSON."""
    list(zip(range(10), ours("streaming", paths[:1], sample_cache=False), strict=False))
    before = resident_set_bytes()
    first_ms, peaks = [], []
    for _ in range(5):
        began = time.perf_counter()
        loader = ours("streaming", paths, sample_cache=False)
        next(iter(loader))
        first_ms.append((time.perf_counter() - began) * 1e3)
        loader.close()
    loader = ours("streaming", paths, sample_cache=False)
    for epoch in range(10):
        for _ in loader.epoch(epoch):
            pass
        peaks.append(resident_set_bytes() - before)
    print(json.dumps({"first_ms": first_ms, "anon": peaks, "ring": loader.plan.ring_bytes}))


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=1.0)
    arguments.add_argument("--memory", nargs="*", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.memory:
        return memory(options.memory)
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"shard-{number}.bin") for number in range(SHARDS)]
        for number, path in enumerate(paths):
            np.random.default_rng(number).integers(0, 50_000, TOKENS, dtype=np.uint16).tofile(path)
        rates = {name: [] for name in ("T", "V", "files", "streaming", "resident", "select", "bare")}
        waits = {name: [] for name in ("T", "streaming", "resident")}
        loaders = {"files": ours("streaming", paths, sample_cache=False)}
        loaders["streaming"], filled_s = full(ours("streaming", paths))
        loaders["resident"], _ = full(ours("resident", paths))
        for _ in range(options.repeats):
            for name, found in rates.items():
                if name == "bare":
                    found.append(bare_rate(paths, options.seconds))
                elif name == "select":
                    found.append(best_rate(Select(paths), options.seconds))
                else:
                    found.append(rate(loaders[name] if name in loaders else peer(name, paths), options.seconds))
            for name, found in waits.items():
                found.append(mean_wait_us(loaders[name] if name in loaders else peer(name, paths), 1000))
        output = subprocess.run(
            [sys.executable, __file__, "--memory", *paths], capture_output=True, text=True, check=True
        ).stdout
    child = json.loads(output)
    print("\nbatches/s              median     min     max")
    for name, found in rates.items():
        print(f"  {name:20s} {median(found)[0]:7,.0f} {median(found)[1]:7,.0f} {median(found)[2]:7,.0f}")
    print("mean wait, us, beside 1 ms of pure Python a step")
    for name, found in waits.items():
        print(f"  {name:20s} {median(found)[0]:7.0f} {median(found)[1]:7.0f} {median(found)[2]:7.0f}")
    print("targets")
    ratio = {
        (ours_, theirs): median(a / b for a, b in zip(rates[ours_], rates[theirs], strict=True))[0]
        for ours_ in ("files", "resident")
        for theirs in ("T", "V")
    }
    select = median(a / b for a, b in zip(rates["streaming"], rates["select"], strict=True))[0]
    mib = 1 << 20
    met = [
        check("files / T", ratio["files", "T"], 4),
        check("files / V", ratio["files", "V"], 1.25),
        check("resident / T", ratio["resident", "T"], 10),
        check("resident / V", ratio["resident", "V"], 3),
        check("streaming, once the RAM cache is full, / select", select, 0.75),
        check("the RAM cache is full, s from the first batch", filled_s, 3, at_least=False),
        check("streaming mean wait, us", median(waits["streaming"])[0], 60, at_least=False),
        check("resident mean wait, us", median(waits["resident"])[0], 60, at_least=False),
        check("first batch, ms from build", median(child["first_ms"])[0], 100, at_least=False),
        check("anonymous memory beyond the ring, MiB", (max(child["anon"]) - child["ring"]) / mib, 100, at_least=False),
        check("growth from epoch 2 to 10, MiB", (child["anon"][-1] - child["anon"][1]) / mib, 5, at_least=False),
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
