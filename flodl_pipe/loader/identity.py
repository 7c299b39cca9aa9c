"""Which stream of samples a loader gives, and places in it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from flodl_pipe.sampling.cursor import Cursor
from flodl_pipe.sampling.orders import Order
from flodl_pipe.sources.protocol import Source

__all__ = ["Place", "StreamIdentity"]


@final
class StreamIdentity:
    """Order and data of a stream. The data's fingerprint reads blocks of the files, so it is made when first asked for.

    Args:
        source: The data.
        order: The order.
        global_batch: Rows of a step over all ranks.
    """

    def __init__(self, source: Source, order: Order, global_batch: int) -> None:
        self._source = source
        self.order_tag = order.tag
        self.global_batch = global_batch

    @cached_property
    def fingerprint(self) -> str:
        """The data's fingerprint, as cursors hold it."""
        return str(self._source.fingerprint())

    def cursor(self, epoch: int, position: int) -> Cursor:
        """Return the cursor at a place."""
        return Cursor(epoch, position, self.global_batch, self.order_tag, self.fingerprint)


@final
@dataclass(slots=True, eq=False)
class Place:
    """A place in a stream, turned into a cursor when somebody wants one."""

    stream: StreamIdentity
    epoch: int
    position: int

    def state(self) -> dict[str, int | str]:
        """Return the loader state at this place."""
        return self.stream.cursor(self.epoch, self.position).state()

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled batch takes the cursor along, not the source.
        return Cursor.from_state, (self.state(),)
