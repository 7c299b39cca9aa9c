"""Epoch orders: which pick stands at each position of an epoch, as a pure function.

An order is never stored and never advanced. Every process computes the same picks from ``(seed, epoch, position)``, so
ranks agree without talking, and a resumed run needs only the position it had reached. ``at(start, stop)`` costs
``O(stop - start)`` time and memory whatever the number of picks.

Shape letter: ``K`` positions asked for.
"""

from typing import Protocol, final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.keyed.permute import ALGORITHM, MAX_ITEMS, Permutation, permutation

__all__ = ["EpochOrder", "Order", "SequentialOrder", "UniformOrder", "samples_of"]

_SEEDS = range(1 << 64)


class EpochOrder(Protocol):
    """The order of one epoch: a bijection between positions and picks, both in ``[0, num_picks)``."""

    def at(self, start: int, stop: int) -> IndexArray:
        """Return the picks at positions ``start .. stop - 1``, int64, shape ``(stop - start,)``.

        Raises:
            ValueError: if the range does not lie within the epoch.
        """
        ...

    def pick(self, positions: IndexArray) -> IndexArray:
        """Return the pick at each position, int64, shape ``(K,)``; positions must lie in ``[0, num_picks)``."""
        ...

    def where(self, picks: IndexArray) -> IndexArray:
        """Return the position of each pick, int64, shape ``(K,)``."""
        ...


def samples_of(order: "Order", positions: IndexArray, picks: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Return sample and repeat of picks, each int64 of shape ``(K,)``.

    Args:
        order: The order that the picks come from.
        positions: Position of each pick in its epoch, int64, shape ``(K,)``.
        picks: The picks, int64, shape ``(K,)``.
    """
    if order.num_repeats is None:
        return picks, positions
    if order.num_repeats == 1:
        return picks, np.zeros_like(picks)
    samples, repeats = np.divmod(picks, order.num_repeats)
    return samples, repeats


class Order(Protocol):
    """A family of epoch orders."""

    num_picks: int
    """Positions in one epoch."""

    num_repeats: int | None
    """How often each sample comes in an epoch, ``k``: ``pick = sample * k + repeat``. None where a sample may come any
    number of times: a pick is then the sample itself, and its repeat is the position."""

    tag: str
    """Name, algorithm and constants: two orders with one tag are the same function. Part of every cursor."""

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch, counted from 0.

        Raises:
            ValueError: if ``epoch`` is not in ``0 .. 2**64 - 1``.
        """
        ...


def _check(num_picks: int) -> int:
    if not 1 <= num_picks <= MAX_ITEMS:
        raise ValueError(f"an order needs 1 to 2**62 picks, got {num_picks}")
    return num_picks


def _check_repeats(num_picks: int, num_repeats: int) -> int:
    if num_repeats < 1 or num_picks % num_repeats:
        raise ValueError(f"repeats must be at least 1 and divide the {num_picks} picks, got {num_repeats}")
    return num_repeats


def _check_range(start: int, stop: int, num_picks: int) -> None:
    if not 0 <= start <= stop <= num_picks:
        raise ValueError(f"positions {start} .. {stop} do not lie within the epoch of {num_picks} picks")


@final
class UniformOrder:
    """A fresh uniform shuffle every epoch, keyed by ``(seed, epoch)``.

    Args:
        num_picks: Picks in an epoch, ``1 <= num_picks <= 2**62``: samples times repeats.
        seed: Run seed, ``0 <= seed < 2**64``; held for the whole run.
        num_repeats: How often each sample comes in an epoch; divides ``num_picks``.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, num_picks: int, seed: int, *, num_repeats: int = 1) -> None:
        if seed not in _SEEDS:
            raise ValueError(f"seed must be in 0 .. 2**64 - 1, got {seed}")
        self.num_picks = _check(num_picks)
        self.num_repeats: int | None = _check_repeats(num_picks, num_repeats)
        self.seed = seed
        augmented = f" augment={num_repeats}" if num_repeats > 1 else ""
        self.tag = f"uniform {ALGORITHM} picks={num_picks}{augmented} seed={seed}"

    def epoch(self, epoch: int) -> EpochOrder:
        return _Shuffled(permutation(self.num_picks, self.seed, epoch))


@final
class _Shuffled:
    def __init__(self, shuffle: Permutation) -> None:
        self._shuffle = shuffle

    def at(self, start: int, stop: int) -> IndexArray:
        _check_range(start, stop, self._shuffle.n)
        return self._shuffle.at(np.arange(start, stop, dtype=np.int64))

    def pick(self, positions: IndexArray) -> IndexArray:
        return self._shuffle.at(positions)

    def where(self, picks: IndexArray) -> IndexArray:
        return self._shuffle.inverse(picks)


@final
class SequentialOrder:
    """Storage order, the same in every epoch; a sample's repeats follow each other.

    Args:
        num_picks: Picks in an epoch, ``1 <= num_picks <= 2**62``: samples times repeats.
        num_repeats: How often each sample comes in an epoch; divides ``num_picks``.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, num_picks: int, *, num_repeats: int = 1) -> None:
        self.num_picks = _check(num_picks)
        self.num_repeats: int | None = _check_repeats(num_picks, num_repeats)
        self.tag = f"sequential picks={num_picks}" + (f" augment={num_repeats}" if num_repeats > 1 else "")

    def epoch(self, epoch: int) -> EpochOrder:
        if epoch not in _SEEDS:
            raise ValueError(f"epoch must be in 0 .. 2**64 - 1, got {epoch}")
        return _Identity(self.num_picks)


@final
class _Identity:
    def __init__(self, num_picks: int) -> None:
        self._num_picks = num_picks

    def at(self, start: int, stop: int) -> IndexArray:
        _check_range(start, stop, self._num_picks)
        return np.arange(start, stop, dtype=np.int64)

    def pick(self, positions: IndexArray) -> IndexArray:
        return positions.copy()

    def where(self, picks: IndexArray) -> IndexArray:
        return picks.copy()
