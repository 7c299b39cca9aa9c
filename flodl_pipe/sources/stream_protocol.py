"""The stream contract: rows of one spec without an index, in ``L`` lanes that are read from the front.

A lane is a deterministic sequence of rows for ``(seed, epoch, shuffle)``; every row of the data is in exactly one lane,
once an epoch. The number of lanes is a constant of the recipe. It depends neither on ranks nor on readers, so a loader
that deals positions over lanes round-robin delivers the same stream to any number of them, and one mark per lane is all
there is to resume::

    lane 0   r r r r r | mark          open_lane(0, mark=...) continues behind it
    lane 1   r r r | mark
    lane 2   r r r r | mark

``tests/contract/streams.py`` holds the battery that checks every implementation.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from flodl_pipe.arrays import Array
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.sources.protocol import Fact, Fingerprint

__all__ = ["LaneReader", "RaggedStream", "Stream"]


class LaneReader(Protocol):
    """One pass over one lane, from where it was opened to the lane's end.

    One thread uses a reader at a time; readers of different lanes, and several of one lane, do not disturb each other.
    """

    def read_into(self, out: Mapping[str, Array], first_row: int, num_rows: int) -> int:
        """Write the lane's next rows to rows ``first_row ..`` of ``out``.

        Args:
            out: One C-contiguous array per field of ``spec``, shape ``(B, *field.shape)`` with
                ``B >= first_row + num_rows``.
            first_row: Where the first one goes.
            num_rows: Rows wanted, at least 0.

        Returns:
            Rows written. Fewer than asked for means that the lane has ended; from then on it is 0.

        Raises:
            SourceError: if data is missing or damaged; the message names file and place. Errors of a user's own
                iterable come as they are, with a note of lane and row.
        """
        ...

    def skip(self, num_rows: int) -> int:
        """Move on as :meth:`read_into` does, without writing; return the rows passed."""
        ...

    def mark(self) -> str:
        """Return where the next row is: printable text without line breaks, for ``open_lane(mark=...)``.

        Takes microseconds, so that it can be asked for at every step, and does not move the reader.
        """
        ...

    def close(self) -> None:
        """Let go of buffers and files. A closed reader is not read again."""
        ...


@runtime_checkable
class Stream(Protocol):
    """Rows of one spec in lanes; see the module for what a lane promises.

    A stream can be pickled and forked where its parts can; it holds nothing open between lanes.
    """

    spec: SampleSpec
    """The stored row (narrow dtypes)."""

    delivered: SampleSpec
    """What a batch holds."""

    num_lanes: int
    """Number of lanes, at least 1."""

    buffer_bytes: int
    """Host memory that the buffers of all lanes take together, when every lane is open once."""

    tag: str
    """Kind and constants that decide the order (lanes, shuffle block, versions): part of every cursor."""

    num_samples_estimate: int | None
    """Rows of an epoch, estimated from sizes; None where nothing is known."""

    def open_lane(self, lane: int, *, seed: int, epoch: int, shuffle: bool, mark: str = "") -> LaneReader:
        """Open a lane at its beginning, or where a mark of the same lane, seed, epoch and ``shuffle`` says.

        Raises:
            ResumeError: if the mark is not one of this lane.
            SourceError: if data is missing or damaged.
        """
        ...

    def count_lane(self, lane: int, *, seed: int, epoch: int, shuffle: bool) -> int:
        """Return the rows of a lane by reading it: several ranks have to agree on them beforehand."""
        ...

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Turn stored rows into delivered rows; see :meth:`flodl_pipe.sources.protocol.Source.deliver`."""
        ...

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of the content, as far as it can be told; ``full`` reads every byte where possible."""
        ...

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` should tell: files, lanes, what is left out and why."""
        ...

    def check_unchanged(self) -> None:
        """Compare the data with what it was when the stream was built.

        Raises:
            ChangedError: naming the file.
        """
        ...

    def close(self) -> None:
        """Close what is open in this process; a later read opens it again."""
        ...


@runtime_checkable
class RaggedStream(Stream, Protocol):
    """A stream that may deliver ragged fields; then :meth:`deliver_rows` delivers, and ``deliver`` refuses, aloud.

    Its stored rows are of one size all the same: a row as long as the longest there may be, and its length beside it.
    """

    def deliver_rows(self, stored: Mapping[str, Array]) -> Columns:
        """Turn stored rows, one array of shape ``(B, *field.shape)`` a field, into delivered ones of their own."""
        ...
