"""How many batches that are made apart may be ready at once: what the ring was granted, over what one takes.

What a user's function makes of a batch is not known before it has made one. So two are read ahead at first; the first
that is made says how many fit into what was granted, and a larger one that comes later lowers that.
"""

import logging
import threading
from typing import final

import torch

from flodl_pipe.units import format_bytes

__all__ = ["Room"]

_log = logging.getLogger("flodl_pipe")

_AT_FIRST = 2


@final
class Room:
    """Steps in flight, at most. Thread-safe; lives as long as the engine.

    Args:
        ring_bytes: What the ring was granted.
        depth: Steps read ahead, as planned.
        is_known: Whether what a batch takes was known when that was planned.

    Attributes:
        max_steps: Steps that may be in flight.
    """

    def __init__(self, ring_bytes: int, depth: int, *, is_known: bool) -> None:
        self.max_steps = depth if is_known else min(depth, _AT_FIRST)
        self._ring_bytes = ring_bytes
        self._depth = depth
        self._largest = 0
        self._lock = threading.Lock()

    def measure(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """Look at what a batch takes."""
        num_bytes = sum(_bytes_of(tensor) for tensor in tensors)
        if num_bytes <= self._largest:
            return
        with self._lock:
            self._largest = max(self._largest, num_bytes)
            fitting = max(1, min(self._depth, self._ring_bytes // self._largest))
            if fitting < self._depth and fitting != self.max_steps:
                _log.info(
                    "batches of %s: %d are read ahead instead of %d, for %s were granted",
                    *(format_bytes(self._largest), fitting, self._depth, format_bytes(self._ring_bytes)),
                )
            self.max_steps = fitting


def _bytes_of(tensor: torch.Tensor) -> int:
    values = tensor.values() if tensor.is_nested else tensor
    return int(values.numel()) * values.element_size()
