"""Shares that change while a run goes on: how many rows of a full step each rank has, from which step on.

Steps are counted as they are handed out, in *ticks*; every rank hands out the same ones, so all count alike. Readers
are ahead of the loop, and what they have read must not be cut anew. A change is therefore announced some steps before
it holds, and readers plan no further than announcements can reach: ``lead_steps`` beyond what was handed out::

    tick 50             announced: from tick 100 on, 25 | 25 | 46 rows
    ticks 50 .. 99      as announced before; readers have planned no tick beyond 99
    tick 100            the new shares hold

Between two changes the rows of a full step are the same in every step, so that shapes are.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import final

from flodl_pipe.errors import ConfigError
from flodl_pipe.sampling.shares import cut

__all__ = ["AutoShares", "SharePlan", "fit", "most_rows", "rows_of", "text_of"]

_TIMES_FIRST_SHARE = 3


@final
@dataclass(frozen=True)
class AutoShares:
    """That shares follow the ranks' speeds, and how.

    Attributes:
        every_steps: Steps between two looks at the speeds, and from an announcement until it holds; at least 2.
        max_rows: Rows of a step that one rank may get at most; None: three times its first share.
    """

    every_steps: int = 50
    max_rows: int | None = None

    def __post_init__(self) -> None:
        if self.every_steps < 2 or (self.max_rows is not None and self.max_rows < 1):
            raise ValueError(f"every_steps must be at least 2 and max_rows at least 1, got {self}")


@final
class SharePlan:
    """Which shares hold from which tick on. Thread-safe.

    Args:
        rows: Rows of a full step of each rank at first.
        lead_steps: Steps from an announcement until it holds, at least 2.
        most: Rows of a full step that each rank may get at most.
        unit: Rows that are never cut apart.

    Raises:
        ValueError: if the numbers do not fit together.

    >>> plan = SharePlan((2, 2), lead_steps=2, most=(3, 3))
    >>> plan.announce(2, (3, 1))
    >>> plan.at(1), plan.tick, plan.advance(), plan.at(2)
    ((2, 2), 0, 1, (3, 1))
    """

    def __init__(self, rows: Sequence[int], *, lead_steps: int, most: Sequence[int], unit: int = 1) -> None:
        self.lead_steps = lead_steps
        self.most = tuple(most)
        self.unit = unit
        self.global_batch = sum(rows)
        self._lock = threading.Lock()
        self._tick = 0
        self._announced: list[tuple[int, tuple[int, ...]]] = [(0, tuple(rows))]
        self._listener: Callable[[], Callable[[int], None] | None] = lambda: None
        if lead_steps < 2:
            raise ValueError(f"lead_steps must be at least 2, got {lead_steps}")
        self._check(tuple(rows))

    @property
    def tick(self) -> int:
        """Steps that were handed out."""
        return self._tick

    @property
    def horizon(self) -> int:
        """First tick that must not be planned yet, for an announcement may still change it."""
        return self._tick + self.lead_steps

    @property
    def now(self) -> tuple[int, ...]:
        """Rows of each rank in the next full step to be handed out."""
        return self.at(self._tick)

    @property
    def announced(self) -> tuple[int, ...]:
        """The shares that were announced last."""
        return self._announced[-1][1]

    def at(self, tick: int) -> tuple[int, ...]:
        """Return the rows of a full step of each rank, at a tick.

        Raises:
            ValueError: if the tick lies at or beyond the horizon.
        """
        with self._lock:
            if tick >= self._tick + self.lead_steps:
                raise ValueError(f"shares of tick {tick} are not settled at tick {self._tick}: a defect of flodl_pipe")
            return next((rows for begin, rows in reversed(self._announced) if begin <= tick), self._announced[0][1])

    def announce(self, from_tick: int, rows: Sequence[int]) -> None:
        """Let other shares hold from a tick on.

        Args:
            from_tick: At least the horizon, and no earlier than what was announced before.
            rows: Rows of a full step of each rank: as many ranks, the same sum, within the bounds.

        Raises:
            ValueError: if they are not.
        """
        rows = tuple(rows)
        self._check(rows)
        with self._lock:
            if from_tick < max(self._tick + self.lead_steps, self._announced[-1][0]):
                raise ValueError(
                    f"shares from tick {from_tick} on come too late at tick {self._tick}: readers are up to "
                    f"{self.lead_steps} steps ahead, and the last announcement is from {self._announced[-1][0]} on"
                )
            if rows != self._announced[-1][1]:
                self._announced.append((from_tick, rows))

    def advance(self) -> int:
        """Note that a step was handed out; return how many were."""
        with self._lock:
            self._tick += 1
            tick, listener = self._tick, self._listener()
        if listener is not None:
            listener(tick)
        return tick

    def restart(self, rows: Sequence[int]) -> None:
        """Count from 0 again, with these shares. No pass may be under way.

        Raises:
            ValueError: if they do not fit.
        """
        self._check(tuple(rows))
        with self._lock:
            self._tick = 0
            self._announced = [(0, tuple(rows))]

    def like(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Return shares of this global batch in the proportions of others, as far as the bounds allow."""
        return fit(rows, self.global_batch, least=(self.unit,) * len(self.most), most=self.most, unit=self.unit)

    def on_advance(self, listener: Callable[[], Callable[[int], None] | None]) -> None:
        """Call what this weak reference leads to with the tick after each step, instead of the listener before."""
        self._listener = listener

    def _check(self, rows: tuple[int, ...]) -> None:
        fits = len(rows) == len(self.most) and sum(rows) == self.global_batch and min(rows) >= self.unit
        whole = all(share % self.unit == 0 for share in rows[:-1])
        if not (fits and whole and all(share <= most for share, most in zip(rows, self.most, strict=True))):
            raise ValueError(
                f"shares {rows} must be one for each of {len(self.most)} ranks, sum to {self.global_batch}, be "
                f"multiples of {self.unit} but for the last, and lie between {self.unit} and {self.most}"
            )


def most_rows(first: Sequence[int], *, unit: int = 1, max_rows: int | None = None) -> tuple[int, ...]:
    """Return how many rows of a full step each rank may get at most.

    Args:
        first: Its rows at first.
        unit: Rows that are never cut apart; every rank has as many at least.
        max_rows: The bound that the config has; None: three times the first share.

    Raises:
        ConfigError: at ``cluster.max_rows``, if a first share is larger.

    >>> most_rows((8, 8)), most_rows((8, 8, 8, 8), max_rows=12)
    ((15, 15), (12, 12, 12, 12))
    """
    if max_rows is not None and max_rows < max(first):
        raise ConfigError.at(
            "cluster.max_rows",
            f"{max_rows} rows are fewer than the first share of rank {first.index(max(first))}, {max(first)} of "
            f"{sum(first)}; raise it to {max(first)} or more, lower loader.global_batch_size, or set "
            "cluster.partition_ratios",
        )
    room = sum(first) - unit * (len(first) - 1)
    return tuple(max(share, min(max_rows or _TIMES_FIRST_SHARE * share, room)) for share in first)


def fit(
    wanted: Sequence[float | Fraction], num_rows: int, *, least: Sequence[int], most: Sequence[int], unit: int = 1
) -> tuple[int, ...]:
    """Split rows in proportion to what is wanted, within bounds, by largest remainder; exact, so alike everywhere.

    Args:
        wanted: How much each rank should have, above 0, in any unit.
        num_rows: Rows of the step over all ranks.
        least: Least rows of each rank.
        most: Most rows of each rank; with ``least`` they must leave room for ``num_rows``.
        unit: Rows that stay together: all shares but the last are multiples of it.

    Returns:
        Rows per rank; they sum to ``num_rows``.

    Raises:
        ValueError: if the bounds leave no room.

    >>> fit((1, 1, 6), 16, least=(1, 1, 1), most=(9, 9, 9))
    (4, 3, 9)
    """
    rest = num_rows % unit
    low = [-(-value // unit) for value in least]
    high = [value // unit for value in most]
    low[-1], high[-1] = max(0, -(-(least[-1] - rest) // unit)), (most[-1] - rest) // unit
    units = num_rows // unit
    if sum(low) > units or sum(high) < units or any(a > b for a, b in zip(low, high, strict=True)):
        raise ValueError(f"{num_rows} rows do not fit between {tuple(least)} and {tuple(most)} in units of {unit}")
    weights = [Fraction(value) for value in wanted]
    fixed: dict[int, int] = {}
    while len(fixed) < len(weights):
        free = [rank for rank in range(len(weights)) if rank not in fixed]
        left = units - sum(fixed.values())
        total = sum((weights[rank] for rank in free), Fraction(0))
        exact = {rank: left * weights[rank] / total for rank in free}
        short = {rank: low[rank] for rank in free if exact[rank] < low[rank]}
        over = {rank: high[rank] for rank in free if exact[rank] > high[rank]}
        lacking = sum((bound - exact[rank] for rank, bound in short.items()), Fraction(0))
        beyond = sum((exact[rank] - bound for rank, bound in over.items()), Fraction(0))
        if not short and not over:
            fixed.update(zip(free, cut(left, [weights[rank] for rank in free]), strict=True))
        else:  # those who weigh more are held at their bound, and the others share what that leaves
            fixed.update(short if lacking >= beyond else over)
    rows = [fixed[rank] * unit for rank in range(len(weights))]
    rows[-1] += rest
    return tuple(rows)


def text_of(rows: Sequence[int], names: Sequence[str]) -> str:
    """Return shares as one line, keyed by the ranks' names.

    >>> text_of((25, 46), ("a/0", "b/0"))
    'a/0=25 b/0=46'
    """
    return " ".join(sorted(f"{name}={share}" for name, share in zip(names, rows, strict=True)))


def rows_of(text: str, names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the shares of a line, in the order of these names; None if it is not about the same ranks.

    >>> rows_of("a/0=25 b/0=46", ("b/0", "a/0")), rows_of("a/0=71", ("a/0", "b/0"))
    ((46, 25), None)
    """
    found = dict(_entries(text))
    if set(found) != set(names) or len(names) != len(set(names)) or min(found.values(), default=0) < 1:
        return None
    return tuple(found[name] for name in names)


def _entries(text: str) -> Iterator[tuple[str, int]]:
    for entry in text.split():
        name, _, share = entry.rpartition("=")
        yield name, int(share) if share.isdecimal() and len(share) < 20 else 0
