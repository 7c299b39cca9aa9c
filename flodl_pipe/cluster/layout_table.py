"""The ranks of a run as rows of a table: which host and device each has, and how much of a step it takes."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple, final

from flodl_pipe.cluster.layout import Layout
from flodl_pipe.reports.figures import plural, share
from flodl_pipe.sampling.shares import cut
from flodl_pipe.units import format_count

__all__ = ["layout_rows"]

MOST_RANKS = 32
"""Ranks that are listed one by one; of more, hosts that are alike are one row."""


@final
class _Host(NamedTuple):
    name: str
    first_rank: int
    last_rank: int
    devices: tuple[str, ...]
    rows: tuple[int, ...]
    ratios: tuple[Fraction, ...]

    def alike(self) -> tuple[object, ...]:
        return self.devices, self.ratios, self.last_rank - self.first_rank


def layout_rows(
    members: Sequence[tuple[str, int]],
    ratios: Sequence[int | Fraction],
    layout: Layout | None = None,
    global_batch: int | None = None,
    unit: int = 1,
) -> tuple[tuple[str, str], ...]:
    """Return a row for each rank, or for each run of hosts alike where there are many.

    Args:
        members: Host and local rank of each rank, by global rank. ``layout.members`` for one that nobody has joined.
        ratios: How much each takes.
        layout: The layout, which knows devices; None where no host is described.
        global_batch: Rows of a full step over all ranks; None where that is not known.
        unit: Rows that stay together.

    Returns:
        Pairs of name and value, as a section of a report takes them.

    >>> for row in layout_rows([("big", 0), ("big", 1), ("small", 0)], [3, 2, 1], global_batch=10):
    ...     print(*row, sep="   ")
    rank 0   big/0: 5 of 10 rows, 50.0 %
    rank 1   big/1: 3 of 10 rows, 30.0 %
    rank 2   small/0: 2 of 10 rows, 20.0 %
    """
    rows = () if global_batch is None else cut(global_batch, ratios, minimum=1, unit=unit)
    total = sum(map(Fraction, ratios), Fraction(0))
    devices = [_device(layout, *member) for member in members]
    if len(members) <= MOST_RANKS:
        return tuple(
            (
                f"rank {rank}",
                f"{host}/{local_rank}{f' on {device}' if device else ''}: {_part(rows, rank, ratios, total)}",
            )
            for rank, ((host, local_rank), device) in enumerate(zip(members, devices, strict=True))
        )
    return tuple(_compact(members, ratios, devices, rows, total))


def _device(layout: Layout | None, host: str, local_rank: int) -> str:
    return "" if layout is None else layout.slot(host, local_rank).device or ""


def _part(rows: Sequence[int], rank: int, ratios: Sequence[int | Fraction], total: Fraction) -> str:
    if not rows:
        return f"{share(float(ratios[rank]), float(total))} of a step"
    num_rows = sum(rows)
    return f"{format_count(rows[rank])} of {plural(num_rows, 'row')}, {share(rows[rank], num_rows)}"


def _compact(
    members: Sequence[tuple[str, int]],
    ratios: Sequence[int | Fraction],
    devices: Sequence[str],
    rows: Sequence[int],
    total: Fraction,
) -> Iterator[tuple[str, str]]:
    hosts = []
    for name, ranks in groupby(range(len(members)), lambda rank: members[rank][0]):
        span = list(ranks)
        first, last = span[0], span[-1]
        hosts.append(
            _Host(
                name,
                first,
                last,
                tuple(devices[first : last + 1]),
                tuple(rows[first : last + 1]),
                tuple(Fraction(ratio) for ratio in ratios[first : last + 1]),
            )
        )
    for _, group in groupby(hosts, _Host.alike):
        run = list(group)
        first_rank, last_rank = run[0].first_rank, run[-1].last_rank
        names = f"{run[0].name} .. {run[-1].name}" if len(run) > 1 else run[0].name
        each = [ratio for host in run for ratio in host.ratios]
        part = share(float(sum(each, Fraction(0))), float(total))
        counts = [count for host in run for count in host.rows]
        of_each = "" if not counts else f", {_span(counts)} each"
        ranks_of_host = last_rank - first_rank + 1 if len(run) == 1 else run[0].last_rank - run[0].first_rank + 1
        many = f"{plural(len(run), 'host')} of " if len(run) > 1 else ""
        yield (
            f"ranks {first_rank} .. {last_rank}",
            f"{names}: {many}{plural(ranks_of_host, 'rank')}{of_each}, together {part} of a step",
        )


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return plural(low, "row") if low == high else f"{format_count(low)} to {plural(high, 'row')}"
