"""Which quotas hold in which block of a mixture, and how much every part gave before.

The blocks of a run are numbered through, over all epochs. A segment is a run of blocks with the same quotas; it begins
at a block's start. What a part gave before a segment is a running sum, so the draws before any block are one look-up
and one multiplication, whatever was changed earlier.

The history of a run is its past as text: ``0:700,300;50000:500,500`` says that up to position 50,000 every block had
700 and 300 positions of the two parts, and 500 each from there on. It is the past as it was served, not as a config
has it now.

Shape letters: ``K`` blocks asked for, ``P`` parts.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.errors import ResumeError

__all__ = ["Schedule", "Segment", "parse_history"]

_SEGMENT = re.compile(r"(\d{1,19}):(\d{1,10}(?:,\d{1,10})*)", re.ASCII)


@final
@dataclass(frozen=True)
class Segment:
    """Blocks with the same quotas.

    Attributes:
        first_block: Its first block, counted over the whole run.
        quotas: Positions of each part in every block, shape ``(P,)``.
        before: Draws of each part in all blocks before it, shape ``(P,)``.
    """

    first_block: int
    quotas: tuple[int, ...]
    before: tuple[int, ...]

    def draws_before(self, block: int) -> tuple[int, ...]:
        """Return the draws of each part in all blocks before one of this segment."""
        num_blocks = block - self.first_block
        return tuple(count + num_blocks * quota for count, quota in zip(self.before, self.quotas, strict=True))


@final
class Schedule:
    """The segments of a run, ascending.

    Args:
        changes: First block and quotas of each segment; the first begins at block 0. A segment with the quotas of the
            one before it is taken as a part of it.
    """

    def __init__(self, changes: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        segments: list[Segment] = []
        for first_block, quotas in changes:
            if not segments:
                segments.append(Segment(first_block, quotas, (0,) * len(quotas)))
            elif quotas != segments[-1].quotas:
                segments.append(Segment(first_block, quotas, segments[-1].draws_before(first_block)))
        self.segments = tuple(segments)
        self._first_blocks = [segment.first_block for segment in segments]
        self._first_block_array: IndexArray = np.array(self._first_blocks, dtype=np.int64)

    @property
    def changes(self) -> list[tuple[int, tuple[int, ...]]]:
        """What it was made of."""
        return [(segment.first_block, segment.quotas) for segment in self.segments]

    def find(self, block: int) -> int:
        """Return which segment a block lies in."""
        return bisect_right(self._first_blocks, block) - 1

    def find_each(self, blocks: IndexArray) -> IndexArray:
        """Return which segment each block lies in, int64, shape ``(K,)``."""
        return np.searchsorted(self._first_block_array, blocks, side="right") - 1

    def history(self, position: int, block: int) -> str:
        """Return the segments that began before a position of the run, as text; empty at position 0."""
        begun = [segment for segment in self.segments if segment.first_block * block < position]
        return ";".join(f"{part.first_block * block}:{','.join(map(str, part.quotas))}" for part in begun)

    def resumed(self, history: str, position: int, block: int, num_parts: int) -> "Schedule":
        """Return the schedule of a run whose past is a history, and whose future is this schedule.

        The quotas that this schedule has at the next block's start apply from there on, and its later segments after
        that.

        Args:
            history: What :meth:`history` returned where the run was saved.
            position: That place, counted over the whole run.
            block: Positions of a block.
            num_parts: Parts of the mixture.

        Raises:
            ResumeError: if the history is damaged or not of this mixture.
        """
        past = parse_history(history, position, block, num_parts)
        next_block = -(-position // block)
        now = self.segments[self.find(next_block)]
        later = [change for change in self.changes if change[0] > next_block]
        return Schedule([*past, (next_block, now.quotas), *later])


def parse_history(history: str, position: int, block: int, num_parts: int) -> list[tuple[int, tuple[int, ...]]]:
    """Read what :meth:`Schedule.history` wrote: first block and quotas of each segment.

    Args:
        history: The text.
        position: Where the run was saved, counted over the whole run.
        block: Positions of a block.
        num_parts: Parts of the mixture.

    Raises:
        ResumeError: if it is damaged or not of this mixture.

    >>> parse_history("0:700,300;50000:500,500", 60_000, 1_000, 2)
    [(0, (700, 300)), (50, (500, 500))]
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    for text in history.split(";") if history else ():
        match = _SEGMENT.fullmatch(text)
        start, quotas = (int(match[1]), tuple(map(int, match[2].split(",")))) if match else (-1, ())
        first_block, rest = divmod(start, block)
        follows = first_block > found[-1][0] if found else start == 0
        if rest or not follows or start >= position or len(quotas) != num_parts or sum(quotas) != block:
            raise ResumeError(
                f"the saved history of mixture weights {history!r} does not fit: {text!r} must be START:QUOTA,... with "
                f"{num_parts} quotas that add up to a block of {block}, and a start that is a multiple of it, after "
                f"the one before, from 0 on and before position {position}; the state was edited or damaged, resume "
                "from another one"
            )
        found.append((first_block, quotas))
    if position and not found:
        raise ResumeError(
            f"the state was saved at position {position} of the run and holds no history of mixture weights; it was "
            "edited or damaged, resume from another one"
        )
    return found
