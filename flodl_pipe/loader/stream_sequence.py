"""Dealing the positions of a stream over its lanes, and gathering the rows of one rank.

Lanes take turns of ``turn_rows`` rows each, a lane that has ended is passed over::

    2 lanes, turns of 2       position   0  1  2  3  4  5  6  7
    lane 0 has 3 rows         row       a0 a1 b0 b1 a2 b2 b3 b4
    lane 1 has 5 rows

Which row stands at a position follows from the lanes' lengths alone. A turn is a step's rows divided by the lanes, so a
rank's share of every step comes from the same lanes, and it reads no others as long as all last. One rank alone finds
out where a lane ends when it gets there; several must know beforehand, because each has to know what the others do.

A row's pick is its lane and its place in it: ``lane << 40 | row``.
"""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.errors import SourceError
from flodl_pipe.loader.stream_state import LaneState, StreamState
from flodl_pipe.sources.stream_protocol import LaneReader, Stream

__all__ = ["LANE_SHIFT", "StreamSequence"]

LANE_SHIFT = 40
"""Bits of a pick that count the rows of a lane."""


@final
class StreamSequence:
    """The rows of one rank, step after step. One thread uses it at a time.

    Args:
        stream: The data.
        seed: Run seed.
        epoch: Which epoch.
        shuffle: Whether lanes are shuffled.
        turn_rows: Rows of a lane's turn.
        lengths: Rows of each lane; None: found out on the way, which needs every position to be wanted.
        state: Where to begin.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        seed: int,
        epoch: int,
        shuffle: bool,
        turn_rows: int,
        lengths: Sequence[int] | None,
        state: StreamState,
    ) -> None:
        self._turn_rows = turn_rows
        self._lane, self._in_turn = state.lane, state.in_turn
        self._lanes = [
            _Lane(stream, number, seed, epoch, shuffle, lane, None if lengths is None else lengths[number])
            for number, lane in enumerate(state.lanes)
        ]

    def take(self, num_positions: int, first: int, stop: int, out: Mapping[str, Array], picks: IndexArray) -> int:
        """Move on by up to ``num_positions``, and read those from ``first`` to ``stop - 1`` of them.

        Args:
            num_positions: Positions of a step over all ranks.
            first: First one that is this rank's.
            stop: One past the last.
            out: Takes the stored rows, from row 0 on.
            picks: Takes their picks, int64, shape ``(stop - first,)`` or longer.

        Returns:
            Positions that there were: fewer than asked for at the end of the epoch.

        Raises:
            SourceError: what reading raises, or if a lane is not as long as it was counted.
        """
        done = 0
        while done < num_positions and not all(lane.ended for lane in self._lanes):
            lane = self._lanes[self._lane]
            wanted = min(self._turn_rows - self._in_turn, num_positions - done)
            low, high = (min(max(edge - done, 0), wanted) for edge in (first, stop))
            got = 0 if lane.ended else lane.take(wanted, low, high, out, done + low - first, picks)
            done += got
            self._in_turn += got
            if got < wanted or self._in_turn == self._turn_rows:
                self._lane, self._in_turn = (self._lane + 1) % len(self._lanes), 0
        return done

    def state(self) -> StreamState:
        """Return where the sequence stands."""
        return StreamState(tuple(lane.state() for lane in self._lanes), self._lane, self._in_turn)

    def end(self) -> StreamState:
        """Return the end of the epoch, once it is known where that is: the same for every rank."""
        return StreamState(tuple(LaneState(lane.num_rows, ended=True) for lane in self._lanes))

    def close(self) -> None:
        """Close the lanes."""
        for lane in self._lanes:
            lane.close()


@final
class _Lane:
    """One lane: opened when a row of it is wanted, and moved on only then."""

    def __init__(
        self, stream: Stream, number: int, seed: int, epoch: int, shuffle: bool, state: LaneState, length: int | None
    ) -> None:
        self._stream, self._number = stream, number
        self._seed, self._epoch, self._shuffle = seed, epoch, shuffle
        self._length = length
        self._reader: LaneReader | None = None
        self._state = state
        self._rows, self.ended = state.rows, state.ended
        # Rows that the reader has yet to pass before it stands at row `_rows`.
        self._behind = state.rows - state.mark_rows

    def take(self, wanted: int, low: int, high: int, out: Mapping[str, Array], row: int, picks: IndexArray) -> int:
        """Move on by up to ``wanted`` rows, reading rows ``low .. high - 1`` of them to ``row`` and on."""
        there = wanted if self._length is None else min(wanted, self._length - self._rows)
        num_read = max(0, min(high, there) - low)
        if num_read:
            there = self._read(low, num_read, there, out, row)
            num_read = min(num_read, there - low)
            first = (self._number << LANE_SHIFT) + self._rows + low
            picks[row : row + num_read] = np.arange(first, first + num_read)
        else:
            self._behind += there
        self._rows += there
        self.ended = there < wanted
        return there

    def _read(self, low: int, num_rows: int, there: int, out: Mapping[str, Array], row: int) -> int:
        reader = self._open()
        before = self._behind + low
        passed = reader.skip(before) if before else 0
        got = reader.read_into(out, row, num_rows) if passed == before else 0
        if got < num_rows:
            if self._length is not None or passed < before:
                raise SourceError(
                    f"lane {self._number} ended after {self._rows + max(0, passed - self._behind) + got} rows, and "
                    f"more were there before; the data changed, start the run again"
                )
            there = low + got
        self._behind = there - low - got
        return there

    def _open(self) -> LaneReader:
        if self._reader is None:
            self._reader = self._stream.open_lane(
                self._number, seed=self._seed, epoch=self._epoch, shuffle=self._shuffle, mark=self._state.mark
            )
        return self._reader

    @property
    def num_rows(self) -> int:
        """Rows of the lane, once it has ended or was counted."""
        return self._rows if self._length is None else self._length

    def state(self) -> LaneState:
        """Return where the lane stands; the same object as before when it has not moved."""
        state = self._state
        if (state.rows, state.ended) == (self._rows, self.ended):
            return state
        mark, mark_rows = state.mark, state.mark_rows
        if self._reader is not None:
            mark = self._reader.mark()
            mark_rows = self._rows - self._behind if mark else 0  # no mark: the lane is opened at its begin
        self._state = LaneState(self._rows, self.ended, mark, mark_rows)
        return self._state

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
