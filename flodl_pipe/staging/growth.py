"""Leave to grow: a grant is computed once, the machine is looked at again while memory is taken.

Looking costs about 50 us, so it is done before the first bytes and then once per 64 MiB. When the machine runs short
the tier keeps what it holds and takes nothing more, and says so once.
"""

import logging
import threading
from collections.abc import Callable
from typing import final

from flodl_pipe.memory.budget import floor_bytes
from flodl_pipe.memory.probe import HostMemory, probe_host
from flodl_pipe.units import format_bytes

__all__ = ["Growth"]

_log = logging.getLogger("flodl_pipe")

_PROBE_BYTES = 64 << 20


@final
class Growth:
    """Whether a tier may take more memory. Thread-safe.

    Args:
        name: The tier's.
        probe: Looks at the machine.

    Attributes:
        stopped: Why it may not any more, in words; None while it may.
    """

    def __init__(self, name: str, probe: Callable[[], HostMemory] = probe_host) -> None:
        self._name = name
        self._probe = probe
        self._lock = threading.Lock()
        self._taken = 0
        self._checked: int | None = None
        self.stopped: str | None = None

    def allows(self, num_bytes: int) -> bool:
        """Return whether ``num_bytes`` more may be written, and reckon with them if so."""
        with self._lock:
            if self.stopped is not None:
                return False
            if self._checked is None or self._taken - self._checked >= _PROBE_BYTES:
                self._checked = self._taken
                memory = self._probe()
                floor = floor_bytes(memory)
                if memory.available_bytes <= floor + max(_PROBE_BYTES, num_bytes):
                    self.stopped = (
                        f"only {format_bytes(memory.available_bytes)} of memory is available; {format_bytes(floor)} "
                        "is left alone"
                    )
                    _log.warning(
                        "the %s takes no more samples: %s. It keeps the %s it has; lower loader.ram_max_usage to "
                        "plan for it",
                        *(self._name, self.stopped, format_bytes(self._taken)),
                    )
                    return False
            self._taken += num_bytes
            return True
