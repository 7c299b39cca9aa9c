"""The shuffle as a function: ns an index in blocks, us for a lone batch of 32, and memory at 10^15 items."""

import sys
import time
import tracemalloc

import numpy as np
from timing import check, machine, median

from flodl_pipe.keyed.permute import permutation

BLOCK = 8192


def ns_an_index(n, repeats=15, blocks=20):
    shuffle = permutation(n, 42, 0)
    positions = np.random.default_rng(0).integers(0, n, BLOCK)
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(blocks):
            shuffle.at(positions)
        found.append((time.perf_counter() - began) / blocks / BLOCK * 1e9)
    return median(found)[0]


def us_for_a_lone_batch(n, repeats=15, calls=200):
    shuffle = permutation(n, 42, 0)
    positions = np.arange(32)
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(calls):
            shuffle.at(positions)
        found.append((time.perf_counter() - began) / calls * 1e6)
    return median(found)[0]


def peak_bytes(n):
    tracemalloc.start()
    permutation(n, 42, 0).at(np.arange(BLOCK))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main():
    print(machine())
    met = []
    for n in (10**5, 5 * 10**7, 10**9, 10**15):
        met += [
            check(f"ns an index in blocks of {BLOCK}, n = {n:.0e}", ns_an_index(n), 25, at_least=False),
            check(f"us for a lone batch of 32, n = {n:.0e}", us_for_a_lone_batch(n), 60, at_least=False),
        ]
    growth = peak_bytes(10**15) / peak_bytes(10**5)
    met.append(check("memory at 10^15 items / at 10^5", growth, 1.5, at_least=False))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
