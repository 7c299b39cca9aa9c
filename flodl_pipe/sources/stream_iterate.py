"""One pass over one iterable of the user's: where it can begin again, and how its place is written down.

The place is a number of samples, to be skipped when the iterable is begun anew. Where the iterator, or the iterable,
has ``state_dict`` and ``load_state_dict``, its own state goes before that number, taken every ``STATE_EVERY`` samples::

    120                        begin anew, skip 120
    120.100.{"shard": 4, ...}  load the state of sample 100, skip 20
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import final

from flodl_pipe.arrays import Array
from flodl_pipe.errors import ResumeError
from flodl_pipe.sources.stream_samples import SampleRows
from flodl_pipe.units import format_count

__all__ = ["MAX_STATE_CHARS", "STATE_EVERY", "SampleFeed", "StateOf", "split_place"]

STATE_EVERY = 256
"""Samples between two states: a state may cost more than many a sample."""
MAX_STATE_CHARS = 16_384
"""Longest state that is kept: there is one per lane in every cursor."""
_MAX_DIGITS = 18
"""A number of a place fits 64 bits."""

StateOf = Callable[[], object]
"""Says where a pass stands, in what JSON can hold; None once nobody can say it any more."""


def split_place(mark: str) -> tuple[int, int, str]:
    """Read a place: samples passed, samples passed when the state was taken, the state as JSON.

    Raises:
        ResumeError: if it is none.
    """
    rows, _, rest = mark.partition(".")
    taken, _, state = rest.partition(".")
    numbers = [rows, taken] if rest else [rows]
    known = all(number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS for number in numbers)
    if not known or (rest and int(taken) > int(rows)) or not (_is_json(state) if rest else mark == rows):
        raise ResumeError(
            f"{mark[:80]!r} is no place in a stream of samples; the state was edited or belongs to another kind of "
            "stream, resume from another one"
        )
    return int(rows), int(taken or 0), state


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):  # of thousands of digits or brackets, too
        return False
    return True


@final
class SampleFeed:
    """Samples of one shard, in its own order; a :class:`flodl_pipe.sources.stream_protocol.LaneReader`.

    Args:
        begin: Starts the iterable, at a state if one is given; returns its samples, and what says their state if
            anything does.
        rows: What every sample holds, and how it is stored.
        what: The shard, for messages.
        no_state: Told why a state cannot be kept; from then on samples are skipped to come back to a place.
        mark: Where to begin.

    Raises:
        ResumeError: if the mark is none, or the iterable ends before it.
        Exception: what the iterable raises, itself, with a note.
    """

    def __init__(
        self,
        begin: Callable[[str], tuple[Iterator[object], StateOf | None]],
        rows: SampleRows,
        what: str,
        no_state: Callable[[str], None],
        mark: str = "",
    ) -> None:
        passed, self._taken, self._state = split_place(mark) if mark else (0, 0, "")
        self._stored, self._what, self._no_state, self._rows = rows, what, no_state, self._taken
        with self._noted():
            self._iterator, self._state_of = begin(self._state)
        if self.skip(passed - self._taken) < passed - self._taken:
            raise ResumeError(
                f"{what} ended after {format_count(self._rows)} samples, and the saved place is behind "
                f"{format_count(passed)}; it is not what it was, resume with the data the state was saved with"
            )

    def read_into(self, out: Mapping[str, Array], first_row: int, num_rows: int) -> int:
        """Write the next samples; see :meth:`flodl_pipe.sources.stream_protocol.LaneReader.read_into`."""
        targets, write = self._stored.targets(out), self._stored.write
        before = self._rows
        with self._noted():  # once a read: a block costs more than many a sample
            for sample in self._next(num_rows):
                write(sample, self._rows, first_row + self._rows - before, targets)
                self._passed()
        return self._rows - before

    def skip(self, num_rows: int) -> int:
        """Pass over samples; see :meth:`flodl_pipe.sources.stream_protocol.LaneReader.skip`."""
        before = self._rows
        with self._noted():
            for _ in self._next(num_rows):
                self._passed()
        return self._rows - before

    def mark(self) -> str:
        """Return the place of the next sample; see :meth:`flodl_pipe.sources.stream_protocol.LaneReader.mark`."""
        return f"{self._rows}.{self._taken}.{self._state}" if self._state else str(self._rows)

    def close(self) -> None:
        """Let go of the iterator."""
        self._iterator, self._state_of = iter(()), None

    def _next(self, num_rows: int) -> Iterator[object]:
        """Yield the next samples; an iterator that has ended is not asked again, which some answer with more."""
        for _ in range(num_rows):
            try:
                yield next(self._iterator)
            except StopIteration:
                self.close()
                return

    def _passed(self) -> None:
        self._rows += 1
        if self._state_of is not None and self._rows - self._taken >= STATE_EVERY:
            self._take_state(self._state_of)

    def _take_state(self, state_of: StateOf) -> None:
        state = state_of()
        try:
            text = json.dumps(state, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            self._no_state(f"is not what JSON can hold ({error})")
            state = None
        else:
            if len(text) > MAX_STATE_CHARS:
                self._no_state(f"takes {format_count(len(text))} characters, more than {format_count(MAX_STATE_CHARS)}")
                state = None
        if state is None:
            self._state_of = None  # the last state stays a good place to skip from
        else:
            self._state, self._taken = text, self._rows

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            error.add_note(f"while reading row {self._rows} of {self._what}")
            raise
