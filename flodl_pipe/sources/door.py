"""The way into a dataset: for samples that exist, and for one thread at a time where the dataset needs that."""

import contextlib
import os
import threading
from typing import Any, final

import numpy as np

from flodl_pipe.arrays import IndexArray

__all__ = ["UNREADABLE", "Door", "require_samples"]

UNREADABLE = b"|cannot be read|"
"""What a fingerprint takes for a sample that cannot be read."""


@final
class Door:
    """Lets threads in, in each process by itself.

    Args:
        everybody: Whether several may be inside at once.
    """

    def __init__(self, *, everybody: bool) -> None:
        self._everybody = everybody
        self._renew_lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _closed, (self._everybody,)  # a lock stays where it is

    def inside(self) -> contextlib.AbstractContextManager[object]:
        """Return what is held while this thread is inside the dataset."""
        if self._everybody:
            return contextlib.nullcontext()
        if os.getpid() != self._process:  # a fork may have left it held by a thread that is not here
            self._renew_lock()
        return self._lock

    def _renew_lock(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()


def _closed(everybody: bool) -> Door:
    return Door(everybody=everybody)


def require_samples(indices: IndexArray, num_samples: int) -> None:
    """Check sample indices.

    Raises:
        IndexError: if one is not in ``[0, num_samples)``.
    """
    # Seen as unsigned, a negative number is a huge one. A list would take it for one from its end.
    if len(indices) and int(indices.view(np.uint64).max()) >= num_samples:
        raise IndexError(f"samples {indices.min()} .. {indices.max()} are not all in 0 .. {num_samples - 1}")
