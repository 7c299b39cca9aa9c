"""A shuffle buffer that is a function: blocks of a lane, each permuted by a key.

``B`` consecutive rows of a lane are read into a buffer and handed out in the order of a keyed bijection of
``(seed, epoch, lane, block)``; then the next ``B``. The last block is as short as what is left. Nothing is drawn and no
row is stored in a cursor: a mark is the block's number, the rows of it that were handed out, and the mark of its first
row; to resume, one block is read again::

    lane       a b c d | e f g h | i j
    handed out c a d b | f e h g | j i
                             ^ mark "1,3,<mark of e>"

It mixes less than a buffer that is refilled row by row would, over twice the distance; but it needs no history.
"""

from collections.abc import Callable, Mapping
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ResumeError
from flodl_pipe.keyed.permute import permutation
from flodl_pipe.sources.stream_protocol import LaneReader

__all__ = ["BlockShuffle", "block_rows"]

_DOMAIN = 0xB10C
_MAX_DIGITS = 18
"""A number of a place fits 64 bits."""


def block_rows(shuffle_buffer: int, num_lanes: int) -> int:
    """Return the rows of a lane's block: its part of the buffer, at least one."""
    return max(shuffle_buffer // num_lanes, 1)


@final
class BlockShuffle:
    """The rows of a lane, block by block in keyed order; a :class:`flodl_pipe.sources.stream_protocol.LaneReader`.

    Args:
        open_feed: Opens the lane in its own order, at a mark of it.
        spec: Fields of a row.
        num_rows: Rows of a block.
        key: Seed, epoch and lane.
        mark: Where to begin.

    Raises:
        ResumeError: if the mark is none of such a lane.
    """

    def __init__(
        self,
        open_feed: Callable[[str], LaneReader],
        spec: SampleSpec,
        num_rows: int,
        key: tuple[int, ...],
        mark: str = "",
    ) -> None:
        self._num_rows, self._key = num_rows, key
        self._block, self._handed, self._begin = _parse(mark, num_rows)
        self._feed = open_feed(self._begin)
        self._begin = self._feed.mark()
        self._spec = spec
        self._rows: dict[str, Array] | None = None
        self._order: IndexArray | None = None  # of the block in the buffer; None: it is to be read

    def read_into(self, out: Mapping[str, Array], first_row: int, num_rows: int) -> int:
        """Write the lane's next rows; see :meth:`flodl_pipe.sources.stream_protocol.LaneReader.read_into`."""
        done = 0
        while done < num_rows and (order := self._current()) is not None:
            count = min(len(order) - self._handed, num_rows - done)
            picks = order[self._handed : self._handed + count]
            for name, rows in (self._rows or {}).items():
                target = out[name]
                np.take(rows, picks, axis=0, out=target[first_row + done : first_row + done + count], mode="clip")
            self._handed += count
            done += count
        return done

    def skip(self, num_rows: int) -> int:
        """Pass over rows, whole blocks unread; see :meth:`flodl_pipe.sources.stream_protocol.LaneReader.skip`."""
        done = 0
        while done < num_rows:
            if self._order is None and not self._handed and num_rows - done >= self._num_rows:
                passed = self._feed.skip(self._num_rows)
                if passed:
                    self._next_block()
                done += passed
                if passed < self._num_rows:
                    break
            elif (order := self._current()) is not None:
                count = min(len(order) - self._handed, num_rows - done)
                self._handed += count
                done += count
            else:
                break
        return done

    def mark(self) -> str:
        """Return where the next row is; see :meth:`flodl_pipe.sources.stream_protocol.LaneReader.mark`."""
        if self._order is not None and self._handed == len(self._order):
            self._next_block()
        return f"{self._block},{self._handed},{self._begin}"

    def close(self) -> None:
        """Let go of the buffer, and of what the lane holds."""
        self._rows = self._order = None
        self._feed.close()

    def _current(self) -> IndexArray | None:
        """Return the order of the block that the next row is in, reading it if need be; None at the lane's end."""
        if self._order is not None and self._handed == len(self._order):
            self._next_block()
        if self._order is None:
            if self._rows is None:
                self._rows = self._spec.empty(self._num_rows)
            found = self._feed.read_into(self._rows, 0, self._num_rows)
            if self._handed > found:
                raise ResumeError(
                    f"block {self._block} of this lane has {found} rows, the saved place is behind row {self._handed}; "
                    "the state belongs to other data, resume with the data it was saved with"
                )
            if not found:
                return None
            self._order = permutation(found, _DOMAIN, *self._key, self._block).at(np.arange(found))
            if self._handed == found:
                return self._current()
        return self._order

    def _next_block(self) -> None:
        self._block, self._handed, self._order = self._block + 1, 0, None
        self._begin = self._feed.mark()


def _parse(mark: str, num_rows: int) -> tuple[int, int, str]:
    if not mark:
        return 0, 0, ""
    block, _, rest = mark.partition(",")
    handed, comma, begin = rest.partition(",")
    numbers = all(number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS for number in (block, handed))
    if not comma or not numbers or int(handed) > num_rows:
        raise ResumeError(
            f"{mark[:80]!r} is no place in a shuffled lane with blocks of {num_rows} rows; the state was edited, or "
            "saved with another sampling.shuffle or source.shuffle_buffer: resume with those"
        )
    return int(block), int(handed), begin
