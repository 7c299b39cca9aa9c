"""Draws and mixtures as functions: ns an index in blocks of 8,192, beside a uniform shuffle of as many samples."""

import sys
import time
from fractions import Fraction

from timing import check, machine, median

from flodl_pipe.sampling.drawn import DrawnOrder
from flodl_pipe.sampling.mixture_order import MixtureOrder
from flodl_pipe.sampling.orders import UniformOrder
from flodl_pipe.sources.ordering import MixedPart, Weights

AHEAD = 8192
LARGE = 10**8


def ns_an_index(order, repeats=15, blocks=20):
    epoch = order.epoch(0)
    found = []
    for repeat in range(repeats):
        starts = [(repeat * blocks + block) * AHEAD for block in range(blocks)]
        began = time.perf_counter()
        for start in starts:
            epoch.at(start, start + AHEAD)
        found.append((time.perf_counter() - began) / blocks / AHEAD * 1e9)
    return median(found)[0]


def mixture(num_parts, num_samples, shuffle=True):
    parts = [MixedPart(f"p{number}", num_samples + number) for number in range(num_parts)]
    weights = tuple(Fraction(1 + number) for number in range(num_parts))
    return MixtureOrder(parts, [Weights(0, weights)], block=4000, num_picks=4 * LARGE, seed=42, shuffle=shuffle)


def main():
    print(machine())
    print(f"  uniform shuffle of {LARGE:.0e} samples: {ns_an_index(UniformOrder(LARGE, 42)):.1f} ns an index")
    met = [
        check("draws from 10^8 samples", ns_an_index(DrawnOrder(LARGE, LARGE, 42)), 25, at_least=False),
        check("draws from 2^62 samples", ns_an_index(DrawnOrder(2**62, LARGE, 42)), 25, at_least=False),
    ]
    for num_parts, num_samples, most in (
        (2, LARGE, 100),
        (8, LARGE, 150),
        (32, LARGE, 400),
        (2, 60_000, 150),  # exact shuffles of up to 65,536 samples are made anew for each pass, some 5 ms each
        (8, 60_000, 150),
        (8, 500, 120),
    ):
        name = f"mixture of {num_parts} parts of {num_samples:,}"
        met.append(check(name, ns_an_index(mixture(num_parts, num_samples)), most, at_least=False))
    in_order = ns_an_index(mixture(8, LARGE, shuffle=False))
    met.append(check("mixture of 8 parts in storage order", in_order, 60, at_least=False))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
