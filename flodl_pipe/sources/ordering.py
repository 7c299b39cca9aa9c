"""Orders that belong to a source: what it asks of the loader where "every sample once an epoch" is not meant.

They are descriptions. The loader makes the order out of them (:mod:`flodl_pipe.sampling`), keyed by seed and epoch.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import final

__all__ = ["Drawn", "Mixed", "MixedPart", "Ordering", "Weights"]


@final
@dataclass(frozen=True)
class Drawn:
    """Samples are drawn uniformly with replacement.

    Attributes:
        num_picks: Draws of an epoch.
    """

    num_picks: int


@final
@dataclass(frozen=True)
class MixedPart:
    """One part of a mixture.

    Attributes:
        name: What the user calls it.
        num_samples: Its samples; in the joined index space the parts follow each other.
        drawn: Whether its samples are drawn with replacement, instead of each once before any comes again.
        max_epochs: How often each of its samples may come at most over the whole run; None: no limit.
    """

    name: str
    num_samples: int
    drawn: bool = False
    max_epochs: int | None = None


@final
@dataclass(frozen=True)
class Weights:
    """Weights that hold from a place of the run on.

    Attributes:
        at: Samples of the whole run before them, over all epochs.
        weights: One exact weight per part, at least 0, not all 0.
    """

    at: int
    weights: tuple[Fraction, ...]


@final
@dataclass(frozen=True)
class Mixed:
    """Parts in exact proportions.

    Attributes:
        parts: The parts, in the order of the joined index space.
        schedule: Weights over the run, ascending, the first at 0.
        block: Positions within which the proportions are exact.
        num_picks: Positions of an epoch.
    """

    parts: tuple[MixedPart, ...]
    schedule: tuple[Weights, ...]
    block: int
    num_picks: int


Ordering = Drawn | Mixed | None
"""What :attr:`flodl_pipe.sources.protocol.BundledSource.ordering` may be."""
