"""How the memory of a RAM cache comes to one of the ranks that keep it together; see ``host_sharing``."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, final

from flodl_pipe.loader.tiers import TierPlan
from flodl_pipe.sources.protocol import Source
from flodl_pipe.staging.ram_cache import memory_file_bytes
from flodl_pipe.staging.shared_fill import HostPart
from flodl_pipe.staging.shared_handover import Line, Listener
from flodl_pipe.staging.shared_memory import SharedMemory, memory_file
from flodl_pipe.staging.shared_room import Together
from flodl_pipe.units import format_bytes

__all__ = ["Joining", "SharedTier"]

# All are there by then, and it takes milliseconds.
_HANDOVER_S = 10.0


@final
class SharedTier(NamedTuple):
    """What a rank has of a RAM cache that its host keeps together.

    Attributes:
        tiers: The plan of the tiers with it.
        part: Its memory.
        why: How large it is and for whom, in words.
    """

    tiers: TierPlan
    part: HostPart
    why: str


@final
class Joining:
    """One rank on its way into a cache; close it when it is in, or when there is none.

    Args:
        source: The samples.
        tiers: Plans the tiers with memory of several ranks.
        offers: What each rank of the run may hold, and how it is reached.
        group: The ranks that keep it together.
        rank: This one of them.
        listener: This rank's.

    Attributes:
        found: The cache, once it is there.
    """

    def __init__(
        self,
        source: Source,
        tiers: Callable[[Together], TierPlan],
        offers: Sequence[Mapping[str, Any]],
        group: Sequence[int],
        rank: int,
        listener: Listener | None,
    ) -> None:
        self._source, self._tiers, self._listener = source, tiers, listener
        self._first = offers[group[0]]
        self._place, self._num_places = group.index(rank), len(group)
        self._room = Together(sum(offers[one]["room"] for one in group), offers[rank]["room"], len(group))
        self._plan: TierPlan | None = None
        self._num_bytes = 0
        self._line: Line | None = None
        self._descriptor: int | None = None
        self._open = ExitStack()
        self.found: SharedTier | None = None

    def prepare(self) -> dict[str, Any]:
        """Plan the cache; make its memory, or have a line to the rank that makes it.

        Returns:
            Which samples it holds, for the others to compare.

        Raises:
            OSError: if it cannot be had.
        """
        self._plan = self._tiers(self._room)
        ram = self._plan.ram
        if not ram.num_rows:
            raise OSError(f"{format_bytes(self._room.room_bytes)} of all ranks together is not enough for a sample")
        where = {"first_rank": ram.first_rank, "num_ranks": ram.num_rows}
        self._num_bytes = memory_file_bytes(self._source, self._plan.ranking, **where)
        if not self._first["token"]:
            raise OSError(self._first["refused"])
        if self._place:
            self._line = self._open.enter_context(Line(self._first["token"], self._place))
        else:
            self._descriptor = memory_file(self._num_bytes)
            self._open.callback(os.close, self._descriptor)
        return {"range": [ram.first_rank, ram.num_rows]}

    def take(self) -> dict[str, Any]:
        """Hand the memory over, or get it; then map it.

        Returns:
            What :meth:`prepare` has.

        Raises:
            OSError: if it cannot be had.
        """
        assert self._plan is not None
        if self._line is not None:
            self._descriptor = self._line.receive(_HANDOVER_S)
            self._open.callback(os.close, self._descriptor)
        elif self._listener is not None and self._descriptor is not None:
            self._listener.hand_over(self._descriptor, set(range(1, self._num_places)), _HANDOVER_S)
        assert self._descriptor is not None
        memory = SharedMemory(self._descriptor, self._num_bytes)
        ram = self._plan.ram
        self.found = SharedTier(self._plan, HostPart(memory, self._place, self._num_places), ram.why)
        return {"range": [ram.first_rank, ram.num_rows]}

    def close(self) -> None:
        """Give back what is not needed any more."""
        self._open.close()
