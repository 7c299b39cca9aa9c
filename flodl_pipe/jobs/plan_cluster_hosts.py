"""The described hosts of a plan: what is said of each of them, and which are alike.

Thousands of hosts are a few kinds. Whatever is worked out for each rank, hosts next to each other for which it is the
same become one line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple, Self, TypeVar, final

from flodl_pipe.cluster.layout import Layout
from flodl_pipe.config.cluster import ClusterConfig
from flodl_pipe.errors import ConfigError

__all__ = ["Alike", "Places", "shown_lines"]

Number = TypeVar("Number", int, float)
Line = TypeVar("Line")

_MOST_LINES = 12


@final
class Alike(NamedTuple):
    """Hosts next to each other that are alike.

    Attributes:
        first_host: The first of them.
        num_hosts: How many.
        num_ranks: Ranks of one of them.
        first_rank: Rank of the first device of the first host.
        names: The first and the last host's name.
    """

    first_host: int
    num_hosts: int
    num_ranks: int
    first_rank: int
    names: str

    @property
    def ranks(self) -> range:
        """Ranks of the first host, which stand for those of the others."""
        return range(self.first_rank, self.first_rank + self.num_ranks)


@final
@dataclass(frozen=True)
class Places:
    """The described hosts and their ranks, in order of hosts as they are declared, then local rank.

    Attributes:
        layout: A place for each rank.
        entries: For each entry of ``cluster.hosts``: how many such hosts, and devices of one.
        entry_of: The entry of each host.
        starts: First rank of each host, and the number of ranks at the end.
    """

    layout: Layout
    entries: tuple[tuple[int, int], ...]
    entry_of: tuple[int, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, cluster: ClusterConfig) -> Self | None:
        """Return the places that a config describes; None where it describes no host."""
        layout = Layout.of(cluster)
        if layout is None:
            return None
        entries = tuple((host.count, host.num_devices) for host in cluster.hosts)
        entry_of = tuple(entry for entry, (count, _) in enumerate(entries) for _ in range(count))
        starts = tuple(accumulate((entries[entry][1] for entry in entry_of), initial=0))
        return cls(layout, entries, entry_of, starts)

    @property
    def num_hosts(self) -> int:
        """How many hosts there are."""
        return len(self.entry_of)

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return self.starts[-1]

    @property
    def ratios(self) -> tuple[Fraction, ...]:
        """How much each rank takes of a global batch."""
        return tuple(slot.ratio for slot in self.layout.slots)

    def ranks(self, host: int) -> range:
        """Return the ranks of a host."""
        return range(self.starts[host], self.starts[host + 1])

    def each_host(self, key: str, value: Number | list[Number] | None) -> tuple[Number, ...] | None:
        """Return a number for each host; None where nothing is said.

        Args:
            key: The key of section ``job`` that says it.
            value: A number for all, or a list with one for each entry of ``cluster.hosts`` or each host.

        Raises:
            ConfigError: if the list is of another length.
        """
        if not isinstance(value, list):
            return None if value is None else (value,) * self.num_hosts
        if len(value) == self.num_hosts:
            return tuple(value)
        if len(value) == len(self.entries):
            return tuple(value[entry] for entry in self.entry_of)
        raise self._wrong_length(key, value, {"entry": len(self.entries), "host": self.num_hosts})

    def each_rank(self, key: str, value: Number | list[Number] | None) -> tuple[Number, ...] | None:
        """Return a number for each rank; None where nothing is said.

        Args:
            key: The key of section ``job`` that says it.
            value: A number for all, or a list with one for each entry of ``cluster.hosts``, each device of the entries,
                or each rank.

        Raises:
            ConfigError: if the list is of another length.
        """
        if not isinstance(value, list):
            return None if value is None else (value,) * self.num_ranks
        if len(value) == self.num_ranks:
            return tuple(value)
        firsts = list(accumulate((devices for _, devices in self.entries), initial=0))
        if len(value) == firsts[-1]:
            parts = [value[first:end] for first, end in pairwise(firsts)]
        elif len(value) == len(self.entries):
            parts = [[one] * devices for one, (_, devices) in zip(value, self.entries, strict=True)]
        else:
            raise self._wrong_length(
                key, value, {"entry": len(self.entries), "device": firsts[-1], "rank": self.num_ranks}
            )
        return tuple(one for entry in self.entry_of for one in parts[entry])

    def _wrong_length(self, key: str, value: Sequence[float], known: Mapping[str, int]) -> ConfigError:
        words = {"entry": "for each entry of cluster.hosts", "device": "for each device of those"}
        lengths = {count: words.get(what, f"for each {what}") for what, count in reversed(list(known.items()))}
        ways = " or ".join(f"{count:,} ({what})" for count, what in sorted(lengths.items()))
        return ConfigError.at(
            f"job.{key}", f"must be one number, or a list of {ways}, in order; got a list of {len(value):,}"
        )

    def alike(self, *columns: Sequence[object], by_host: Sequence[Sequence[object]] = ()) -> list[Alike]:
        """Return the hosts, those next to each other together for which all that is said is the same.

        Args:
            columns: Something for each rank.
            by_host: Something for each host.
        """
        names, before = self.layout.hosts, None
        groups: list[list[int]] = []
        for host, entry in enumerate(self.entry_of):
            first, end = self.starts[host], self.starts[host + 1]
            said = (entry, [column[first:end] for column in columns], [column[host] for column in by_host])
            if groups and said == before:
                groups[-1][1] += 1
            else:
                groups.append([host, 1])
            before = said
        return [
            Alike(
                host,
                count,
                len(self.ranks(host)),
                self.starts[host],
                names[host] if count == 1 else f"{names[host]} .. {names[host + count - 1]}",
            )
            for host, count in groups
        ]


def shown_lines(lines: Sequence[Line], left_out: Line) -> list[Line]:
    """Return lines, and where they are too many the first ones, one that stands for the rest, and the last."""
    if len(lines) <= _MOST_LINES:
        return list(lines)
    return [*lines[: _MOST_LINES - 2], left_out, lines[-1]]
