"""What the rows of a text stream are: windows of tokens that run on over the ends of documents, or whole documents.

::

    windows      tokens (seq_len + 1,)              input, target (seq_len,)
    documents    tokens (max_length,), num_tokens   input_ids (*,)

Both are stored as rows of one size. Documents become ragged when they are delivered.

Shape letters: ``B`` rows, ``T`` their lengths added up.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Protocol, final

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import ConfigError, LoaderError, SourceError
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.sources.shifted import deliver_windows, delivered_spec, stored_spec
from flodl_pipe.sources.stream_documents import DocumentFeed
from flodl_pipe.sources.stream_estimate import Estimate
from flodl_pipe.sources.stream_files import TextFiles
from flodl_pipe.sources.stream_protocol import LaneReader
from flodl_pipe.sources.stream_tokens import END_OF_DOCUMENT
from flodl_pipe.sources.stream_windows import Place, WindowFeed
from flodl_pipe.sources.token_files import named
from flodl_pipe.units import format_count

__all__ = ["DocumentRows", "RowKind", "WindowRows", "row_kind"]

_logger = logging.getLogger("flodl_pipe")


class RowKind(Protocol):
    """What is made of the tokens of a lane.

    Attributes:
        name: What a row is, in the plural.
        spec: The stored row.
        delivered: What a batch holds.
        summary: Its size, in words.
        layout: What tells it from other kinds with the same stored row, for fingerprints.
    """

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> SampleSpec: ...
    @property
    def delivered(self) -> SampleSpec: ...
    @property
    def summary(self) -> str: ...
    @property
    def layout(self) -> str: ...

    def open(self, files: TextFiles, lane: int, chosen: list[int], place: Place) -> LaneReader:
        """Open a lane that holds the chosen files, at a place."""
        ...

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """As :meth:`flodl_pipe.sources.protocol.Source.deliver`."""
        ...

    def deliver_rows(self, stored: Mapping[str, Array]) -> Columns:
        """As :meth:`flodl_pipe.sources.stream_protocol.RaggedStream.deliver_rows`."""
        ...

    def count(self, estimate: Estimate) -> int | None:
        """Return about how many rows there are; None where the estimate does not tell."""
        ...

    def require_enough(self, files: TextFiles) -> None:
        """Raise SourceError if it is certain that there is no row."""
        ...

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells about them."""
        ...


def row_kind(rows: str, *, seq_len: int | None, max_length: int | None, tail: str, dtype: str) -> RowKind:
    """Return what the rows are to be.

    Args:
        rows: ``windows`` or ``documents``.
        seq_len: Tokens of a window.
        max_length: Most tokens of a document.
        tail: What becomes of the tokens after the last whole window: ``drop`` or ``keep``.
        dtype: Type of a stored token.

    Raises:
        ConfigError: if one of them is impossible, missing, or nothing to such rows.
    """
    if rows not in ("windows", "documents"):
        raise ConfigError.at("source.rows", f"must be windows or documents, got {rows!r}")
    if tail not in ("drop", "keep"):
        raise ConfigError.at("source.tail", f"must be drop or keep, got {tail!r}")
    wanted, given, other, unused = "seq_len", seq_len, "max_length", max_length
    if rows == "documents":
        wanted, given, other, unused = other, unused, wanted, given
    if given is None:
        raise ConfigError.at(f"source.{wanted}", f"must be set where rows are {rows}, got null")
    if unused is not None:
        raise ConfigError.at(
            f"source.{other}", f"must be null where rows are {rows}, got {unused}; {wanted} says how large they are"
        )
    if given < 1:
        raise ConfigError.at(f"source.{wanted}", f"must be at least 1, got {given}")
    if rows == "windows":
        return WindowRows(given, dtype, keep_tail=tail == "keep")
    if tail == "keep":
        raise ConfigError.at(
            "source.tail", "must be drop where rows are documents, got 'keep': every document is whole"
        )
    return DocumentRows(given, dtype)


@final
class WindowRows:
    """Windows of ``seq_len`` tokens; a :class:`RowKind`.

    Args:
        seq_len: Tokens of a window.
        dtype: Type of a stored token.
        keep_tail: Make a padded window of a lane's last tokens.
    """

    name = "windows"
    layout = ""

    def __init__(self, seq_len: int, dtype: str, *, keep_tail: bool) -> None:
        self._seq_len, self._dtype, self._keep_tail = seq_len, dtype, keep_tail
        self._said_tail = False
        self.spec = stored_spec(dtype, seq_len, keep_tail=keep_tail)
        self.delivered = delivered_spec(seq_len)
        self.summary = f"seq_len {seq_len}{', tail kept' if keep_tail else ''}"

    def open(self, files: TextFiles, lane: int, chosen: list[int], place: Place) -> LaneReader:
        """Open a lane; see :meth:`RowKind.open`."""
        return WindowFeed(
            files.runs(chosen, place),
            place,
            num_files=len(chosen),
            seq_len=self._seq_len,
            dtype=self._dtype,
            has_places=[files.has_places(file) for file in chosen],
            keep_tail=self._keep_tail,
            left_out=partial(self._say_tail, lane),
        )

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Slice and widen stored windows; see :meth:`RowKind.deliver`."""
        deliver_windows(stored, out, keep_tail=self._keep_tail)

    def deliver_rows(self, stored: Mapping[str, Array]) -> Columns:
        """Slice and widen stored windows, to arrays of their own; see :meth:`RowKind.deliver_rows`."""
        out = self.delivered.empty(len(stored["tokens"]))
        self.deliver(stored, out)
        return dict(out)

    def count(self, estimate: Estimate) -> int | None:
        """Return about how many windows there are; see :meth:`RowKind.count`."""
        return None if estimate.num_tokens is None else estimate.num_tokens // self._seq_len

    def require_enough(self, files: TextFiles) -> None:
        """Refuse files that are too short for one window; see :meth:`RowKind.require_enough`."""
        most = files.most_tokens()
        if most is not None and most <= self._seq_len and not self._keep_tail:
            raise SourceError(
                f"{named(files.blobs.names)}: too short for a window: at most {format_count(most)} tokens, and a "
                f"window has seq_len + 1 = {format_count(self._seq_len + 1)}; lower source.seq_len, set "
                "source.tail=keep, or give more text"
            )

    def facts(self) -> tuple[Fact, ...]:
        """Return what becomes of the tail; see :meth:`RowKind.facts`."""
        dropped = f"at most {format_count(self._seq_len)} a lane, dropped"
        return (Fact("tail tokens in no window", "one padded window a lane" if self._keep_tail else dropped),)

    def _say_tail(self, lane: int, num_tokens: int) -> None:
        if not self._said_tail:
            self._said_tail = True
            _logger.info(
                "lane %d of the stream ends with %s that fill no window and are left out, as in every lane and epoch "
                "(at most %s; source.tail=keep pads them)",
                *(lane, f"{format_count(num_tokens)} tokens", format_count(self._seq_len)),
            )


@final
class DocumentRows:
    """Documents of at most ``max_length`` tokens, none cut; a :class:`RowKind`.

    Args:
        max_length: Most tokens of a document, the id that ends it among them.
        dtype: Type of a stored token.
    """

    name = "documents"
    layout = "|documents"

    def __init__(self, max_length: int, dtype: str) -> None:
        self._max_length, self._dtype = max_length, dtype
        self.spec = SampleSpec((Field("tokens", dtype, (max_length,)), Field("num_tokens", "int64")))
        # No batch takes more than this, whatever rows come together.
        self.delivered = SampleSpec((Field("input_ids", "int64", (), is_ragged=True, expected_length=max_length),))
        self.summary = f"documents of at most {format_count(max_length)} tokens"

    def open(self, files: TextFiles, lane: int, chosen: list[int], place: Place) -> LaneReader:  # noqa: ARG002
        """Open a lane; see :meth:`RowKind.open`."""
        return DocumentFeed(
            files.runs(chosen, place),
            place,
            max_length=self._max_length,
            dtype=self._dtype,
            end=None if files.is_encoded else END_OF_DOCUMENT,
            too_long=partial(self._too_long, files, chosen),
        )

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Refuse, aloud."""
        del stored, out
        raise LoaderError(
            "documents of different lengths do not fit into one array; such a stream is delivered by deliver_rows"
        )

    def deliver_rows(self, stored: Mapping[str, Array]) -> Columns:
        """Join and widen the tokens of documents; see :meth:`RowKind.deliver_rows`."""
        tokens, lengths = stored["tokens"], stored["num_tokens"]
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        # Place p of the values, in row r, is place p - offsets[r] + r * max_length of the rows.
        places = np.arange(offsets[-1], dtype=np.int64)
        places += np.repeat(np.arange(len(lengths)) * self._max_length - offsets[:-1], lengths)
        return {"input_ids": Ragged(tokens.reshape(-1)[places].astype(np.int64), offsets)}

    def count(self, estimate: Estimate) -> int | None:
        """Return about how many documents there are; see :meth:`RowKind.count`."""
        return estimate.num_documents

    def require_enough(self, files: TextFiles) -> None:
        """Do nothing: one document is enough; see :meth:`RowKind.require_enough`."""

    def facts(self) -> tuple[Fact, ...]:
        """Return what becomes of long documents; see :meth:`RowKind.facts`."""
        return (Fact("longest document", f"{format_count(self._max_length)} tokens; a longer one is an error"),)

    def _too_long(
        self, files: TextFiles, chosen: list[int], place: Place, num_tokens: int, counted: bool
    ) -> SourceError:
        length, where = format_count(num_tokens), files.where(chosen[place.file], place)
        has, remedy = (length, f"source.max_length={num_tokens}") if counted else (f"more than {length}", "it")
        return SourceError(
            f"{where}: the document has {has} tokens, and a row takes source.max_length = "
            f"{format_count(self._max_length)}; {'set' if counted else 'raise'} {remedy} or more, leave the document "
            "out, or set source.rows=windows, which cuts text into equal windows"
        )
