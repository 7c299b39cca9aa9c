"""Runs of tokens -> documents, one row each, of any length up to a limit.

A row has the width of the limit, so that blocks, marks and digests of documents are those of any other rows: the tokens
of one document, zeros behind them, and beside them how many there are. A longer document is an error, which comes when
the documents before it were handed out::

    tokens      h i . a . o n e .          max_length 4, "." ends a document
    tokens      h i . 0 | a . 0 0 | o n e .
    num_tokens  3       | 2       | 4

The place of a lane is the last document that was handed out and its tokens, to be passed over. It names a document that
was read, not the begin of one that was not looked for yet, and is the same wherever portions were cut.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.errors import ResumeError, SourceError
from flodl_pipe.sources.stream_tokens import Run
from flodl_pipe.sources.stream_windows import Place

__all__ = ["MAX_COUNTED", "DocumentFeed"]

MAX_COUNTED = 1 << 26
"""Tokens of a document that are counted to say how long it is: of a file without line ends one need not see the end."""

_COPIED_TOKENS = 1 << 16
"""Tokens that are copied at once: the place of each takes 8 bytes."""


@final
class DocumentFeed:
    """The documents of one lane, in order; a :class:`flodl_pipe.sources.stream_protocol.LaneReader`.

    Args:
        runs: Tokens from ``place`` on, each run with its file; closed with the feed.
        place: A document and its tokens, which are passed over; or a lane's begin.
        max_length: Most tokens of a document.
        dtype: Type of a stored token.
        end: The id that ends a document and is part of it; None: each anchor of a run begins one.
        too_long: Makes the error of a document at a place that has so many tokens, or more where they were not counted
            to their end.

    Raises:
        ResumeError: if ``place`` is neither; when it is read: if no document of that length is there.
    """

    def __init__(
        self,
        runs: Iterator[tuple[int, Run]],
        place: Place,
        *,
        max_length: int,
        dtype: str,
        end: int | None,
        too_long: Callable[[Place, int, bool], SourceError],
    ) -> None:
        if not place.skip and (place.file or place.offset):
            raise ResumeError(
                f"{place} is no place between two documents; the state was edited or belongs to another kind of "
                "stream, resume from another one"
            )
        self._runs, self._last, self._owed = runs, place, place.skip
        self._max_length, self._end, self._too_long = max_length, end, too_long
        self._tokens: Array = np.empty(0, dtype=dtype)  # whole documents, and the begin of one perhaps
        self._begins = self._ends = np.empty(0, dtype=np.int64)
        self._next = self._num_fit = 0  # the next document, and how many come before one that is too long
        self._first_place = place  # of the document that token 0 belongs to
        self._run_begin = 0  # where the tokens of the run begin that the anchors are of
        self._file, self._run = 0, Run(self._tokens, self._begins, self._begins, self._begins)
        self._long: tuple[Place, int, bool] | None = None

    def read_into(self, out: Mapping[str, Array], first_row: int, num_rows: int) -> int:
        """Write the next documents; see :meth:`flodl_pipe.sources.stream_protocol.LaneReader.read_into`."""
        return self._advance(num_rows, out, first_row)

    def skip(self, num_rows: int) -> int:
        """Pass over documents; see :meth:`flodl_pipe.sources.stream_protocol.LaneReader.skip`."""
        return self._advance(num_rows, None, 0)

    def mark(self) -> str:
        """Return the place; see :meth:`flodl_pipe.sources.stream_protocol.LaneReader.mark`."""
        return str(self._place())

    def close(self) -> None:
        """Let go of the file being read."""
        self._last = self._place()
        self._runs = iter(())
        self._forget(self._tokens[:0].copy())

    def _advance(self, num_rows: int, out: Mapping[str, Array] | None, first_row: int) -> int:
        done = 0
        while done < num_rows:
            count = min(self._num_fit - self._next, num_rows - done)
            if count > 0:
                count = count if out is None else self._at_once(count)
                if out is not None:
                    self._copy(out, first_row + done, count)
                self._next += count
                done += count
            elif self._long is not None:
                raise self._too_long(*self._long)
            elif not self._refill():
                break
        return done

    def _at_once(self, count: int) -> int:
        """Return how many of the next documents to copy together; one that is long by itself."""
        most = int(self._begins[self._next]) + _COPIED_TOKENS
        return max(int(self._ends[self._next : self._next + count].searchsorted(most, side="right")), 1)

    def _copy(self, out: Mapping[str, Array], row: int, count: int) -> None:
        begins, ends = self._begins[self._next : self._next + count], self._ends[self._next : self._next + count]
        lengths = ends - begins
        rows = out["tokens"][row : row + count]
        out["num_tokens"][row : row + count] = lengths
        if count == 1:
            rows[0, : lengths[0]] = self._tokens[begins[0] : ends[0]]
            rows[0, lengths[0] :] = 0
            return
        rows[...] = 0
        # Token t of these documents, in row r, goes to place t + r * max_length - (tokens of the rows before).
        places = np.arange(ends[-1] - begins[0], dtype=np.int64)
        places += np.repeat(np.arange(count) * self._max_length - (begins - begins[0]), lengths)
        rows.reshape(-1)[places] = self._tokens[begins[0] : ends[-1]]

    def _refill(self) -> bool:
        """Take runs until a document ends in one; return whether there is any."""
        self._last = self._place()
        begun = int(self._ends[-1]) if len(self._ends) else 0
        parts, held = [self._tokens[begun:]], len(self._tokens) - begun
        if held:
            self._first_place = self._place_of(begun)
        while True:
            found = next(self._runs, None)
            if found is None:
                self._forget(self._tokens[:0])
                if self._owed:
                    raise self._not_there("the lane ends before")
                return False
            self._file, self._run = found
            ends = self._ends_in(self._run)
            self._run_begin = held
            if len(ends):
                break
            if not held:
                self._first_place = self._place_of(0)
            parts.append(self._run.tokens)
            held += len(self._run.tokens)
            if held > self._max_length:
                self._forget(self._tokens[:0])
                self._long = self._count_on(held)
                return True
        self._tokens = np.concatenate([*parts, self._run.tokens]) if held else self._run.tokens
        self._ends = ends + held
        self._begins = np.concatenate([[0], self._ends[:-1]])
        self._next = 0
        lengths = self._ends - self._begins
        if self._owed:
            self._pass_over(int(lengths[0]))
        self._num_fit = len(lengths)
        if int(lengths.max()) > self._max_length:
            self._num_fit = int(np.argmax(lengths > self._max_length))
            self._long = (self._place_of(int(self._begins[self._num_fit])), int(lengths[self._num_fit]), True)
        return True

    def _pass_over(self, length: int) -> None:
        if length != self._owed:
            raise self._not_there(f"it has {length}")
        self._next, self._owed = 1, 0

    def _not_there(self, why: str) -> ResumeError:
        return ResumeError(
            f"the saved place is behind a document of {self._owed} tokens, and {why}; the state belongs to other data, "
            "resume with the data it was saved with"
        )

    def _count_on(self, length: int) -> tuple[Place, int, bool]:
        """Return place and length of the document that ``length`` tokens were read of, as far as it is counted."""
        for _, run in self._runs:
            ends = self._ends_in(run)
            if len(ends):
                return self._first_place, length + int(ends[0]), True
            length += len(run.tokens)
            if length > MAX_COUNTED:
                break
        return self._first_place, length, False

    def _ends_in(self, run: Run) -> IndexArray:
        """Return the ends of the documents that end in a run."""
        if self._end is None:
            return np.append(run.first[1:], len(run.tokens))
        return np.flatnonzero(run.tokens == self._end) + 1

    def _place(self) -> Place:
        """Return the last document handed out, and its tokens."""
        if not self._next:
            return self._last
        begin, end = int(self._begins[self._next - 1]), int(self._ends[self._next - 1])
        return self._place_of(begin)._replace(skip=end - begin)

    def _place_of(self, begin: int) -> Place:
        """Return where the document comes from that begins at a token."""
        ahead = begin - self._run_begin
        if ahead < 0:
            return self._first_place
        anchor = int(self._run.first.searchsorted(ahead, side="right")) - 1
        first, offset = int(self._run.first[anchor]), int(self._run.offset[anchor])
        return Place(self._file, offset + ahead - first, 0, int(self._run.line[anchor]))

    def _forget(self, tokens: Array) -> None:
        """Hold no documents."""
        self._tokens = tokens
        self._begins = self._ends = np.empty(0, dtype=np.int64)
        self._next = self._num_fit = 0
