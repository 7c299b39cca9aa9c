"""One host of section ``cluster``, and the types of what is said about it, in a recipe or by the host itself."""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from flodl_pipe.config.base import Count, LocalPath, StrictModel, fault, shown

__all__ = [
    "ANY_HOST",
    "MAX_LOCAL_RANKS",
    "GpuRamShare",
    "HostConfig",
    "HostName",
    "Interface",
    "Ratios",
    "compared",
    "matching",
]

ANY_HOST = "localhost"
"""Name of an only host that means whichever host the run is on."""

MAX_LOCAL_RANKS = 1024
"""Most devices of one host."""

_KINDS = ("cpu", "simulated", "mps", "cuda", "xpu")
_DEVICE = r"cpu|simulated|mps|(cuda|xpu)(:\d{1,3})?"
_SHARED = ("cpu", "simulated")
"""Devices that several ranks may have at once."""

_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
_ADDRESS = r"[A-Za-z0-9._:%-]{1,255}"
_INTERFACE = r"[A-Za-z0-9_.:@-]{1,64}"


def matching(pattern: str, rule: str, remedy: Callable[[str], str] = lambda _: "") -> BeforeValidator:
    """Return the validator of a text.

    Args:
        pattern: What the whole of it has to match.
        rule: What that means, in words.
        remedy: Says more of a text that is wrong, or that matches and is wrong all the same; else "".
    """

    def check(value: Any) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value) and not remedy(value):
            return value
        number = isinstance(value, int | float) and not isinstance(value, bool)
        hint = f"; as text it is written {str(value)!r}" if number else ""
        raise fault(f"{rule}, got {shown(value)}{hint or remedy(value if isinstance(value, str) else '')}")

    return BeforeValidator(check, json_schema_input_type=Annotated[str, Field(pattern=f"^({pattern})$")])


def _address_fault(value: str) -> str:
    """Return what to say of an address that is more than one, or none; "" when nothing is wrong."""
    if "://" in value:
        return f"; leave out {value.partition('://')[0]}://"
    if value.count(":") == 1:  # an IPv6 address has at least two
        return f"; leave the port out, address: {value.partition(':')[0]}; it is cluster.rendezvous.port"
    if ":" in value:
        return "" if _ip(value) else "; an IPv6 address is written like fd00::1, or fe80::1%eth0"
    if _is_dotted(value):
        return "" if _ip(value) else "; an IPv4 address is four numbers from 0 to 255 without leading zeros: 10.0.0.1"
    is_name = not value or (value[0].isalnum() and "%" not in value)
    return "" if is_name else "; a host's name begins with a letter or digit, and has no %"


def _is_dotted(value: str) -> bool:
    return re.fullmatch(r"[0-9.]+", value) is not None


def _ip(value: str) -> str | None:
    """Return an IP address in the one way to write it; None if it is none."""
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        return None


def compared(value: str) -> str:
    """Return a host's name or address as it is compared with others: case does not tell hosts apart.

    >>> compared("Node-1"), compared("10.0.0.1"), compared("FD00:0::1")
    ('node-1', '10.0.0.1', 'fd00::1')
    """
    is_ip = ":" in value or _is_dotted(value)
    return (_ip(value) if is_ip else None) or value.lower()


def _device_fault(item: Any) -> str:
    """Return what is wrong with an item of a list of devices; "" when nothing is."""
    if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1000:
        return ""
    # With a leading zero a device would have two names, and could be given to two ranks.
    if isinstance(item, str) and re.fullmatch(_DEVICE, item, re.ASCII) and not re.search(r":0\d", item):
        return ""
    hint = ""
    if isinstance(item, str) and (near := re.fullmatch(r"([a-z]+)[:_ -]?([0-9]*)", item.lower())) is not None:
        kind = get_close_matches(near[1].replace("gpu", "cuda"), _KINDS, n=1)
        number = f":{int(near[2][:4])}" if kind and kind[0] in ("cuda", "xpu") and near[2] else ""
        hint = f"; did you mean '{kind[0]}{number}'?" if kind and len(near[2]) <= 3 else ""
    return f"{shown(item)} in the list{hint}"


def _device_name(item: int | str) -> str:
    """Return the device that an item of a list means; without a number, the first one."""
    if isinstance(item, int):
        return f"cuda:{item}"
    return f"{item}:0" if item in ("cuda", "xpu") else item


def _devices(value: Any) -> Any:
    rule = "must be how many there are, or a list of them: numbers of CUDA devices, cuda:0, xpu:1, mps, cpu, simulated"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MAX_LOCAL_RANKS:
            raise fault(f"must be from 1 to {MAX_LOCAL_RANKS}, got {value}; leave out a host that takes no part")
        return value
    if not isinstance(value, list | tuple) or not value:
        raise fault(f"{rule}, got {shown(value)}")
    if len(value) > MAX_LOCAL_RANKS:
        raise fault(f"must be at most {MAX_LOCAL_RANKS} devices, got a list of {len(value)}")
    for item in value:
        if wrong := _device_fault(item):
            raise fault(f"{rule}, got {wrong}")
    counts = Counter(_device_name(item) for item in value)
    twice = [name for name, count in counts.items() if count > 1 and name not in _SHARED]
    if twice:
        raise fault(f"must name each device once, got {twice[0]} {counts[twice[0]]} times; a device has one rank")
    return list(value)


def _ratios(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value:
        raise fault(f"must be a list of numbers above 0, such as [3, 2, 1], or null, got {shown(value)}")
    for item in value:
        # Compared, not turned into a float: a whole number may be too large for one. Not a number compares as false.
        if not isinstance(item, int | float) or isinstance(item, bool) or not item > 0:
            raise fault(
                f"must be numbers above 0, got {shown(item)} in the list; leave out a device that takes nothing"
            )
        if not 1e-12 <= item <= 1e12:
            raise fault(f"must be numbers from 1e-12 to 1e12, got {shown(item)} in the list; only proportions count")
    return list(value)


Devices = Annotated[
    int | list[int | str],
    BeforeValidator(
        _devices,
        json_schema_input_type=Annotated[int, Field(ge=1, le=MAX_LOCAL_RANKS)]
        | Annotated[
            list[Annotated[int, Field(ge=0, lt=1000)] | Annotated[str, Field(pattern=f"^({_DEVICE})$")]],
            Field(min_length=1, max_length=MAX_LOCAL_RANKS),
        ],
    ),
]
"""How many devices a host has, or which."""

Ratios = Annotated[
    list[int | float],
    BeforeValidator(_ratios),
    WithJsonSchema({"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}, "minItems": 1}),
]
"""How much each rank takes, in any unit."""

HostName = Annotated[str, matching(_NAME, "must be a host's name: letters, digits, '.', '-' and '_'")]
"""A host's name."""

Address = Annotated[str, matching(_ADDRESS, "must be a host's name or IP address", _address_fault)]
"""Where a host is reached."""

Interface = Annotated[str, matching(_INTERFACE, "must be the name of a network interface, such as eth0")]
"""A network interface."""

GpuRamShare = Annotated[float, Field(gt=0.0, le=4.0)]
"""Share of host memory, of 4 at most: where GPUs have more than the host says."""


class HostConfig(StrictModel):
    """One host, or `count` alike."""

    name: HostName
    """Its name: what `hostname` prints there, or what `FLODL_PIPE_HOST` says there. `localhost`, for an only host: the
    one that the run is on."""

    address: Address | None = None
    """Where the other hosts reach it; null: by its name."""

    interface: Interface | None = None
    """Network interface that reaches the others (`eth0`); null: torch chooses."""

    devices: Devices = 1
    """How many devices it has, each with a rank, or a list of them: `[0, 1]` are `cuda:0` and `cuda:1`."""

    ratios: Ratios | None = None
    """How much each of its devices takes of a global batch; null: as much as any other."""

    gpu_ram_share: GpuRamShare | None = None
    """Share of its memory that an integrated GPU may take; null: that of the cluster."""

    data_dir: LocalPath | None = None
    """Folder of data sets there; null: that of the recipe."""

    count: Annotated[Count, Field(le=65536)] = 1
    """How many such hosts there are: `NAME-0`, `NAME-1` and so on where there are several."""

    @property
    def num_devices(self) -> int:
        """Ranks of one such host."""
        return self.devices if isinstance(self.devices, int) else len(self.devices)

    @property
    def device_names(self) -> tuple[str | None, ...]:
        """Device of each rank, by local rank; None where only their number is known."""
        if isinstance(self.devices, int):
            return (None,) * self.devices
        return tuple(f"cuda:{item}" if isinstance(item, int) else item for item in self.devices)

    def names(self) -> Iterator[str]:
        """Yield the name of each host that this describes."""
        if self.count == 1:
            yield self.name
        else:
            yield from (f"{self.name}-{number}" for number in range(self.count))

    @model_validator(mode="after")
    def _a_ratio_for_each_device(self) -> "HostConfig":
        if self.ratios is not None and len(self.ratios) != self.num_devices:
            raise fault(
                f"must have one number for each of the {self.num_devices} devices of {self.name}, got "
                f"{len(self.ratios)}: {shown(self.ratios)}; change the list, or devices",
                at=["ratios"],
            )
        return self

    @model_validator(mode="after")
    def _a_name_that_is_an_address_is_one(self) -> "HostConfig":
        is_address = self.address is None and self.count == 1 and _is_dotted(self.name) and "." in self.name
        if is_address and (wrong := _address_fault(self.name)):
            raise fault(
                f"{shown(self.name)} is where the others reach it, as long as address is null{wrong}", at=["name"]
            )
        return self

    @model_validator(mode="after")
    def _several_have_addresses_of_their_own(self) -> "HostConfig":
        if self.count > 1 and self.address is not None:
            raise fault(
                f"{shown(self.address)} cannot be that of {self.count} hosts; leave it at null, and they are reached "
                f"by name, {self.name}-0 to {self.name}-{self.count - 1}, or write each host out",
                at=["address"],
            )
        if self.count > 1 and self.name == ANY_HOST:
            raise fault(
                f"{self.count} with name {ANY_HOST}, which means the host that the run is on; give them a name",
                at=["count"],
            )
        return self
