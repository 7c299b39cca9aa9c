"""Picks ahead of time: the order evaluated for many steps at once.

One call of a shuffle for a batch of 32 costs about 40 us, nearly all of it overhead; for 8,192 positions it is 15 ns
each. Steps are therefore planned in chunks of about 8,192 rows, and the last three chunks are kept: readers ask in
order. Steps of different sizes, which a batch sampler makes, are planned one by one: its order is a table. So are steps
whose shares may change, and no further ahead than their shares are settled.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.sampling.orders import Order, samples_of
from flodl_pipe.sampling.planned_steps import PlannedSteps, of_this_pass
from flodl_pipe.sampling.steps import EpochSteps, RankStep

__all__ = ["Draw", "Lookahead", "Rows"]

Draw = Callable[[IndexArray, IndexArray, int], tuple[Array, ...]]

_ROWS_AHEAD = 8192
_CHUNKS_KEPT = 3


@final
class Rows(NamedTuple):
    """What stands in some rows, each int64 of shape ``(rows,)``.

    Attributes:
        positions: Position of each row; at or beyond the epoch's end for padding.
        samples: Sample of each row.
        repeats: Which of its sample's appearances each row is.
        draws: What fused transforms drew for each row; see
            :meth:`flodl_pipe.transforms.protocol.ArrayTransform.draw`. Empty without them.
    """

    positions: IndexArray
    samples: IndexArray
    repeats: IndexArray
    draws: tuple[Array, ...] = ()

    def part(self, rows: slice) -> "Rows":
        """Return some of the rows."""
        draws = tuple(drawn[rows] for drawn in self.draws)
        return Rows(self.positions[rows], self.samples[rows], self.repeats[rows], draws)


@final
class Lookahead:
    """Positions and picks of this rank, step by step, from one place in an epoch on. Thread-safe.

    Args:
        steps: The steps of an epoch, for this rank.
        order: The family of orders.
        epoch: Which epoch.
        position: Where step 0 begins.
        group_steps: Steps that are gathered together.
        draw: Draws what fused transforms need for rows of (samples, repeats, epoch); None without them. Like the
            order, it costs far less a row for thousands than for a batch.
    """

    def __init__(
        self,
        steps: EpochSteps,
        order: Order,
        *,
        epoch: int,
        position: int,
        group_steps: int = 1,
        draw: Draw | None = None,
    ) -> None:
        self.epoch = epoch
        self.position = position
        self._steps = of_this_pass(steps.of_epoch(epoch))
        self.num_steps = self._steps.num_steps(position)
        self._family = order
        self._draw = draw
        self._order = order.epoch(epoch)
        # Whole groups: the rest of a chunk would be a small one.
        per_chunk = max(1, _ROWS_AHEAD // steps.max_rows // group_steps) * group_steps
        self.chunk_steps = per_chunk if steps.is_even else 1
        self._lock = threading.Lock()
        self._chunks: dict[int, Rows] = {}

    @property
    def last_is_short(self) -> bool:
        """Whether the last step has another number of rows than those before it."""
        if not self._steps.is_even:
            return False  # groups of one step are all alike
        return self.num_steps > 1 and self.step(self.num_steps - 1).num_rows != self.step(0).num_rows

    @property
    def shares(self) -> PlannedSteps | None:
        """The steps, where the shares of those to come may change."""
        return self._steps if isinstance(self._steps, PlannedSteps) else None

    def step(self, step: int) -> RankStep:
        """Return what a step is, counted from where the pass begins."""
        return self._steps.step(step, self.position)

    def rows(self, first_step: int, num_steps: int) -> Rows:
        """Return what stands in some steps' rows.

        Positions beyond the epoch's end (padding) have the pick of the position they repeat. All steps asked for must
        lie in one chunk of :attr:`chunk_steps`.
        """
        chunk, offset = divmod(first_step, self.chunk_steps)
        # Only the last step of an epoch may have another number of rows, more or fewer: those before it are multiples.
        num_rows = self.step(first_step - offset).num_rows
        begin = offset * num_rows
        end = begin + (num_steps - 1) * num_rows + self.step(first_step + num_steps - 1).num_rows
        rows = self._chunk(chunk).part(slice(begin, end))
        # Copies: batches keep them, and would keep the whole chunk.
        return rows._replace(samples=_kept(rows.samples), repeats=_kept(rows.repeats))

    def prepare(self, step: int) -> None:
        """Plan the chunk after the one that ``step`` lies in, unless it is planned.

        For the loop's own thread to call: the hundred array operations of a chunk release the interpreter, each, and
        beside a loop in pure Python a reader would wait for it a hundred times.
        """
        if not self._steps.is_even:
            return  # a chunk is a step, and readers are further
        following = step // self.chunk_steps + 1
        if following * self.chunk_steps < self.num_steps and following not in self._chunks:
            self._chunk(following)

    def _chunk(self, chunk: int) -> Rows:
        with self._lock:
            if chunk not in self._chunks:
                while len(self._chunks) >= _CHUNKS_KEPT:
                    del self._chunks[min(self._chunks)]
                self._chunks[chunk] = self._plan(chunk * self.chunk_steps)
            return self._chunks[chunk]

    def _plan(self, first: int) -> Rows:
        last = min(first + self.chunk_steps, self.num_steps)
        begin, end = self.step(first), self.step(last - 1)
        if begin.num_rows == self._steps.global_batch:  # of one rank: positions without a gap
            positions = np.arange(begin.start, end.stop, dtype=np.int64)
        else:
            starts = begin.start + self._steps.global_batch * np.arange(last - first - 1, dtype=np.int64)
            full = (starts[:, None] + np.arange(begin.num_rows, dtype=np.int64)).ravel()
            positions = np.concatenate([full, np.arange(end.start, end.stop, dtype=np.int64)])
        # A division takes longer than all else that is done to a position here.
        within = positions if end.stop <= self._steps.num_picks else positions % self._steps.num_picks
        samples, repeats = samples_of(self._family, within, self._order.pick(within))
        for numbers in (positions, samples, repeats):
            numbers.setflags(write=False)  # they are what transforms see as keys, and readers go by them
        draws = () if self._draw is None else self._draw(samples, repeats, self.epoch)
        return Rows(positions, samples, repeats, draws)


def _kept(numbers: IndexArray) -> IndexArray:
    numbers = numbers.copy()
    numbers.setflags(write=False)
    return numbers
