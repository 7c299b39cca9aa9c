"""Ranks: which samples a tier should hold first. A tier holds a range of them, so membership is arithmetic.

Where every sample comes once an epoch, no choice of samples is better than another, and the cheapest is a range in
storage order: a sample's rank is its index. Where some are drawn more often than others, those go first. Samples that
a process of the run never asks for have no rank (:mod:`flodl_pipe.staging.lane_ranking`).

Shape letters: ``K`` samples asked for, ``N`` samples, ``R`` of them with a rank, ``P`` parts.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt

from flodl_pipe.arrays import IndexArray

__all__ = ["ByParts", "ByWeight", "RankedPart", "Ranking", "Run", "StorageOrder", "require_samples"]


class Run(NamedTuple):
    """Consecutive samples."""

    first_sample: int
    num_samples: int


class Ranking(Protocol):
    """A bijection between samples of a source and the ranks ``0 .. R - 1``; mostly all samples, ``R = N``."""

    held_bytes: int
    """Memory that its tables take."""

    is_even: bool
    """Whether no sample is worth more than another, so that tiers may take ranges from both ends."""

    is_part: bool
    """Whether some samples have no rank. Theirs is ``R``, which no tier holds."""

    why: str
    """Which samples come first, and why, in words."""

    def __len__(self) -> int:
        """Return ``R``."""
        ...

    def ranks(self, indices: IndexArray) -> IndexArray:
        """Return the rank of samples, int64, shape ``(K,)``; what is no sample is refused, or has a rank that is none.

        A sample without a rank has ``R``.

        Raises:
            IndexError: if an index is not in ``[0, N)``, where that has to be looked at.
        """
        ...

    def samples(self, first_rank: int, last_rank: int) -> IndexArray:
        """Return the samples of the ranks ``first_rank .. last_rank - 1``, int64."""
        ...

    def runs(self, first_rank: int, last_rank: int) -> tuple[Run, ...] | None:
        """Return the same samples as a few runs, in order of rank; None where there is no such thing."""
        ...


@final
class StorageOrder:
    """A sample's rank is its index.

    >>> StorageOrder(9).samples(7, 9).tolist()
    [7, 8]
    """

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self.held_bytes = 0
        self.is_even, self.is_part = True, False
        self.why = "storage order: no sample is drawn more often than another"

    def __len__(self) -> int:
        return self._num_samples

    def ranks(self, indices: IndexArray) -> IndexArray:
        return indices

    def samples(self, first_rank: int, last_rank: int) -> IndexArray:
        return np.arange(first_rank, last_rank, dtype=np.int64)

    def runs(self, first_rank: int, last_rank: int) -> tuple[Run, ...] | None:
        return (Run(first_rank, last_rank - first_rank),) if last_rank > first_rank else ()


@final
class ByWeight:
    """Heaviest samples first, ties in storage order.

    Args:
        weights: How often each sample is drawn, in any unit; shape ``(N,)``.

    >>> ByWeight(np.array([1.0, 5.0, 1.0])).samples(0, 3).tolist()
    [1, 0, 2]
    """

    def __init__(self, weights: npt.ArrayLike) -> None:
        weights = np.asarray(weights)
        # As they are: made negative, unsigned and large integers would change their order.
        backward = np.argsort(weights[::-1], kind="stable")[::-1]
        dtype = np.int32 if len(weights) <= np.iinfo(np.int32).max else np.int64
        self._samples = (len(weights) - 1 - backward).astype(dtype)
        self._ranks = np.empty_like(self._samples)
        self._ranks[self._samples] = np.arange(len(weights), dtype=dtype)
        self.held_bytes = self._samples.nbytes + self._ranks.nbytes
        self.is_even = self.is_part = False
        self.why = "by weight: the heaviest samples are drawn most often"

    def __len__(self) -> int:
        return len(self._samples)

    def ranks(self, indices: IndexArray) -> IndexArray:
        require_samples(indices, len(self))
        return self._ranks.take(indices).astype(np.int64)

    def samples(self, first_rank: int, last_rank: int) -> IndexArray:
        return self._samples[first_rank:last_rank].astype(np.int64)

    def runs(self, first_rank: int, last_rank: int) -> tuple[Run, ...] | None:
        del first_rank, last_rank
        return None


class RankedPart(NamedTuple):
    """Consecutive samples that are drawn equally often.

    Attributes:
        first_sample: Its first sample.
        num_samples: How many.
        rate: How often each of them is drawn, in any unit.
    """

    first_sample: int
    num_samples: int
    rate: float


@final
class ByParts:
    """Parts by draw rate, highest first; ties, and the samples of a part, in storage order.

    Args:
        parts: In storage order, without gaps from sample 0 on; at least one.

    Raises:
        ValueError: if parts leave gaps or overlap.

    >>> ByParts([RankedPart(0, 3, 0.5), RankedPart(3, 2, 2.0)]).samples(0, 3).tolist()
    [3, 4, 0]
    """

    def __init__(self, parts: Sequence[RankedPart]) -> None:
        sizes = np.array([part.num_samples for part in parts], dtype=np.int64)
        ends: IndexArray = np.cumsum(sizes)
        begins = ends - sizes
        if not parts or begins.tolist() != [part.first_sample for part in parts]:
            raise ValueError(f"parts must follow each other from sample 0 on, got {list(parts)}")
        self._ends = ends
        ranked = sorted(range(len(parts)), key=lambda number: -parts[number].rate)
        self._ranked = [parts[number] for number in ranked]
        self._rank_ends: IndexArray = np.cumsum([part.num_samples for part in self._ranked], dtype=np.int64)
        self._rank_shifts: IndexArray = begins[ranked] - (self._rank_ends - sizes[ranked])
        self._shifts = np.empty_like(self._rank_shifts)
        self._shifts[ranked] = -self._rank_shifts
        self.held_bytes = 0  # a few words a part
        self.is_even = self.is_part = False
        self.why = "by draw rate of the parts, then storage order"

    def __len__(self) -> int:
        return int(self._ends[-1])

    def ranks(self, indices: IndexArray) -> IndexArray:
        require_samples(indices, len(self))
        ranks: IndexArray = indices + self._shifts[np.searchsorted(self._ends, indices, side="right")]
        return ranks

    def samples(self, first_rank: int, last_rank: int) -> IndexArray:
        ranks = np.arange(first_rank, last_rank, dtype=np.int64)
        ranks += self._rank_shifts[np.searchsorted(self._rank_ends, ranks, side="right")]
        return ranks

    def runs(self, first_rank: int, last_rank: int) -> tuple[Run, ...] | None:
        found: list[Run] = []
        for part, end in zip(self._ranked, self._rank_ends.tolist(), strict=True):
            begin = end - part.num_samples
            low, high = max(first_rank, begin), min(last_rank, end)
            if low >= high:
                continue
            run = Run(part.first_sample + low - begin, high - low)
            if found and sum(found[-1]) == run.first_sample:  # neighbours in storage too
                run = Run(found[-1].first_sample, found.pop().num_samples + run.num_samples)
            found.append(run)
        return tuple(found)


def require_samples(indices: IndexArray, num_samples: int) -> None:
    """Refuse what is no sample, in the words that sources use.

    Raises:
        IndexError: if an index is not in ``[0, num_samples)``.
    """
    # Seen as unsigned, a negative number is a huge one: one pass checks both ends.
    if len(indices) and int(indices.view(np.uint64).max()) >= num_samples:
        raise IndexError(f"samples {indices.min()} .. {indices.max()} are not all in 0 .. {num_samples - 1}")
