"""Section ``cluster``: the hosts of a run, how much each of their devices takes, and how they find each other."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from flodl_pipe.config.base import Count, NonNegative, StrictModel, fault, shown
from flodl_pipe.config.cluster_host import ANY_HOST, GpuRamShare, HostConfig, Ratios, compared, matching

__all__ = ["ClusterConfig", "RendezvousConfig"]

_RUN_ID = r"[A-Za-z0-9._-]{1,128}"

MAX_RANKS = 65_536
"""Most ranks that may be described."""


class RendezvousConfig(StrictModel):
    """How the hosts find each other, for the commands that `job=launch` prints and runs."""

    backend: Literal["c10d", "static"] = "c10d"
    """c10d: hosts may come, go and come back; static: all must be there."""

    port: Annotated[int, Field(ge=1, le=65535)] = 29400
    """Port of the first host."""

    id: Annotated[str, matching(_RUN_ID, "must be of letters, digits, '.', '-' and '_', at most 128")] | None = None
    """Name of the run, the same on all hosts; null: made from the command."""

    min_hosts: Count | None = None
    """Hosts that are enough to go on with; null: all."""

    max_restarts: NonNegative = 3
    """How often ranks that failed are started again."""

    join_timeout_s: Annotated[int, Field(ge=1)] = 900
    """How long a host waits for the others."""


class ClusterConfig(StrictModel):
    """The hosts of a run. Which samples make up a step does not depend on any of it."""

    hosts: list[HostConfig] = Field(default=[])
    """The hosts; the first one is where they meet. Empty: whatever torchrun starts, in equal shares."""

    gpu_ram_share: GpuRamShare | None = None
    """Share of host memory that integrated GPUs may take, for hosts that do not say."""

    partition_ratios: Ratios | None = None
    """How much each rank takes of a global batch, in order of host and local rank; null: equal shares, or what the
    hosts' `ratios` say."""

    balance: Literal["fixed", "auto"] = "fixed"
    """Whether shares stay, or follow measured speed; `auto` needs `flodl_pipe.attach` in the training loop."""

    balance_every_steps: Annotated[Count, Field(ge=4, le=100_000)] = 50
    """Steps between two looks at the speeds."""

    max_rows: Count | None = None
    """Rows of a step that `balance: auto` may give to one rank at most; null: three times its first share."""

    share_host_cache: bool = True
    """Whether the ranks of a host keep samples in one RAM cache together."""

    rendezvous: RendezvousConfig = RendezvousConfig()
    """How the hosts find each other."""

    timeout_s: Annotated[float, Field(gt=0.0, le=86_400.0)] = 300.0
    """How long a rank waits for the others before it gives up, and says who is missing."""

    @property
    def num_hosts(self) -> int:
        """Described hosts."""
        return sum(host.count for host in self.hosts)

    @property
    def num_ranks(self) -> int | None:
        """Ranks of the described hosts; None where none is described."""
        return sum(host.num_devices * host.count for host in self.hosts) or None

    def notes(self) -> tuple[tuple[str, str], ...]:
        """Return what was set and has no effect: keys, and what to say about them."""
        changed = [
            key
            for key in ("balance_every_steps", "max_rows")
            if self.balance == "fixed" and getattr(self, key) != type(self).model_fields[key].default
        ]
        return tuple((key, f"{getattr(self, key)}, no effect: cluster.balance=fixed") for key in changed)

    @model_validator(mode="after")
    def _hosts_are_told_apart(self) -> "ClusterConfig":
        for place, host in enumerate(self.hosts):
            if host.name == ANY_HOST and len(self.hosts) > 1:
                raise fault(
                    f"{ANY_HOST} is each host to itself, and these are {len(self.hosts)}; give it the name that "
                    "`hostname` prints there",
                    at=["hosts", place, "name"],
                )
        num_ranks = self.num_ranks or 0
        if num_ranks > MAX_RANKS:
            raise fault(f"must have at most {MAX_RANKS:,} devices together, got {num_ranks:,}", at=["hosts"])
        remedy = "give each host its own, and a host with several GPUs more devices"
        for field, said in (("name", self._names()), ("address", self._addresses())):
            first: dict[str, tuple[int, str]] = {}
            for place, value in said:
                key = compared(value)
                if key in first:
                    there, other = first[key]
                    has_key = field == "name" or self.hosts[place].address is not None
                    written = "" if other == value else f", written {shown(other)} there"
                    raise fault(
                        f"{shown(value)} is the {field} of hosts[{there}] too{written}; {remedy}",
                        at=["hosts", place, field if has_key else "name"],
                    )
                first[key] = place, value
        return self

    def _names(self) -> Iterator[tuple[int, str]]:
        yield from ((place, name) for place, host in enumerate(self.hosts) for name in host.names())

    def _addresses(self) -> Iterator[tuple[int, str]]:
        for place, host in enumerate(self.hosts):
            yield from ((place, host.address or name) for name in host.names())

    @model_validator(mode="after")
    def _ratios_are_said_once(self) -> "ClusterConfig":
        silent = [place for place, host in enumerate(self.hosts) if host.ratios is None]
        told = len(self.hosts) - len(silent)
        if told and self.partition_ratios is not None:
            raise fault(
                f"{shown(self.partition_ratios)} is set, and so are ratios of hosts; say it in one of the two places",
                at=["partition_ratios"],
            )
        if told and silent:
            place = silent[0]
            raise fault(
                f"must be set too: it is null for {self.hosts[place].name} and set for {told} of the "
                f"{len(self.hosts)} hosts; give ratios for every host or for none",
                at=["hosts", place, "ratios"],
            )
        num_ranks = self.num_ranks
        if self.partition_ratios is not None and num_ranks is not None and len(self.partition_ratios) != num_ranks:
            raise fault(
                f"must have one number for each of the {num_ranks} devices of the hosts, got "
                f"{len(self.partition_ratios)}: {shown(self.partition_ratios)}",
                at=["partition_ratios"],
            )
        return self

    @model_validator(mode="after")
    def _enough_hosts(self) -> "ClusterConfig":
        least = self.rendezvous.min_hosts
        if least is None:
            return self
        at = ["rendezvous", "min_hosts"]
        if least > 1 and not self.hosts:
            raise fault(f"{least} has no meaning while no host is described; describe them in cluster.hosts", at=at)
        if least > max(1, self.num_hosts):
            raise fault(f"must be at most {self.num_hosts}, the hosts that are described, got {least}", at=at)
        if self.rendezvous.backend == "static":
            raise fault(f"{least} has no meaning with backend=static, which needs all hosts; set backend=c10d", at=at)
        return self
