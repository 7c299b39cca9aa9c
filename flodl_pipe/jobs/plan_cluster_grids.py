"""Tables of a described cluster's plan: what tiers find and hosts read, how long steps take, who waits."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, final

from flodl_pipe.jobs.plan_cluster_data import ClusterData
from flodl_pipe.jobs.plan_cluster_hosts import Alike, shown_lines
from flodl_pipe.jobs.plan_cluster_shares import EpochRows, Pace
from flodl_pipe.jobs.plan_cluster_tiers import HostFinds, Way
from flodl_pipe.reports.figures import short_rate
from flodl_pipe.reports.tables import Grid
from flodl_pipe.units import format_bytes, format_duration

__all__ = ["Sharing", "idle_grid", "pace_grid", "rate_grid", "tier_grid", "volume_grid"]

TITLES: dict[Way, str] = {
    "own": "Uniform order, a RAM cache for each rank",
    "shared": "Uniform order, one RAM cache for each host",
    "lanes": "Lanes order",
}
"""How samples are kept, in words."""

Cells = tuple[str, ...]

_TO, _RUN = " .. ", " /"
_MOST_LETTERS, _FEW_LETTERS = 22, 16


@final
class Sharing(NamedTuple):
    """A way to share steps.

    Attributes:
        name: What it is called.
        short: The same in at most 6 letters.
        pace: How long ranks are busy.
        is_configured: Whether a run of this config would share so.
    """

    name: str
    short: str
    pace: Pace
    is_configured: bool


def volume_grid(epoch: EpochRows, groups: Sequence[Alike], row_bytes: int) -> Grid:
    """Return what each rank and host is delivered in an epoch, from wherever it comes."""
    rows = []
    for group in groups:
        of_rank = [epoch.of(rank) for rank in group.ranks]
        low, high = min(of_rank) * row_bytes, max(of_rank) * row_bytes
        a_rank = format_bytes(low)
        if format_bytes(high) != a_rank:
            a_rank = f"{a_rank} .. {format_bytes(high)}"
        total = sum(of_rank)
        rows.append((group.names, f"{total:,}", a_rank, format_bytes(total * row_bytes)))
    return Grid("Delivered in an epoch", ("hosts", "rows\na host", "a rank", "a host"), _lines(rows))


def tier_grid(way: Way, finds: Sequence[HostFinds], groups: Sequence[Alike], row_bytes: int, *, here: bool) -> Grid:
    """Return what tiers find and what hosts read under a way to keep samples.

    Args:
        way: The way.
        finds: What the ranks of each host find, for each group of hosts.
        groups: The groups.
        row_bytes: Bytes of a row.
        here: Whether a run of this config would keep samples so.
    """
    tiers = [name for name in ("pool", "ram", "disk") if any(getattr(one, name) > 0 for one in finds)]
    names = {"pool": "pool", "ram": "RAM", "disk": "disk"}
    split = tiers if len(tiers) > 1 else []
    header = (
        *("hosts", "first\n%", "then\n%", "end\n%"),
        *(f"{names[name]}\n%" for name in split),
        *("reads\nfirst", "reads\nend"),
    )
    rows = [
        (
            group.names,
            *(_percent(hits / one.rows) for hits in (one.first, one.second, one.end)),
            *(_percent(getattr(one, name) / one.rows) for name in split),
            *(_size(count * row_bytes) for count in (one.read_first, one.read_end)),
        )
        for group, one in zip(groups, finds, strict=True)
    ]
    letters = _MOST_LETTERS if len(split) < 3 else _FEW_LETTERS
    return Grid(f"{TITLES[way]}{_configured(here)}", header, _lines(rows, letters))


def pace_grid(sharings: Sequence[Sharing], num_steps: int | None) -> Grid:
    """Return how long steps take, and how much ranks wait, under several ways to share."""
    rows = tuple(
        (
            f"{one.name}{_configured(one.is_configured)}",
            format_duration(one.pace.step_s),
            _percent(one.pace.mean_idle),
            _percent(one.pace.most_idle),
            short_rate(sum(one.pace.rows) / one.pace.step_s),
            "?" if num_steps is None else format_duration(num_steps * one.pace.step_s),
        )
        for one in sharings
    )
    return Grid("Step", ("shares", "a step", "idle %\nmean", "idle %\nmost", "samples\na second", "an epoch"), rows)


def idle_grid(sharings: Sequence[Sharing], speeds: Sequence[float], groups: Sequence[Alike]) -> Grid:
    """Return how much each rank waits for the slowest, under several ways to share."""
    header = ["hosts", "samples\na second"]
    for one in sharings:
        header += [f"{one.short}\nrows", "idle\n%"]
    rows = []
    for group in groups:
        runs = list(_runs(group, speeds, *(one.pace.rows for one in sharings)))
        for first, last in runs:
            label = group.names if len(runs) == 1 else f"{group.names}{_RUN}{first}{f'-{last}' if last > first else ''}"
            rank = group.first_rank + first
            cells = [label, short_rate(speeds[rank])]
            for one in sharings:
                cells += [f"{one.pace.rows[rank]:,}", _percent(one.pace.idle(rank))]
            rows.append(tuple(cells))
    return Grid("Idle, waiting for the slowest rank", tuple(header), _lines(rows))


def rate_grid(
    by_way: Mapping[Way, Sequence[HostFinds]],
    groups: Sequence[Alike],
    data: ClusterData,
    rows: Sequence[int],
    step_s: float | None,
    stated: Sequence[int] | None,
) -> Grid:
    """Return what hosts must be able to read so that no rank waits; without a step's time, what they read in a step.

    Args:
        by_way: What the ranks of each host find, for each group of hosts; empty where that is not told.
        groups: The groups.
        data: The data.
        rows: Rows of a full step of each rank.
        step_s: Seconds of a step.
        stated: What each host can read, in bytes a second; None where that is not said.
    """
    per = step_s or 1.0
    words: dict[Way, str] = {"own": "end, own\ncaches", "shared": "end, one\na host", "lanes": "end,\nlanes"}
    header = ["hosts", "first\nepoch", *(words[way] for way in by_way)]
    if step_s is not None and stated is not None:
        header.append("can\nread")
    lines = []
    for at, group in enumerate(groups):
        num_bytes = sum(rows[rank] for rank in group.ranks) * data.row_bytes
        first = next((1 - finds[at].first / finds[at].rows for finds in by_way.values()), 1.0)
        parts = [first, *(finds[at].read_end / finds[at].rows for finds in by_way.values())]
        cells = [group.names, *(_size(num_bytes * part / per) for part in parts)]
        if step_s is not None and stated is not None:
            cells.append(_size(stated[group.first_host]))
        lines.append(tuple(cells))
    title = (
        "Bytes that each host reads in a step"
        if step_s is None
        else "Bytes a second that hosts read where no rank waits"
    )
    return Grid(title, tuple(header), _lines(lines))


def _lines(rows: Sequence[Cells], letters: int = _MOST_LETTERS) -> tuple[Cells, ...]:
    """Return the lines of a table: hosts that follow each other and look alike in one, and not too many."""
    merged: list[Cells] = []
    for _, alike in groupby(rows, key=lambda row: (row[1:], _RUN in row[0] and row[0])):
        same = list(alike)
        names = [same[0][0].split(_TO)[0], same[-1][0].split(_TO)[-1]] if len(same) > 1 else [same[0][0]]
        merged.append((_short(_TO.join(names), letters), *same[0][1:]))
    blank = ("...", *("" for _ in rows[0][1:]))
    return tuple(shown_lines(merged, blank))


def _short(names: str, letters: int) -> str:
    """Return names in at most so many letters, shortened in the middle."""
    half = (letters - 2) // 2
    return names if len(names) <= letters else f"{names[:half]}..{names[-half:]}"


def _runs(group: Alike, *columns: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Yield first and last local rank of those next to each other for which all is the same."""
    first = 0
    said = [tuple(column[rank] for column in columns) for rank in group.ranks]
    for rank in range(1, len(said) + 1):
        if rank == len(said) or said[rank] != said[first]:
            yield first, rank - 1
            first = rank


def _percent(part: float) -> str:
    return "<0.1" if 0 < part < 0.0005 else f"{100 * part:.1f}"


def _size(num_bytes: float) -> str:
    return format_bytes(num_bytes) if num_bytes >= 0.5 else "0"


def _configured(here: bool) -> str:
    return " (as configured)" if here else ""
