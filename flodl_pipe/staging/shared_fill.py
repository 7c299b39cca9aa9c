"""Which chunk of a shared range a rank reads next, so that the ranks of a host read it once, together.

Each rank has a stripe of the chunks, which it reads from the front. Then it helps the others, from the *ends* of their
stripes: two ranks meet at one chunk. Before a chunk is read it is claimed, by a byte. Two that claim the same one in
the same microsecond both read it, which costs a chunk and harms nothing, so no lock is needed for that.

A claim says nothing of the chunk: what is there is told by other marks. A rank that ended, or was stopped, leaves
claims behind. When nothing else is left and nothing has come for some seconds, those chunks are read by whoever waits:
all of them, one after the other. Only what a claimer has read itself shows that one is at work, and to be waited for.
"""

import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple, final

from flodl_pipe.arrays import ByteArray
from flodl_pipe.staging.filling import FILL_CHUNK_BYTES
from flodl_pipe.staging.shared_memory import SharedMemory

__all__ = ["HostPart", "RowChunks", "Stripes", "chunk_rows", "num_chunks"]

# A chunk is read in milliseconds from a disk, and in a second or two from far away.
_PATIENCE_S = 10.0
_POLL_S = 0.02
_MAX_CHUNK_ROWS = 65_536
# What the byte of a chunk says: somebody reads it; somebody reads it in place of one who does not come to it.
_CLAIMED, _RESCUED = 1, 2


class HostPart(NamedTuple):
    """What a rank has of a cache that the ranks of its host keep together.

    Attributes:
        memory: The memory of all.
        place: Which of them it is, from 0.
        num_places: How many they are.
        chunk_bytes: Bytes that are read together to fill it; the same for all.
    """

    memory: SharedMemory
    place: int
    num_places: int
    chunk_bytes: int = FILL_CHUNK_BYTES


def num_chunks(num_items: int, chunk_items: int) -> int:
    """Return how many chunks there are; so many bytes are claimed by."""
    return -(-num_items // max(1, chunk_items))


def chunk_rows(row_bytes: int, chunk_bytes: int) -> int:
    """Return the rows of a chunk of about so many bytes."""
    return max(1, min(_MAX_CHUNK_ROWS, chunk_bytes // max(1, row_bytes)))


@final
class RowChunks:
    """Which rows of a range are read next to fill it: front to back, or shared out among the ranks of a host.

    Args:
        num_rows: Rows of the range.
        row_bytes: Bytes of one.
        part: This rank's part of memory of several; None: it is alone.
        is_there: Whether the rows ``first .. last - 1`` are there.
    """

    def __init__(
        self, num_rows: int, row_bytes: int, *, part: HostPart | None, is_there: Callable[[int, int], bool]
    ) -> None:
        self._num_rows, self._row_bytes = num_rows, row_bytes
        self._next = self._last = 0
        self._stripes: Stripes | None = None
        if part is not None:
            step = chunk_rows(row_bytes, part.chunk_bytes)
            claims = part.memory.reserve(num_chunks(num_rows, step))
            self._stripes = Stripes(part, claims, num_items=num_rows, chunk_items=step, is_there=is_there)

    def take(self, chunk_bytes: int) -> tuple[int, int] | None:
        """Return the first row and the last (exclusive) of the next chunk, of ``chunk_bytes`` where it is alone.

        None if nothing is left; ``(0, 0)`` where others read what is left.
        """
        if self._stripes is not None:
            return self._stripes.take()
        if self._next == self._num_rows:
            return None
        self._last = min(self._next + chunk_rows(self._row_bytes, chunk_bytes), self._num_rows)
        return self._next, self._last

    def done(self) -> None:
        """Note that the chunk was read; else it comes again, where it is alone."""
        self._next = self._last


@final
class Stripes:
    """The chunks of a range of items, shared out among the ranks of a host; for one thread of each.

    Args:
        part: This rank's place among them.
        claims: A byte for each chunk, in memory that all see.
        num_items: Rows, or bytes.
        chunk_items: Of a chunk.
        is_there: Whether the items ``first .. last - 1`` are there.
    """

    def __init__(
        self,
        part: HostPart,
        claims: ByteArray,
        *,
        num_items: int,
        chunk_items: int,
        is_there: Callable[[int, int], bool],
    ) -> None:
        self._claims, self._is_there = claims, is_there
        self._num_items, self._chunk_items = num_items, chunk_items
        self._num_chunks = num_chunks(num_items, chunk_items)
        self._place = part.place
        self._order = _order(self._num_chunks, part.place, part.num_places)
        self._awaited: list[int] | None = None
        self._since = 0.0

    def take(self) -> tuple[int, int] | None:
        """Return the first and last item (exclusive) of the next chunk to read; None if nothing is left.

        ``(0, 0)`` means that others read what is left, and that it should be asked again; some time has passed then.
        """
        for chunk in self._order:
            if not self._claims[chunk] and not self._has(chunk):
                self._claims[chunk] = _CLAIMED
                return self._items(chunk)
        awaited = self._awaited
        left = [chunk for chunk in (range(self._num_chunks) if awaited is None else awaited) if not self._has(chunk)]
        if awaited is None or any(self._claims[chunk] != _RESCUED for chunk in set(awaited).difference(left)):
            self._since = time.monotonic()
        self._awaited = left
        if not left:
            return None
        if time.monotonic() - self._since < _PATIENCE_S:
            time.sleep(_POLL_S)
            return 0, 0
        # Each rank that waits another one, as far as there are others.
        fresh = [chunk for chunk in left if self._claims[chunk] != _RESCUED] or left
        chunk = fresh[self._place % len(fresh)]
        self._claims[chunk] = _RESCUED
        return self._items(chunk)

    def _items(self, chunk: int) -> tuple[int, int]:
        first = chunk * self._chunk_items
        return first, min(first + self._chunk_items, self._num_items)

    def _has(self, chunk: int) -> bool:
        return self._is_there(*self._items(chunk))


def _order(num_chunks: int, place: int, num_places: int) -> Iterator[int]:
    """Return all chunks in a rank's order: its own stripe forward, then the others' backward, the next rank's first."""
    ends = [
        (number * num_chunks // num_places, (number + 1) * num_chunks // num_places) for number in range(num_places)
    ]
    begin, end = ends[place]
    others = (ends[(place + step) % num_places] for step in range(1, num_places))
    return chain(range(begin, end), *(range(end - 1, begin - 1, -1) for begin, end in others))
