"""Shares: how many rows of a global batch each rank takes.

The global batch is cut *after* it is taken from the order, so which samples make up a step does not depend on how many
ranks there are. Shares are whole numbers by largest remainder: nobody is more than one row away from the exact ratio,
and they add up to the batch.
"""

from collections.abc import Sequence
from fractions import Fraction

__all__ = ["cut"]


def cut(num_rows: int, ratios: Sequence[int | Fraction], *, minimum: int = 0, unit: int = 1) -> tuple[int, ...]:
    """Split ``num_rows`` in proportion to ``ratios``.

    Args:
        num_rows: Rows of the step over all ranks, at least 0.
        ratios: One positive weight per rank, exact (integers or fractions).
        minimum: Least rows of a rank; what that takes is taken from the others in proportion. Where there are not
            enough rows for it, it does not count.
        unit: Rows that stay together, two for pairs: all shares but the last are multiples of it.

    Returns:
        Rows per rank; they sum to ``num_rows``. Left-over rows go to the largest remainders, lower ranks first.

    Raises:
        ValueError: if there is no ratio, or one is not positive.

    >>> cut(32, (1, 1, 1, 1)), cut(10, (3, 2, 1)), cut(2, (1, 1, 1))
    ((8, 8, 8, 8), (5, 3, 2), (1, 1, 0))
    >>> cut(16, (100, 1), minimum=1), cut(9, (1, 1), unit=2)
    ((15, 1), (4, 5))
    """
    if not ratios or min(ratios) <= 0:
        raise ValueError(f"ratios must be positive and at least one, got {tuple(ratios)}")
    if unit > 1:
        units = list(cut(num_rows // unit, ratios, minimum=-(-minimum // unit)))
        rows = [count * unit for count in units]
        rows[-1] += num_rows % unit
        return tuple(rows)
    shares = _largest_remainder(num_rows, ratios)
    if num_rows < minimum * len(ratios) or min(shares) >= minimum:
        return shares
    # Ranks below the minimum are given it; the others share what is left, in which more of them may fall below.
    low = {rank for rank, share in enumerate(shares) if share < minimum}
    others = [rank for rank in range(len(ratios)) if rank not in low]
    rest = cut(num_rows - minimum * len(low), [ratios[rank] for rank in others], minimum=minimum)
    by_rank = dict(zip(others, rest, strict=True))
    return tuple(by_rank.get(rank, minimum) for rank in range(len(ratios)))


def _largest_remainder(num_rows: int, ratios: Sequence[int | Fraction]) -> tuple[int, ...]:
    total = sum(ratios, Fraction(0))
    exact = [num_rows * Fraction(ratio) / total for ratio in ratios]
    rows = [int(value) for value in exact]
    by_remainder = sorted(range(len(rows)), key=lambda rank: (rows[rank] - exact[rank], rank))
    for rank in by_remainder[: num_rows - sum(rows)]:
        rows[rank] += 1
    return tuple(rows)
