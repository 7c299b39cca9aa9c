"""Runs of tokens -> windows of ``seq_len + 1``, one after the other over all documents of a lane.

Two windows share one token, so that every token of a lane but its first is a target exactly once::

    tokens     0 1 2 3 4 5 6 7 8 9
    window 0   x x x x x
    window 1           x x x x x

What is held is the rest of the last run and one new one, or as many small ones as a window takes, and the anchors of
those tokens alone that a window begins with. Full windows inside it are a sliding view, copied at once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.errors import ResumeError
from flodl_pipe.sources.stream_tokens import Run

__all__ = ["Place", "WindowFeed"]

_MAX_PARTS = 64
"""Runs that wait to be joined: an array costs more than a short document."""
_MAX_DIGITS = 18
"""A place fits 64 bits."""


class Place(NamedTuple):
    """Where a token comes from.

    Attributes:
        file: Which file of the lane, in the order of this epoch.
        offset: Byte of its unpacked content.
        skip: Tokens between that byte and the token.
        line: Number of the line that begins there; 0 where lines are not counted.
    """

    file: int
    offset: int
    skip: int
    line: int

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Read what ``str`` made.

        Raises:
            ResumeError: if it is nothing of the kind.
        """
        numbers = text.split(".")
        known = all(number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS for number in numbers)
        if len(numbers) != 4 or not known:
            raise ResumeError(
                f"{text[:80]!r} is no place in a text stream; the state was edited or belongs to another kind of "
                "stream, resume from another one"
            )
        return cls(*map(int, numbers))


@final
class WindowFeed:
    """The windows of one lane, in order; a :class:`flodl_pipe.sources.stream_protocol.LaneReader`.

    Args:
        runs: Tokens from ``place`` on, each run with its file; closed with the feed.
        place: Where they begin; of the tokens, the first ``place.skip`` are passed over.
        num_files: Files of the lane: the place after its end.
        seq_len: Tokens of a window.
        dtype: Type of a stored token.
        has_places: For each file, whether every token has a byte of its own; see
            :mod:`flodl_pipe.sources.stream_tokens`.
        keep_tail: Make a padded window of the last tokens.
        left_out: Told the number of tokens that were in no window, when the lane ends.

    Raises:
        ResumeError: when it is read: if there are fewer tokens than ``place.skip``.
    """

    def __init__(
        self,
        runs: Iterator[tuple[int, Run]],
        place: Place,
        *,
        num_files: int,
        seq_len: int,
        dtype: str,
        has_places: Sequence[bool],
        keep_tail: bool,
        left_out: Callable[[int], None],
    ) -> None:
        self._runs, self._begin, self._num_files = runs, place, num_files
        self._seq_len, self._has_places, self._keep_tail, self._left_out = seq_len, has_places, keep_tail, left_out
        self._tokens: Array = np.empty(0, dtype=dtype)
        self._at = place.skip  # next window's first token in `_tokens`
        self._anchors: IndexArray = np.empty((0, 4), dtype=np.int64)  # token, and its file, offset and line
        self._fresh = place == Place(0, 0, 0, place.line)  # no window came before
        self._ended = False

    def read_into(self, out: Mapping[str, Array], first_row: int, num_rows: int) -> int:
        """Write the next windows; see :meth:`flodl_pipe.sources.stream_protocol.LaneReader.read_into`."""
        return self._advance(num_rows, out, first_row)

    def skip(self, num_rows: int) -> int:
        """Pass over windows; see :meth:`flodl_pipe.sources.stream_protocol.LaneReader.skip`."""
        return self._advance(num_rows, None, 0)

    def mark(self) -> str:
        """Return where the next window begins; see :meth:`flodl_pipe.sources.stream_protocol.LaneReader.mark`."""
        return str(self._place())

    def close(self) -> None:
        """Let go of the file being read."""
        self._runs = iter(())
        self._tokens = self._tokens[:0].copy()

    def _place(self) -> Place:
        if self._ended and self._at >= len(self._tokens):
            return Place(self._num_files, 0, 0, 0)
        if self._at >= len(self._tokens):
            return self._begin
        anchor = int(self._anchors[:, 0].searchsorted(self._at, side="right")) - 1
        first, file, offset, line = self._anchors[anchor].tolist()
        ahead = self._at - first
        if self._has_places[file]:
            return Place(file, offset + ahead, 0, 0)
        return Place(file, offset, ahead, line)

    def _advance(self, num_rows: int, out: Mapping[str, Array] | None, first_row: int) -> int:
        done = 0
        while done < num_rows:
            ready = (len(self._tokens) - self._at - 1) // self._seq_len
            if ready > 0:
                count = min(ready, num_rows - done)
                if out is not None:
                    self._copy(out, first_row + done, count)
                self._at += count * self._seq_len
                self._fresh = False
                done += count
            elif self._ended:
                return done + self._finish(out, first_row + done)
            else:
                self._refill()
        return done

    def _copy(self, out: Mapping[str, Array], row: int, count: int) -> None:
        width, item = self._seq_len + 1, self._tokens.itemsize
        windows = np.lib.stride_tricks.as_strided(
            self._tokens[self._at :], (count, width), (self._seq_len * item, item), writeable=False
        )
        np.copyto(out["tokens"][row : row + count], windows)
        if self._keep_tail:
            out["num_tokens"][row : row + count] = width

    def _finish(self, out: Mapping[str, Array] | None, row: int) -> int:
        """Deal with the last tokens, once; return the windows they make."""
        left = max(len(self._tokens) - self._at, 0)
        rest = self._tokens[self._at :]
        self._tokens, self._at = self._tokens[:0], 0
        if left >= 2 and self._keep_tail:  # a token and its target
            if out is not None:
                out["tokens"][row, :left] = rest
                out["tokens"][row, left:] = 0
                out["num_tokens"][row] = left
            self._fresh = False
            return 1
        lost = left if self._fresh else left - 1
        if lost > 0:
            self._left_out(lost)
        return 0

    def _refill(self) -> None:
        """Take runs until a window is full or the lane ends, behind what is left of the tokens."""
        parts, anchors = [self._tokens[self._at :]], [self._rest_of_anchors()]
        held = len(parts[0])
        owed = max(self._at - len(self._tokens), 0)  # tokens to pass over that have not come yet
        while held <= self._seq_len:
            found = next(self._runs, None)
            if found is None:
                self._ended = True
                break
            file, run = found
            if owed >= len(run.tokens):
                owed -= len(run.tokens)
                continue
            if len(parts) >= _MAX_PARTS:
                parts, anchors = [np.concatenate(parts)], [np.concatenate(anchors)]
            parts.append(run.tokens[owed:])
            anchors.append(self._anchors_of(file, run, held, owed))
            held += len(parts[-1])
            owed = 0
        if self._begin.skip and self._ended and not held:
            raise ResumeError(
                f"the saved place is behind {self._begin.skip} tokens of a document, and the lane ends before; the "
                "state belongs to other data, resume with the data it was saved with"
            )
        self._at = owed
        self._tokens, self._anchors = np.concatenate(parts), np.concatenate(anchors)

    def _anchors_of(self, file: int, run: Run, held: int, owed: int) -> IndexArray:
        """Return the anchors of a run that windows begin at, to be put behind ``held`` tokens without its first ones.

        Nobody asks for the place of another token, and there may be as many anchors as tokens.
        """
        picks = np.arange(len(run.first))
        begins = np.arange(owed + -held % self._seq_len, len(run.tokens), self._seq_len)
        if len(begins) < len(picks):
            picks = np.unique(run.first.searchsorted(begins, side="right") - 1)
        anchors = np.empty((len(picks), 4), dtype=np.int64)
        anchors[:, 0] = run.first[picks] + (held - owed)
        anchors[:, 1] = file
        anchors[:, 2] = run.offset[picks]
        anchors[:, 3] = run.line[picks]
        return anchors

    def _rest_of_anchors(self) -> IndexArray:
        """Return the anchors from the one on that the first token not yet passed hangs on, counted from that token."""
        if self._at >= len(self._tokens):
            return self._anchors[:0]
        begin = int(self._anchors[:, 0].searchsorted(self._at, side="right")) - 1
        rest = self._anchors[begin:].copy()
        rest[:, 0] -= self._at
        return rest
