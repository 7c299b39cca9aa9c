"""Hits from a RAM cache that two ranks of a host keep together, against one of a process's own; 1,024 rows a read.

Caches are full, or half full, which takes a look at each row's mark. The other rank is a process of its own, which got
the memory as ranks do; it fills its stripe, and then reads alone, or both at once. Turns are short and many, and the
best tenth of each counts: what else runs on the machine takes turns as well.
"""

import contextlib
import multiprocessing
import os
import sys
import time

import numpy as np
from timing import check, machine, median

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.staging.ram_cache import RamCache, memory_file_bytes
from flodl_pipe.staging.ranking import StorageOrder
from flodl_pipe.staging.shared_fill import HostPart
from flodl_pipe.staging.shared_handover import Line, Listener
from flodl_pipe.staging.shared_memory import SharedMemory, memory_file

ROW_BYTES, NUM_ROWS, READ_ROWS = 3080, 200_000, 1024
PLENTY = HostMemory(1 << 40, 1 << 39, "host")
TURNS, READS = 100, 20


class Rows:
    """Rows whose bytes are their number."""

    thread_safe = True

    def __init__(self):
        self.spec = self.delivered = SampleSpec.of(x=("uint8", (ROW_BYTES,)))

    def __len__(self):
        return NUM_ROWS

    def read_into(self, indices, rows, out):
        out["x"][rows] = (indices % 251).astype(np.uint8)[:, None]

    def deliver(self, stored, out):
        raise NotImplementedError

    def fingerprint(self, *, full=False):
        raise NotImplementedError


def cache(part=None):
    return RamCache(
        Rows(),
        StorageOrder(NUM_ROWS),
        first_rank=0,
        num_ranks=NUM_ROWS,
        read_lock=contextlib.nullcontext(),
        probe=lambda: PLENTY,
        part=part,
    )


def memory_bytes():
    return memory_file_bytes(Rows(), StorageOrder(NUM_ROWS), first_rank=0, num_ranks=NUM_ROWS)


def fill(one, fraction):
    """Fill a cache, or the first part of it by offers."""
    if fraction == 1:
        one.fill(lambda: False)
        return
    out = Rows().spec.empty(READ_ROWS)
    rows = np.arange(READ_ROWS)
    for first in range(0, int(NUM_ROWS * fraction), READ_ROWS):
        indices = np.arange(first, min(first + READ_ROWS, int(NUM_ROWS * fraction)))
        Rows().read_into(indices, rows[: len(indices)], out)
        one.offer(indices, rows[: len(indices)], out)


def rows_a_second(one, seed, seconds=None):
    """Return the rate of reads at random."""
    rng = np.random.default_rng(seed)
    out, rows = one._source.spec.empty(READ_ROWS), np.arange(READ_ROWS)
    wanted = [rng.integers(0, NUM_ROWS, READ_ROWS) for _ in range(READS)]
    began, count = time.perf_counter(), 0
    while True:
        for indices in wanted:
            one.read_into(indices, rows, out)
        count += READS * READ_ROWS
        took = time.perf_counter() - began
        if seconds is None or took > seconds:
            return count / took


def other_rank(token, fraction, pipe):
    """Be the other rank: fill, say so, and read whenever told to."""
    with Line(token, 1) as line:
        descriptor = line.receive(30)
    one = cache(HostPart(SharedMemory(descriptor, memory_bytes()), 1, 2))
    if fraction == 1:
        fill(one, 1)
    else:
        pipe.recv()
    pipe.send("filled")
    for seconds in iter(pipe.recv, "end"):
        pipe.send(rows_a_second(one, 7, seconds))


def measure(fraction):
    """Return the rates of each contender, turn by turn."""
    own = cache()
    fill(own, fraction)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with Listener() as listener:
        process = context.Process(target=other_rank, args=(listener.token, fraction, there))
        process.start()
        descriptor = memory_file(memory_bytes())
        listener.hand_over(descriptor, {1}, 60)
    shared = cache(HostPart(SharedMemory(descriptor, memory_bytes()), 0, 2))
    os.close(descriptor)
    fill(shared, fraction)
    if fraction != 1:
        here.send("filled")
    here.recv()
    found = {"its own": [], "shared, first rank": [], "shared, other rank": [], "shared, both at once": []}
    for turn in range(TURNS):
        found["its own"].append(rows_a_second(own, turn))
        found["shared, first rank"].append(rows_a_second(shared, turn))
        here.send(None)
        found["shared, other rank"].append(here.recv())
        here.send(0.05)
        found["shared, both at once"].append(rows_a_second(shared, turn, 0.05) + here.recv())
    here.send("end")
    process.join()
    return found


def main():
    print(machine())
    ok = True
    for fraction in (1, 0.5):
        found = measure(fraction)
        print(f"\n{'full' if fraction == 1 else 'half full'}; rows of {ROW_BYTES:,} bytes, {NUM_ROWS:,} of them")
        for name, rates in found.items():
            best = np.quantile(rates, 0.9)
            print(f"  {name:24s} {best:12,.0f} rows/s (median {median(rates)[0]:,.0f})")
            if name not in ("its own", "shared, both at once"):
                ok &= check(f"{name}, of its own", best / np.quantile(found["its own"], 0.9), 0.9)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
