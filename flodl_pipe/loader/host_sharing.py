"""One RAM cache for the ranks of a host: who keeps it, how large it is, and how its memory comes to them.

Under a uniform order every rank comes to ask for every sample, so what one of a host has read serves all of it. While
a loader is built, all ranks of the run meet three times::

    each rank tells how much it may hold, and what its samples are   -->  the same arithmetic on all: K samples together
    the first of a host has made memory, the others have a line to it?    -->  it is handed over
    each rank has it?                                                     -->  all of a host use it, or none

A rank that cannot be built comes to the first meeting all the same, and says why; and nothing is handed over before
all have said that they are there. So nobody waits for a rank that has failed.
"""

import contextlib
import logging
import os
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.errors import ClusterError, SourceError
from flodl_pipe.loader.host_joining import Joining, SharedTier
from flodl_pipe.loader.outline import Outline
from flodl_pipe.loader.resident import resident_bytes
from flodl_pipe.loader.tiers import TierPlan
from flodl_pipe.sources.protocol import RaggedSource
from flodl_pipe.staging.ram_cache import shared_bytes
from flodl_pipe.staging.shared_handover import Listener
from flodl_pipe.units import format_bytes

if TYPE_CHECKING:
    from flodl_pipe.cluster.world import World

__all__ = ["HostMeeting", "why_not_together"]

_log = logging.getLogger("flodl_pipe")

# A set that is this small is kept by each rank for itself, whole: it is gathered from faster then, field by field.
_OWN_SET_BYTES = 256 << 20
# By which process a world was used first. In a fork of it, which has no connections of its own, nobody meets.
_used_by: "weakref.WeakKeyDictionary[World, int]" = weakref.WeakKeyDictionary()


@final
class HostMeeting:
    """The ranks of a run, while each of them builds a loader; all must do so.

    Args:
        context: Rank and world.
        why_not: Why no rank of the run keeps samples together, whatever the source.
    """

    def __init__(self, context: RunContext, *, why_not: str | None) -> None:
        self._context = context
        self._why_not = why_not if context.share_host_cache else "cluster.share_host_cache=false"
        self._world = context.world
        if self._world is not None and _used_by.setdefault(self._world, os.getpid()) != os.getpid():
            self._world = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._world is None or not isinstance(error, Exception):
            return
        with contextlib.suppress(ClusterError):  # its own error tells more
            self._gather({"error": f"{type(error).__name__}: {error}"})

    def share(self, outline: Outline, config: LoaderConfig, taken_bytes: int) -> SharedTier | None:
        """Keep a RAM cache together with the other ranks of this host, if they will; all ranks of the run must come.

        Args:
            outline: This rank's loader on paper.
            config: Section ``loader``.
            taken_bytes: Host memory that something else has taken since then.

        Raises:
            ClusterError: if a rank could not be built, or samples are not the same on the ranks of a host.
        """
        world = self._world
        if world is None:
            return None
        own = outline.tiers_together(taken_bytes, None)
        off = self._why_not or _off(outline, own, config)
        offer: dict[str, Any] = {"off": off, "room": own.room_bytes or 0, "token": ""}
        with ExitStack() as until_met:
            listener = None
            if off is None:
                offer["facts"] = _facts(outline, own)
                try:
                    listener = until_met.enter_context(Listener())
                    offer["token"] = listener.token
                except OSError as error:
                    offer["refused"] = str(error)
            offers = self._gather(offer)
            self._require_built(offers)
            hosts = _hosts(world)
            groups = {host: [rank for rank in ranks if offers[rank]["off"] is None] for host, ranks in hosts.items()}
            for group in groups.values():
                self._require_same(offers, group)
            if all(len(group) < 2 for group in groups.values()):
                self._tell_off(offers, hosts)
                return None
            mine = groups[world.members[world.rank].host]
            joining = None
            if len(mine) > 1 and world.rank in mine:
                tiers = partial(outline.tiers_together, taken_bytes)
                joining = Joining(outline.source, tiers, offers, mine, world.rank, listener)
                until_met.callback(joining.close)
            answers = world.gather(_tried(joining, Joining.prepare), "the memory of the host's RAM cache")
            if joining is not None and not _refusals(answers, mine):
                answers = world.gather(_tried(joining, Joining.take), "the RAM cache of the host")
            else:
                world.gather({}, "the RAM cache of the host")
        return None if joining is None else self._settle(answers, mine, joining)

    def _gather(self, offer: dict[str, Any]) -> list[dict[str, Any]]:
        world, self._world = self._world, None  # whatever comes of it, it happens once
        assert world is not None
        found = world.gather(offer, "building the loader")
        # A rank that never came so far tells the reason in words, in a place further on (see ``cluster.agree``).
        return [one if isinstance(one, dict) else {"error": one or "it has built none"} for one in found]

    def _settle(
        self, answers: Sequence[Mapping[str, Any]], group: Sequence[int], joining: Joining
    ) -> SharedTier | None:
        """Return the cache if every rank of the host has it."""
        refused = _refusals(answers, group)
        is_first = self._context.rank == group[0]
        if refused:
            if is_first:
                _log.warning(
                    "the %d ranks of this host keep a RAM cache each, not one together: %s; what they hold of the set "
                    "is less by that",
                    *(len(group), "; ".join(f"rank {rank}: {why}" for rank, why in refused.items())),
                )
            return None
        ranges = {rank: tuple(answers[rank]["range"]) for rank in group}
        if len(set(ranges.values())) > 1:
            raise ClusterError(f"the ranks of a host must keep the same samples together, got {ranges}")
        assert joining.found is not None
        if is_first:
            _log.info("RAM cache: %s", joining.found.why)
        return joining.found

    def _require_built(self, offers: Sequence[Mapping[str, Any]]) -> None:
        world = self._context.world
        assert world is not None
        failed = [f"{world.name(rank)}: {offer['error']}" for rank, offer in enumerate(offers) if "error" in offer]
        if failed:
            raise ClusterError(f"a loader could not be built on all ranks: {'; '.join(failed)}")

    def _require_same(self, offers: Sequence[Mapping[str, Any]], group: Sequence[int]) -> None:
        """Refuse samples that are not the same on all ranks of a host: the others would take what one keeps for theirs.

        Raises:
            ClusterError: naming ranks and values, the odd ones out first.
        """
        world = self._context.world
        assert world is not None
        for name in {name: None for rank in group for name in offers[rank]["facts"]}:
            values = {rank: str(offers[rank]["facts"].get(name)) for rank in group}
            counts = Counter(values.values())
            if len(counts) > 1:
                told = [
                    f"{value} on {', '.join(world.name(rank) for rank in group if values[rank] == value)}"
                    for value, _ in sorted(counts.items(), key=lambda item: (item[1], item[0]))
                ]
                raise ClusterError(
                    f"the ranks of a host keep samples together, and must have the same: {name} is "
                    f"{'; '.join(told)}. Give all ranks the same data and config, or set "
                    "cluster.share_host_cache=false"
                )

    def _tell_off(self, offers: Sequence[Mapping[str, Any]], hosts: Mapping[str, Sequence[int]]) -> None:
        for ranks in hosts.values():
            if len(ranks) > 1 and ranks[0] == self._context.rank:
                why = offers[ranks[0]]["off"] or "other ranks of this host keep nothing in it"
                _log.info("RAM cache: each of the %d ranks of this host keeps its own: %s", len(ranks), why)


def _tried(joining: Joining | None, step: Callable[[Joining], dict[str, Any]]) -> dict[str, Any]:
    """Return what to tell the others of a step; all of the host must hear of it, whatever goes wrong."""
    if joining is None:
        return {}
    try:
        return step(joining)
    except Exception as error:  # noqa: BLE001 - it is told by the first rank of the host
        return {"refused": f"{error}"}


def _refusals(answers: Sequence[Mapping[str, Any]], group: Sequence[int]) -> dict[int, str]:
    return {rank: answers[rank]["refused"] for rank in group if "refused" in answers[rank]}


def why_not_together(sampling: SamplingConfig) -> str | None:
    """Return why the ranks of a host have no use for each other's samples; None where they do."""
    # A rank of this order never asks for another one's samples.
    return "each rank has samples of its own (sampling.order=lanes)" if sampling.order == "lanes" else None


def _hosts(world: "World") -> dict[str, list[int]]:
    """Return the ranks of each host, in order of local rank."""
    hosts: dict[str, list[int]] = {}
    for rank in sorted(range(world.world_size), key=lambda rank: world.members[rank].local_rank):
        hosts.setdefault(world.members[rank].host, []).append(rank)
    return hosts


def _off(outline: Outline, own: TierPlan, config: LoaderConfig) -> str | None:
    """Return why this rank keeps samples for itself; None if it may keep them with others."""
    source, plan = outline.source, outline.plan
    if isinstance(source, RaggedSource) and source.spec.is_ragged:
        return "its samples differ in length"
    if config.mode == "resident" and outline.device is None:
        return "loader.mode=resident: the whole set is in the memory of each"
    if own.room_bytes is None:
        return own.ram.why
    if plan.resident_bytes or own.ram.is_whole:
        size = resident_bytes(source)
        if size <= _OWN_SET_BYTES:
            return f"the whole set takes no more than {format_bytes(size)}"
    return None


def _facts(outline: Outline, own: TierPlan) -> dict[str, str]:
    """Return what must be the same for all who keep samples together."""
    source = outline.source
    try:
        data = outline.stream.fingerprint
    except SourceError:  # a dataset that says nothing of its content
        data = "unknown"
    extents = shared_bytes(source, own.ranking)
    fields = ", ".join(f"{field.name} {field.dtype} {list(field.shape)}" for field in source.spec)
    return {
        "the number of samples": f"{len(source):,}",
        "a sample": f"{source.spec.row_bytes:,} bytes ({fields})",
        "the data": data,
        "the order": outline.stream.order_tag,
        "what is kept": "rows" if extents is None else f"{extents.num_bytes:,} bytes that samples share",
        "what is kept first": own.ranking.why,
    }
