"""The config as one rank uses it: its own device, its host's memory and folders in place of what all ranks share.

What stands over what, from the strongest: a knob of the loader; the host's environment; the host's own file; the host
in ``cluster.hosts``; the cluster's default.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flodl_pipe.config.host_paths import with_data_dir
from flodl_pipe.config.root import Config
from flodl_pipe.devices.choose import KINDS, Kind, known_devices
from flodl_pipe.errors import ClusterError

if TYPE_CHECKING:
    from flodl_pipe.cluster.joining import Joined
    from flodl_pipe.cluster.layout import Slot

__all__ = ["local_config"]

_log = logging.getLogger("flodl_pipe")


def local_config(config: Config, joined: "Joined", kinds: Sequence[Kind] = KINDS) -> Config:
    """Return the config as this rank uses it: with its device, memory share and data folder.

    Args:
        config: What all ranks share.
        joined: This process in its place.
        kinds: The kinds of accelerator there may be.

    Raises:
        ClusterError: if this host is not one of the layout, or has fewer devices than ranks or than the layout says.
    """
    context, facts, layout = joined.context, joined.facts, joined.layout
    slot = None if layout is None else layout.slot(context.host or facts.name, context.local_rank)
    loader = config.loader
    device = loader.device
    if device == "auto":
        is_alone = context.world is None and slot is None
        device = "auto" if is_alone else _device(slot, context.host, context.local_rank, kinds)
    share = loader.gpu_ram_share
    if share is None:
        share = facts.gpu_ram_share
    if share is None:
        share = config.cluster.gpu_ram_share if slot is None else slot.gpu_ram_share
    if (device, share) != (loader.device, loader.gpu_ram_share):
        loader = loader.model_copy(update={"device": device, "gpu_ram_share": share})
        config = config.model_copy(update={"loader": loader})
    folder = facts.data_dir or (slot.data_dir if slot is not None else None)
    if folder is None or folder == config.data_dir:
        return config
    said_by = facts.places.get("data_dir") if facts.data_dir else f"cluster.hosts, {slot.host if slot else ''}"
    _log.info("data_dir is %s on this host (%s), not %s", folder, said_by, config.data_dir)
    return with_data_dir(config, folder)


def _device(slot: "Slot | None", host: str, local_rank: int, kinds: Sequence[Kind]) -> str:
    """Return the device of a rank that may take any: the one the layout names, else the one of its local rank."""
    here = known_devices(kinds)
    if slot is not None and slot.device is not None:
        kind = next((kind for kind in kinds if kind.name == slot.device), None)
        if slot.device not in here and (kind is None or not kind.count()):
            raise ClusterError(
                f"cluster.hosts gives {slot.device} to {host}/{local_rank} (host/local rank), and {host} has "
                f"{', '.join(here)}; name devices that exist there, or set loader.device"
            )
        return slot.device
    kind = next((kind for kind in kinds if kind.count()), None)
    if kind is None:
        return "auto"  # the CPU, which all may have
    names = kind.names()
    if local_rank < len(names):
        return names[local_rank]
    one_each = f"loader.device={kind.name} if each process is shown a device of its own, or all share one"
    raise ClusterError(
        f"LOCAL_RANK {local_rank} of host {host} has no device: this process sees {len(names)} ({', '.join(names)}); "
        f"start {len(names)} ranks there (--nproc-per-node {len(names)}), or set {one_each}, or loader.device=cpu"
    )
