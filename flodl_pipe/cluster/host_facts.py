"""What this machine says of itself: its environment, over its own file, over nothing.

It knows the box that it is: an integrated GPU's part of the memory, where the data lie, which interface reaches the
others. So it stands over the recipe, which is the same for all hosts; only a knob of the loader stands over both.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from flodl_pipe.config.host_file import what_the_host_says

__all__ = ["HostFacts", "host_facts"]


@final
@dataclass(frozen=True)
class HostFacts:
    """This host, as it describes itself.

    Attributes:
        name: What the layout calls it: ``FLODL_PIPE_HOST``, else ``name`` of its file, else its hostname.
        gpu_ram_share: Share of its memory that an integrated GPU may take; None: it does not say.
        data_dir: Folder of data sets, absolute; None: it does not say.
        interface: Network interface that reaches the others; None: it does not say.
        places: Fact -> who says so, a variable or a line of the file.
    """

    name: str
    gpu_ram_share: float | None = None
    data_dir: str | None = None
    interface: str | None = None
    places: Mapping[str, str] = field(default_factory=dict, compare=False)


def host_facts(environment: Mapping[str, str] = os.environ) -> HostFacts:
    """Ask this machine: ``FLODL_PIPE_HOST``, ``_GPU_RAM_SHARE``, ``_DATA_DIR`` and ``_INTERFACE`` of the environment,
    over the file that ``FLODL_PIPE_HOST_FILE`` names, else ``/etc/flodl_pipe/host.yaml`` if it is there.

    Raises:
        ConfigError: if the file cannot be read, or a value is wrong.
    """
    says = what_the_host_says(environment)
    said = says.said
    name = said.name or socket.gethostname()
    return HostFacts(name, said.gpu_ram_share, said.data_dir, said.interface, says.places)
