"""RAM caches on a machine that has plenty of memory."""

import contextlib
from collections.abc import Callable
from typing import Any

from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.staging.ram_cache import RamCache
from flodl_pipe.staging.ranking import Ranking

PLENTY = HostMemory(64 << 30, 32 << 30, "host")


def cache_of(source: Any, ranking: Ranking, first_rank: int, num_ranks: int, lock: Any = None) -> RamCache:
    return RamCache(
        source,
        ranking,
        first_rank=first_rank,
        num_ranks=num_ranks,
        read_lock=lock or contextlib.nullcontext(),
        probe=lambda: PLENTY,
    )


def after(num_chunks: int) -> Callable[[], bool]:
    """Return what says stop after some chunks."""
    chunks = iter(range(num_chunks))
    return lambda: next(chunks, None) is None
