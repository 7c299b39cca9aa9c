"""Who this process is among all: read from torch.distributed, the environment, and the layout of the config."""

import os
from collections.abc import Mapping
from typing import NamedTuple

import torch.distributed

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.cluster.host_facts import HostFacts, host_facts
from flodl_pipe.cluster.layout import Layout, Slot, ratios_for, require_world
from flodl_pipe.cluster.world import Member, World
from flodl_pipe.config.cluster import ClusterConfig
from flodl_pipe.errors import ClusterError
from flodl_pipe.sampling.share_plan import AutoShares

__all__ = ["Joined", "join"]


class Joined(NamedTuple):
    """This process in its place.

    Attributes:
        context: Rank, world size, shares, host.
        layout: The hosts that the config describes; None where it describes none.
        facts: What this host says of itself.
    """

    context: RunContext
    layout: Layout | None
    facts: HostFacts

    @property
    def slot(self) -> Slot | None:
        """This rank's place in the layout."""
        if self.layout is None or self.context.world is None:
            return None
        return self.layout.slot(self.context.host, self.context.local_rank)


def join(cluster: ClusterConfig) -> Joined:
    """Find this process's place. Ranks talk to each other here, so all of them must come.

    Raises:
        ClusterError: if torchrun started several processes and torch.distributed is not initialised; if ranks are
            missing after ``cluster.timeout_s``, or are not those of the layout; if LOCAL_RANK is no number.
    """
    facts = host_facts()
    world = _world(cluster, facts)
    layout = Layout.of(cluster)
    if world is None:
        require_world([Member(facts.name, 0)], cluster, layout)
        return Joined(RunContext(host=facts.name), layout, facts)
    require_world(world.members, cluster, layout)
    context = RunContext(
        world.rank,
        world.world_size,
        ratios_for(world.members, cluster, layout),
        host=facts.name,
        local_rank=world.members[world.rank].local_rank,
        co_hosted=world.co_hosted,
        world=world,
        shares=AutoShares(cluster.balance_every_steps, cluster.max_rows) if cluster.balance == "auto" else None,
        share_host_cache=cluster.share_host_cache,
    )
    return Joined(context, layout, facts)


def _world(cluster: ClusterConfig, facts: HostFacts) -> World | None:
    is_started = torch.distributed.is_available() and torch.distributed.is_initialized()
    if is_started and torch.distributed.get_world_size() > 1:
        return World.join(facts.name, _local_rank(os.environ), cluster.timeout_s)
    alone = RunContext.from_environment()
    if alone.world_size == 1:
        return None
    raise ClusterError(
        f"WORLD_SIZE={alone.world_size}, but torch.distributed is not initialised in this process; call "
        "torch.distributed.init_process_group() before the loader is built, or start one process without torchrun"
    )


def _local_rank(environment: Mapping[str, str]) -> int | None:
    """Return this process's number on its host; None where nobody gives it one."""
    text = environment.get("LOCAL_RANK")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise ClusterError(
            f"LOCAL_RANK={text!r} must be a whole number from 0 on, this process among those of its host; start the "
            "ranks with torchrun, which sets it, or unset it on all ranks to count them in order of global rank"
        )
    return int(text)
