"""From the name of a device to the device: which exist here, and what to say of one that does not.

A kind is asked for its devices by count, not by whether it is available: in a forked child of a process that uses CUDA
both questions would end in "none", and ``auto`` would go on with the CPU in silence. Asked to start instead, torch says
what is wrong.
"""

import difflib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch

from flodl_pipe.devices.accelerator import AcceleratorDevice
from flodl_pipe.devices.mps import MpsDevice
from flodl_pipe.devices.protocol import Device
from flodl_pipe.errors import ConfigError, LoaderError

__all__ = ["KINDS", "Kind", "find_device", "known_devices"]

_NAME = re.compile(r"([a-z]+)(?::(\d{1,3}))?")
_OTHERS = ("auto", "cpu", "simulated")


@final
@dataclass(frozen=True)
class Kind:
    """A kind of accelerator, as torch has it.

    Attributes:
        name: As in ``name:0``.
        numbered: Whether there may be several.
        count: Returns how many this process sees.
        start: Starts torch's part of it; raises what torch raises.
        current: Returns the index of the current device.
        make: Makes the device of an index.
        why_none: Returns why there is none, where there is none.
    """

    name: str
    numbered: bool
    count: Callable[[], int]
    start: Callable[[], None]
    current: Callable[[], int]
    make: Callable[[int], Device]
    why_none: Callable[[], str]

    def names(self) -> list[str]:
        """Return the names of all devices of this kind."""
        return [f"{self.name}:{index}" if self.numbered else self.name for index in range(self.count())]


def _why_no_cuda() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this build of torch has no CUDA (torch {torch.__version__})"
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if shown is None else f", and CUDA_VISIBLE_DEVICES={shown!r} shows none"
    return f"torch {torch.__version__} finds no CUDA device on this machine{hidden}"


def _why_no_xpu() -> str:
    if not torch.xpu._is_compiled():  # noqa: SLF001
        return f"this build of torch has no XPU (torch {torch.__version__})"
    return f"torch {torch.__version__} finds no XPU on this machine"


def _why_no_mps() -> str:
    if not torch.backends.mps.is_built():
        return f"this build of torch has no MPS (torch {torch.__version__})"
    return "MPS needs macOS 12.3 or later and an Apple GPU"


KINDS: tuple[Kind, ...] = (
    Kind(
        "cuda",
        True,
        torch.cuda.device_count,
        torch.cuda.init,
        torch.cuda.current_device,
        lambda index: AcceleratorDevice(torch.device("cuda", index)),
        _why_no_cuda,
    ),
    Kind(
        "xpu",
        True,
        torch.xpu.device_count,
        torch.xpu.init,
        torch.xpu.current_device,
        lambda index: AcceleratorDevice(torch.device("xpu", index)),
        _why_no_xpu,
    ),
    Kind(
        "mps",
        False,
        lambda: int(torch.backends.mps.is_available()),
        lambda: None,
        lambda: 0,
        lambda _: MpsDevice(),
        _why_no_mps,
    ),
)
"""In the order in which ``auto`` looks for one."""


def known_devices(kinds: Sequence[Kind] = KINDS) -> tuple[str, ...]:
    """Return the names of all devices that :func:`find_device` finds here, for example ``cpu, cuda:0, simulated``."""
    return ("cpu", *(name for kind in kinds for name in kind.names()), "simulated")


def find_device(name: str, *, simulated: Callable[[], Device], kinds: Sequence[Kind] = KINDS) -> Device | None:
    """Return the device that ``loader.device`` names.

    Args:
        name: ``auto`` (the current device of the first kind of accelerator that this machine has, else the CPU),
            ``cpu``, ``simulated``, ``mps``, or ``cuda`` or ``xpu``, alone (the current one) or with an index.
        simulated: Makes the simulated device.
        kinds: The kinds of accelerator there may be.

    Returns:
        The device; None for the CPU.

    Raises:
        ConfigError: if there is no such device here.
        LoaderError: if torch cannot start it, for example in a forked process.
    """
    if name == "auto":
        found = next((kind for kind in kinds if kind.count()), None)
        return None if found is None else _start(found, None, name, kinds)
    if name == "cpu":
        return None
    if name == "simulated":
        return simulated()
    match = _NAME.fullmatch(name)
    kind = next((kind for kind in kinds if match and kind.name == match[1]), None)
    if match is None or kind is None or (match[2] is not None and not kind.numbered):
        raise ConfigError.at("loader.device", _unknown(name, kinds))
    return _start(kind, None if match[2] is None else int(match[2]), name, kinds)


def _start(kind: Kind, index: int | None, name: str, kinds: Sequence[Kind]) -> Device:
    names = kind.names()
    if not names:
        here = ", ".join(known_devices(kinds))
        raise ConfigError.at("loader.device", f"{name} does not exist: {kind.why_none()}; here are {here}")
    if index is not None and index >= len(names):
        raise ConfigError.at(
            "loader.device",
            f"{name} does not exist: this machine has {len(names)}: {', '.join(names)}; indices start at 0, and count "
            "the devices that this process may see",
        )
    try:
        kind.start()
        return kind.make(kind.current() if index is None else index)
    except RuntimeError as error:
        if "forked subprocess" in str(error):
            raise LoaderError(
                f"loader.device={name} cannot be used in this process: it was forked from one that uses {kind.name} "
                "already, and a forked process cannot start it again; start processes by multiprocessing's 'spawn' or "
                "'forkserver', fork before the first use of the device, or use loader.device=cpu"
            ) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LoaderError(
            f"loader.device={name}: this machine has {', '.join(names)}, but torch {torch.__version__} cannot start "
            f"{kind.name} ({reason}); install a torch that fits the driver, or use loader.device=cpu"
        ) from error


def _unknown(name: str, kinds: Sequence[Kind]) -> str:
    words = [*_OTHERS, *(kind.name for kind in kinds)]
    kind, _, index = name.lower().partition(":")
    close = difflib.get_close_matches(kind.replace("gpu", "cuda"), words, n=1)
    numbered = (
        index if close and index.isdigit() and any(one.name == close[0] and one.numbered for one in kinds) else ""
    )
    hint = f"; did you mean '{close[0]}{':' if numbered else ''}{numbered}'?" if close else ""
    return (
        f"must be one of {', '.join(words)}, or one of several by its index, like cuda:1, got {name!r}{hint} "
        f"(here are {', '.join(known_devices(kinds))})"
    )
