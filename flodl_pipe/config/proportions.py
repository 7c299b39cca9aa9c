"""Exact proportions: numbers as they were written, and whole counts by largest remainder.

A weight of 0.7 means 7/10, not the binary number next to it, so that quotas do not depend on how a float is rounded.
Whole counts are at most one away from the exact ones and add up.
"""

from collections.abc import Sequence
from fractions import Fraction

__all__ = ["exact", "quotas", "smallest_block"]


def exact(number: float) -> Fraction:
    """Return the number that somebody wrote.

    >>> exact(0.7), exact(3), exact(0.125)
    (Fraction(7, 10), Fraction(3, 1), Fraction(1, 8))
    """
    return Fraction(repr(number))


def quotas(total: int, weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Split ``total`` in proportion to weights.

    Args:
        total: What is split, at least 0.
        weights: One weight per part, at least 0, not all 0.

    Returns:
        One whole number per part; they add up to ``total``. What is left over goes to the largest remainders, earlier
        parts first. A part of weight 0 gets nothing.

    Raises:
        ValueError: if there is no weight, one is negative, or all are 0.

    >>> quotas(10, [Fraction(1), Fraction(1), Fraction(1)]), quotas(1000, [exact(0.7), exact(0.3)])
    ((4, 3, 3), (700, 300))
    """
    whole = sum(weights, Fraction(0))
    if not weights or min(weights) < 0 or not whole:
        raise ValueError(f"weights must be at least 0 and not all 0, got {[str(weight) for weight in weights]}")
    shares = [total * weight / whole for weight in weights]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(counts)), key=lambda part: (counts[part] - shares[part], part))
    for part in by_remainder[: total - sum(counts)]:
        counts[part] += 1
    return tuple(counts)


def smallest_block(weights: Sequence[Fraction]) -> int:
    """Return a block in which every part with a weight above 0 certainly has a place.

    >>> smallest_block([exact(0.999), exact(0.001)])
    1000
    """
    return -(-sum(weights, Fraction(0)) // min(weight for weight in weights if weight))
