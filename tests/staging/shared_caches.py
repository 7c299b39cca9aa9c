"""Caches that the ranks of a host keep together, all of them in one process: each has a map of its own."""

import contextlib
import os
from typing import Any

from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.staging.ram_cache import RamCache, memory_file_bytes
from flodl_pipe.staging.ranking import Ranking
from flodl_pipe.staging.shared_fill import HostPart
from flodl_pipe.staging.shared_memory import SharedMemory, memory_file

PLENTY = HostMemory(64 << 30, 32 << 30, "host")


def shared_caches(
    sources: list[Any],
    ranking: Ranking,
    first_rank: int,
    num_ranks: int,
    *,
    chunk_bytes: int = 500,
    memory: HostMemory = PLENTY,
) -> list[RamCache]:
    """Return the caches of as many ranks as there are sources."""
    where = {"first_rank": first_rank, "num_ranks": num_ranks}
    num_bytes = memory_file_bytes(sources[0], ranking, **where, chunk_bytes=chunk_bytes)
    descriptor = memory_file(num_bytes)
    try:
        return [
            RamCache(
                source,
                ranking,
                **where,
                read_lock=contextlib.nullcontext(),
                probe=lambda: memory,
                part=HostPart(SharedMemory(descriptor, num_bytes), place, len(sources), chunk_bytes),
            )
            for place, source in enumerate(sources)
        ]
    finally:
        os.close(descriptor)
