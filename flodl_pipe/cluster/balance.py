"""The law by which shares follow the ranks' speeds. Pure: measured times in, rows per rank out.

Ranks of a synchronous step wait for the slowest, so the wall clock of a step is the same for all and tells nothing.
What counts is what a rank needs by itself: waiting for data, and computing until its last gradient is there
(:mod:`flodl_pipe.cluster.clock`). From seconds per row follows the share at which all would be ready at once::

    seconds per row   smoothed, the quicker the more they differ from what was expected (0.3 .. 0.8)
    step towards it   0.7 of the way, and no share changes by more than half
    dead band         a change that is expected to shorten the step by 3 % or less does not happen

Damping and dead band keep noise out: eight equal ranks with 5 % noise keep their shares, ranks of speeds 1:1:2 are
within 5 % of the optimum after 200 steps (50 between looks), tests/cluster/test_balance.py.

Numbers are float64 and rows are split exactly, so that all ranks come to the same from the same measurements.
"""

from collections.abc import Sequence
from typing import final

from flodl_pipe.sampling.share_plan import fit

__all__ = ["Balancer"]

_LEAST_WEIGHT, _MOST_WEIGHT = 0.3, 0.8
_GAIN = 0.7
_MOST_CHANGE = 0.5
_DEAD_BAND = 0.03


@final
class Balancer:
    """Shares that follow measured times.

    Args:
        most: Rows of a full step that each rank may get at most.
        unit: Rows that are never cut apart; every rank keeps as many at least.
        row_s: Seconds per row of each rank, where they are known already; empty: they are not.
    """

    def __init__(self, most: Sequence[int], *, unit: int = 1, row_s: Sequence[float] = ()) -> None:
        self._most = tuple(most)
        self._unit = unit
        self._row_s: list[float] | None = list(row_s) or None

    @property
    def row_s(self) -> tuple[float, ...]:
        """Seconds per row of each rank, as far as is known; empty before the first measurement."""
        return tuple(self._row_s or ())

    def predicted_s(self, rows: Sequence[int]) -> float:
        """Return how long a step with these shares is expected to take."""
        return max(share * row_s for share, row_s in zip(rows, self.row_s, strict=True))

    def update(self, seconds: Sequence[float], num_rows: Sequence[int], rows: Sequence[int]) -> tuple[int, ...]:
        """Take in what was measured, and return the shares to go on with: the present ones, or better ones.

        Args:
            seconds: Time that each rank took by itself, above 0.
            num_rows: Rows that it worked on in that time, at least 1.
            rows: Rows of a full step of each rank, as they were announced last.

        Returns:
            Rows of a full step of each rank; the same sum.
        """
        measured = [time_s / count for time_s, count in zip(seconds, num_rows, strict=True)]
        if self._row_s is None:
            self._row_s = measured
        else:
            self._row_s = [_smoothed(old, new) for old, new in zip(self._row_s, measured, strict=True)]
        total = sum(rows)
        speeds = [1.0 / row_s for row_s in self._row_s]
        best = [total * speed / sum(speeds) for speed in speeds]
        wanted = [share + _GAIN * (aim - share) for share, aim in zip(rows, best, strict=True)]
        shares = fit(
            wanted,
            total,
            least=[max(self._unit, int(share * (1 - _MOST_CHANGE))) for share in rows],
            most=[
                min(most, max(int(share * (1 + _MOST_CHANGE)), share + self._unit))
                for share, most in zip(rows, self._most, strict=True)
            ],
            unit=self._unit,
        )
        gain = 1.0 - self.predicted_s(shares) / self.predicted_s(rows)
        return shares if gain > _DEAD_BAND else tuple(rows)


def _smoothed(old: float, new: float) -> float:
    weight = max(_LEAST_WEIGHT, min(_MOST_WEIGHT, abs(new - old) / old))
    return old + weight * (new - old)
