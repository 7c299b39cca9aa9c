"""The hosts that a config describes, as places for ranks, and the ranks that came, held against them.

Everything belongs to (host, local rank). A global rank says nothing: the rendezvous deals them, and may deal them
otherwise after a restart.
"""

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, Self, final

from flodl_pipe.config.cluster import ClusterConfig
from flodl_pipe.config.cluster_host import ANY_HOST
from flodl_pipe.errors import ClusterError

__all__ = ["Layout", "Slot", "exact", "ratios_for", "require_world"]

_MOST_NAMED = 8


@final
class Slot(NamedTuple):
    """The place of one rank.

    Attributes:
        host: Name of its host.
        local_rank: Which of its host's ranks.
        device: Its device, such as ``cuda:1``; None where the config says only how many there are.
        ratio: How much of a global batch it takes, in proportion to the others' ratios.
        gpu_ram_share: Share of the host's memory that an integrated GPU may take; None where nobody says.
        data_dir: Folder of data sets on that host; None: that of the recipe.
    """

    host: str
    local_rank: int
    device: str | None
    ratio: Fraction
    gpu_ram_share: float | None
    data_dir: str | None


@final
@dataclass(frozen=True)
class Layout:
    """The described hosts.

    Attributes:
        slots: A place for each rank, in order of hosts as they are declared, then local rank.
        min_hosts: How many of the hosts are enough.
    """

    slots: tuple[Slot, ...]
    min_hosts: int
    _of_host: dict[str, tuple[Slot, ...]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        of_host: dict[str, list[Slot]] = {}
        for slot in self.slots:
            of_host.setdefault(slot.host, []).append(slot)
        object.__setattr__(self, "_of_host", {host: tuple(slots) for host, slots in of_host.items()})

    @classmethod
    def of(cls, cluster: ClusterConfig) -> Self | None:
        """Return the layout that a config describes; None where it describes no host. 65,536 ranks take 0.2 s."""
        if not cluster.hosts:
            return None
        slots: list[Slot] = []
        for host in cluster.hosts:
            share = cluster.gpu_ram_share if host.gpu_ram_share is None else host.gpu_ram_share
            ratios = [exact(ratio) for ratio in host.ratios or [1] * host.num_devices]
            places = list(zip(range(host.num_devices), host.device_names, ratios, strict=True))
            slots += [Slot(name, *place, share, host.data_dir) for name in host.names() for place in places]
        if cluster.partition_ratios is not None:
            pairs = zip(slots, cluster.partition_ratios, strict=True)
            slots = [slot._replace(ratio=exact(ratio)) for slot, ratio in pairs]
        return cls(tuple(slots), cluster.rendezvous.min_hosts or cluster.num_hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts, in order."""
        return tuple(self._of_host)

    @property
    def members(self) -> tuple[tuple[str, int], ...]:
        """Host and local rank of each place."""
        return tuple((slot.host, slot.local_rank) for slot in self.slots)

    def slot(self, host: str, local_rank: int) -> Slot:
        """Return the place of a rank.

        Raises:
            ClusterError: if there is no such host, or it has fewer devices.
        """
        slots = self._slots(host)
        if slots is None:
            raise ClusterError(self._no_host(host))
        if not 0 <= local_rank < len(slots):
            raise ClusterError(
                f"LOCAL_RANK {local_rank} is beyond the {_count(len(slots), 'device')} of host {host} in "
                f"cluster.hosts; start {_count(len(slots), 'rank')} there (--nproc-per-node {len(slots)}), or describe "
                f"its other devices too"
            )
        return slots[local_rank]

    def _slots(self, host: str) -> tuple[Slot, ...] | None:
        return self._of_host.get(ANY_HOST) or self._of_host.get(host)

    def _no_host(self, host: str) -> str:
        near = [name for name in self._of_host if name.partition(".")[0].lower() == host.partition(".")[0].lower()]
        near = near or difflib.get_close_matches(host, self._of_host, n=1, cutoff=0.6)
        name = near[0] if near else "NAME"
        hint = f" Did you mean {name!r}?" if near else ""
        return (
            f"host {host!r} is not among those of cluster.hosts: {_named(self.hosts)}.{hint} Set "
            f"FLODL_PIPE_HOST={name} there to say which of them it is, or describe it in cluster.hosts"
        )


def exact(ratio: float) -> Fraction:
    """Return a ratio as the number that its decimal digits say, not as the binary one close to it.

    >>> exact(0.1), exact(3)
    (Fraction(1, 10), Fraction(3, 1))
    """
    return Fraction(str(ratio))


def require_world(members: Sequence[tuple[str, int]], cluster: ClusterConfig, layout: Layout | None) -> None:
    """Refuse ranks that are not those of the config. Says the same on every rank, as all of them know all.

    Args:
        members: Host and local rank of each rank, by global rank.
        cluster: The config.
        layout: Its layout.

    Raises:
        ClusterError: if two ranks call themselves alike; if hosts or ranks are not those that are described (while
            fewer hosts than ``rendezvous.min_hosts`` came), or are not as many as ``partition_ratios``.
    """
    twice = [member for member, count in Counter(members).items() if count > 1]
    if twice:
        host, local_rank = twice[0]
        ranks = [str(rank) for rank, member in enumerate(members) if member == twice[0]]
        raise ClusterError(
            f"ranks {', '.join(ranks)} all say that they are {host}/{local_rank}, local rank {local_rank} of host "
            f"{host}; set FLODL_PIPE_HOST to a name of its own on every host"
        )
    if layout is not None:
        _require_layout(members, layout)
    elif cluster.partition_ratios is not None and len(cluster.partition_ratios) != len(members):
        raise ClusterError(
            f"cluster.partition_ratios has {len(cluster.partition_ratios)} numbers, and there are "
            f"{_count(len(members), 'rank')}; give one for each rank, start {len(cluster.partition_ratios)} ranks, or "
            "describe the hosts in cluster.hosts with ratios of their own, where hosts may come and go"
        )


def _require_layout(members: Sequence[tuple[str, int]], layout: Layout) -> None:
    came = dict.fromkeys(host for host, _ in members)
    if layout.hosts == (ANY_HOST,) and len(came) > 1:
        raise ClusterError(
            f"cluster.hosts describes one host, {ANY_HOST}, and ranks came from {len(came)}: {_named(tuple(came))}; "
            "describe each host by its name"
        )
    found = [layout.slot(host, local_rank) for host, local_rank in members]
    hosts = dict.fromkeys(slot.host for slot in found)
    here = {(slot.host, slot.local_rank) for slot in found}
    is_elastic = layout.min_hosts < len(layout.hosts)
    # A host that came must have come whole: its shares were measured, or chosen, for all of its devices.
    missing = [
        slot
        for slot in layout.slots
        if (slot.host, slot.local_rank) not in here and (slot.host in hosts or not is_elastic)
    ]
    if missing:
        names = _named([f"{slot.host}/{slot.local_rank}" for slot in missing])
        absent = [host for host in layout.hosts if host not in hosts]
        remedy = (
            "or set cluster.rendezvous.min_hosts if fewer hosts are enough"
            if absent and not is_elastic
            else ("or describe as many devices as there are ranks")
        )
        raise ClusterError(
            f"{_count(len(members), 'rank')}, but cluster.hosts describes {len(layout.slots)}; missing: {names} "
            f"(host/local rank). Start one rank for each device of a host (torchrun --nproc-per-node, or job=launch), "
            f"{remedy}, or take no layout, cluster=single"
        )
    if len(hosts) < layout.min_hosts:
        raise ClusterError(
            f"{_count(len(hosts), 'host')} came ({_named(tuple(hosts))}), and cluster.rendezvous.min_hosts is "
            f"{layout.min_hosts}; start more of {_named(layout.hosts)}, or lower it"
        )


def ratios_for(
    members: Sequence[tuple[str, int]], cluster: ClusterConfig, layout: Layout | None
) -> tuple[Fraction, ...]:
    """Return how much each rank takes, by global rank.

    Without described hosts ``partition_ratios`` belong to the ranks in order of their hosts' names (``node2`` before
    ``node10``) and local ranks.

    Args:
        members: Host and local rank of each rank, by global rank.
        cluster: The config.
        layout: Its layout.

    Raises:
        ClusterError: if the ranks are not those of the config.
    """
    if layout is not None:
        return tuple(layout.slot(host, local_rank).ratio for host, local_rank in members)
    if cluster.partition_ratios is None:
        return (Fraction(1),) * len(members)
    require_world(members, cluster, None)
    in_order = sorted(members, key=lambda member: (_natural(member[0]), member[1]))
    by_member = dict(zip(in_order, map(exact, cluster.partition_ratios), strict=True))
    return tuple(by_member[member] for member in members)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which numbers in names count as numbers; the name itself decides between ``a1`` and ``a01``."""
    parts = [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
    return [*parts, (-2, name)]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
