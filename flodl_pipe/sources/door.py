"""The way into a dataset: for samples that exist, and for one thread at a time where the dataset needs that."""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.errors import LoaderError

__all__ = ["UNREADABLE", "Demand", "Door", "demand_here", "demanded_by", "require_samples"]

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


@final
class Demand:
    """Reads that somebody waits for. A dataset in Python may take long for each sample, so it looks between two.

    Attributes:
        is_ended: Whether nobody waits any more.
    """

    __slots__ = ("is_ended",)

    def __init__(self) -> None:
        self.is_ended = False

    def end(self) -> None:
        """Note that nobody waits any more: what reads ends after the sample in hand."""
        self.is_ended = True

    def error(self) -> LoaderError:
        """Return what ends a read that nobody waits for."""
        return LoaderError("this read was broken off: nobody waits for its samples any more")


_here = threading.local()
_for_ever = Demand()


def demand_here() -> Demand:
    """Return what the reads of this thread are for."""
    found: Demand = getattr(_here, "demand", _for_ever)
    return found


@contextlib.contextmanager
def demanded_by(demand: Demand) -> Iterator[None]:
    """Say what the reads of this thread are for."""
    before = demand_here()
    _here.demand = demand
    try:
        yield
    finally:
        _here.demand = before


def require_samples(indices: IndexArray, num_samples: int) -> None:
    """Check sample indices.

    Raises:
        IndexError: if one is not in ``[0, num_samples)``.
    """
    # Seen as unsigned, a negative number is a huge one. A list would take it for one from its end.
    if len(indices) and int(indices.view(np.uint64).max()) >= num_samples:
        raise IndexError(f"samples {indices.min()} .. {indices.max()} are not all in 0 .. {num_samples - 1}")
