"""Section ``cluster``: the hosts of a run, how much each of their devices takes, and how they find each other."""

import math
import re
from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from flodl_pipe.config.base import Count, LocalPath, NonNegative, StrictModel, fault, shown

__all__ = ["ClusterConfig", "HostConfig", "RendezvousConfig"]

_DEVICE = r"cpu|simulated|mps|(cuda|xpu)(:\d{1,3})?"
MAX_LOCAL_RANKS = 1024
"""Most devices of one host."""


def _devices(value: Any) -> Any:
    rule = "must be how many there are, or a list of them: numbers, cuda:0, xpu:1, cpu, simulated"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MAX_LOCAL_RANKS:
            raise fault(f"must be from 1 to {MAX_LOCAL_RANKS}, got {value}")
        return value
    if not isinstance(value, list | tuple) or not value:
        raise fault(f"{rule}, got {shown(value)}")
    for item in value:
        is_number = isinstance(item, int) and not isinstance(item, bool) and item >= 0
        if not is_number and not (isinstance(item, str) and re.fullmatch(_DEVICE, item)):
            raise fault(f"{rule}, got {shown(item)} in the list")
    named = Counter(f"cuda:{item}" if isinstance(item, int) else item for item in value)
    twice = [name for name, count in named.items() if count > 1 and name not in ("cpu", "simulated")]
    if twice:
        raise fault(f"must name each device once, got {twice[0]} {named[twice[0]]} times; one rank has one device")
    return list(value)


def _ratios(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value:
        raise fault(f"must be a list of numbers above 0, or null, got {shown(value)}")
    for item in value:
        is_number = isinstance(item, int | float) and not isinstance(item, bool)
        if not is_number or not math.isfinite(item) or item <= 0:
            raise fault(
                f"must be numbers above 0, got {shown(item)} in the list; leave out a device that takes nothing"
            )
    return list(value)


Devices = Annotated[
    int | list[int | str],
    BeforeValidator(_devices, json_schema_input_type=Annotated[int, Field(ge=1)] | list[int | str]),
]
"""How many devices a host has, or which."""

Ratios = Annotated[list[int | float], BeforeValidator(_ratios, json_schema_input_type=list[float])]
"""How much each rank takes, in any unit."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$")]
"""A host's name or address."""

GpuRamShare = Annotated[float, Field(gt=0.0, le=4.0)]


class HostConfig(StrictModel):
    """One host."""

    name: Name
    """Its name: what `hostname` prints there, or what `FLODL_PIPE_HOST` says."""

    address: Annotated[str, Field(min_length=1)] | None = None
    """Where the other hosts reach it; null: its name."""

    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:@-]{1,64}$")] | None = None
    """Network interface that reaches the others (`eth0`); null: torch chooses."""

    devices: Devices = 1
    """How many devices it has, each with a rank, or a list of them."""

    ratios: Ratios | None = None
    """How much each of its devices takes of a global batch; null: as much as any other."""

    gpu_ram_share: GpuRamShare | None = None
    """Share of its memory that an integrated GPU may take; null: that of the cluster."""

    data_dir: LocalPath | None = None
    """Folder of data sets there; null: that of the recipe."""

    count: Annotated[Count, Field(le=65536)] = 1
    """How many such hosts there are, for plans of large clusters: NAME-0, NAME-1 and so on."""

    @property
    def num_devices(self) -> int:
        """Ranks of one such host."""
        return self.devices if isinstance(self.devices, int) else len(self.devices)

    @model_validator(mode="after")
    def _a_ratio_for_each_device(self) -> "HostConfig":
        if self.ratios is not None and len(self.ratios) != self.num_devices:
            raise fault(
                f"must have one number for each of the {self.num_devices} devices of {self.name}, got "
                f"{len(self.ratios)}: {self.ratios}",
                at=["ratios"],
            )
        return self


class RendezvousConfig(StrictModel):
    """How the hosts find each other, for the commands that `job=launch` prints and runs."""

    backend: Literal["c10d", "static"] = "c10d"
    """c10d: hosts may come, go and come back; static: all must be there."""

    port: Annotated[int, Field(ge=1, le=65535)] = 29400
    """Port of the first host."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")] | None = None
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
    def num_ranks(self) -> int | None:
        """Ranks of the described hosts; None where none is described."""
        return sum(host.num_devices * host.count for host in self.hosts) or None

    @model_validator(mode="after")
    def _hosts_are_told_apart(self) -> "ClusterConfig":
        for field in ("name", "address"):
            seen = Counter(getattr(host, field) for host in self.hosts if getattr(host, field) is not None)
            for place, host in enumerate(self.hosts):
                value = getattr(host, field)
                if value is not None and seen[value] > 1:
                    raise fault(
                        f"{shown(value)} is the {field} of {seen[value]} hosts; give each its own, or one host more "
                        "devices",
                        at=["hosts", place, field],
                    )
        return self

    @model_validator(mode="after")
    def _ratios_are_said_once(self) -> "ClusterConfig":
        silent = [place for place, host in enumerate(self.hosts) if host.ratios is None]
        told = len(self.hosts) - len(silent)
        if told and self.partition_ratios is not None:
            raise fault("is set, and so are ratios of hosts; say it in one of the two places", at=["partition_ratios"])
        if told and silent:
            place = silent[0]
            raise fault(
                f"is null for {self.hosts[place].name} and set for {told} of the {len(self.hosts)} hosts; give ratios "
                "for every host or for none",
                at=["hosts", place, "ratios"],
            )
        num_ranks = self.num_ranks
        if self.partition_ratios is not None and num_ranks is not None and len(self.partition_ratios) != num_ranks:
            raise fault(
                f"must have one number for each of the {num_ranks} devices of the hosts, got "
                f"{len(self.partition_ratios)}",
                at=["partition_ratios"],
            )
        return self

    @model_validator(mode="after")
    def _enough_hosts(self) -> "ClusterConfig":
        least, num_hosts = self.rendezvous.min_hosts, sum(host.count for host in self.hosts)
        if least is not None and least > max(1, num_hosts):
            raise fault(
                f"must be at most the {num_hosts} hosts that are described, got {least}",
                at=["rendezvous", "min_hosts"],
            )
        if least is not None and self.rendezvous.backend == "static":
            raise fault(
                f"{least} has no meaning with backend=static, which needs all hosts; set backend=c10d",
                at=["rendezvous", "min_hosts"],
            )
        return self
