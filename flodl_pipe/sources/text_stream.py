"""Text files of any size as a stream of token windows or of documents, without an index.

::

    files --dealt--> lanes --unpacked--> documents --encoded--> tokens --cut--> windows --permuted--> rows
                                                                `-----------> documents ----/

Files are dealt over lanes: in the order of their names, or of a keyed permutation of ``(seed, epoch)`` when shuffled.
Within a lane the documents of its files follow each other, and windows run on over the ends of documents and files. The
parts of this line live in ``stream_*.py``; here they are put together.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import final

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.errors import ConfigError, ResumeError
from flodl_pipe.keyed.permute import ALGORITHM, permutation
from flodl_pipe.sources.joined import JoinedBytes
from flodl_pipe.sources.protocol import Fact, Fingerprint
from flodl_pipe.sources.stream_blocks import BlockShuffle, block_rows
from flodl_pipe.sources.stream_encode import Encoder
from flodl_pipe.sources.stream_files import TextFiles, find_files
from flodl_pipe.sources.stream_formats import TextFormat, shown_formats
from flodl_pipe.sources.stream_protocol import LaneReader
from flodl_pipe.sources.stream_rows import row_kind
from flodl_pipe.sources.stream_tokens import BYTE_VOCAB_SIZE
from flodl_pipe.sources.stream_windows import Place
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_bytes, format_count

__all__ = ["DEFAULT_LANES", "TextStream"]

DEFAULT_LANES = 16
"""Most lanes that are made when their number is not set."""

_DOMAIN = 0x7E47
_LANE_BYTES = 8 << 20
"""What reading a lane takes at its peak, measured: bytes as read, portions unpacked, tokens made of them. A JSON line,
or one for a tokenizer, that is longer than a portion takes its own size several times more; a zstd file its window."""
_HELD_ROWS = 3
"""Rows that a lane holds beside the shuffle buffer, where one is longer than a portion: while tokens are joined."""
_COUNT_ROWS = 1 << 20


@final
class TextStream:
    """Rows of tokens out of text; a :class:`flodl_pipe.sources.stream_protocol.RaggedStream`.

    Args:
        blobs: The files, in the order of a stream that is not shuffled.
        formats: What each is.
        rows: ``windows`` of equal length over the ends of documents, or ``documents``, a row each, which are ragged.
        seq_len: Tokens of a window; None for documents.
        max_length: Most tokens of a document, its end included; a longer one is an error when it is read. None for
            windows.
        tail: ``drop`` leaves out the tokens of a lane after its last whole window; ``keep`` makes a shorter window of
            them, padded with input 0 and target -100. With ``keep`` a row is stored with its length beside it.
        text_key: Key of the text in a JSON object.
        shuffle_buffer: Rows that shuffling holds over all lanes.
        lanes: Number of lanes; default one per file, at most ``DEFAULT_LANES``.
        encode: Text of a document -> token ids; default bytes, and 256 after each document.
        vocab_size: Number of token ids. It decides how ``encode``'s ids are stored (uint16 up to 65,536, else uint32),
            and an id beyond it is an error.
        notes: Facts about where the files come from, put before the others.

    Raises:
        ConfigError: if an argument is impossible, or is missing for such rows or nothing to them.
        SourceError: if no file holds a document, the first one is damaged, or all are too short for a window.
    """

    def __init__(
        self,
        blobs: Blobs,
        formats: Sequence[TextFormat],
        *,
        rows: str = "windows",
        seq_len: int | None = None,
        max_length: int | None = None,
        tail: str = "drop",
        text_key: str = "text",
        shuffle_buffer: int = 1024,
        lanes: int | None = None,
        encode: Callable[[str], Sequence[int]] | None = None,
        vocab_size: int | None = None,
        notes: tuple[Fact, ...] = (),
    ) -> None:
        num_files = len(blobs.names)
        lanes = min(num_files, DEFAULT_LANES) if lanes is None else lanes
        least = 1 if encode else BYTE_VOCAB_SIZE
        vocab_size = vocab_size or (2**32 if encode else BYTE_VOCAB_SIZE)
        for key, value in (("shuffle_buffer", shuffle_buffer), ("lanes", lanes)):
            if value < 1:
                raise ConfigError.at(f"source.{key}", f"must be at least 1, got {value}")
        if not least <= vocab_size <= 2**32:
            what = "" if encode else "text as bytes has ids 0 .. 256 (256 ends a document): "
            raise ConfigError.at("source.vocab_size", f"{what}must be {least} to 2**32, got {vocab_size}")
        if lanes > num_files:
            raise ConfigError.at(
                "source.lanes",
                f"{lanes} lanes need at least {lanes} files, there are {num_files}: a file belongs to one lane; lower "
                "source.lanes, or split the files",
            )
        dtype = "uint16" if vocab_size <= 1 << 16 or not encode else "uint32"
        encoder = Encoder(encode, dtype, vocab_size) if encode else None
        self._files = TextFiles(blobs, formats, text_key, encoder)
        self._rows = row_kind(rows, seq_len=seq_len, max_length=max_length, tail=tail, dtype=dtype)
        self._notes = notes
        self._encode_name = f"{encode.__module__}:{encode.__qualname__}" if encode else "bytes"
        self._block_rows = block_rows(shuffle_buffer, lanes)
        self.num_lanes = lanes
        self.spec, self.delivered = self._rows.spec, self._rows.delivered
        self.buffer_bytes = lanes * ((self._block_rows + _HELD_ROWS) * self.spec.row_bytes + _LANE_BYTES)
        self.tag = f"text/1 lanes={lanes} block={self._block_rows} {ALGORITHM}"
        self._files.require_document()
        estimate = self._files.estimate()
        self.num_samples_estimate = None if estimate is None else self._rows.count(estimate)
        known = estimate is not None and self.num_samples_estimate is not None
        self._how = estimate.how if estimate is not None and known else "not known before they are read"
        self._rows.require_enough(self._files)

    @classmethod
    def open(
        cls,
        path: str | Sequence[str],
        *,
        rows: str = "windows",
        seq_len: int | None = None,
        max_length: int | None = None,
        file_format: str = "auto",
        tail: str = "drop",
        text_key: str = "text",
        shuffle_buffer: int = 1024,
        lanes: int | None = None,
        encode: Callable[[str], Sequence[int]] | None = None,
        vocab_size: int | None = None,
        notes: tuple[Fact, ...] = (),
    ) -> "TextStream":
        """Find the files, look at their first bytes, and say once what is left out.

        Args:
            path: A file, a folder, a glob pattern, or a list of them; see :mod:`flodl_pipe.storage.listing`.
            rows: See the class.
            seq_len: See the class.
            max_length: See the class.
            file_format: See :mod:`flodl_pipe.sources.stream_formats`.
            tail: See the class.
            text_key: See the class.
            shuffle_buffer: See the class.
            lanes: See the class.
            encode: See the class.
            vocab_size: See the class.
            notes: See the class.

        Raises:
            ConfigError: if an argument is impossible.
            SourceError: if files are missing, unreadable, empty, damaged, or not what their names say.
        """
        blobs, formats, more = find_files(path, file_format)
        return cls(
            blobs,
            formats,
            rows=rows,
            seq_len=seq_len,
            max_length=max_length,
            tail=tail,
            text_key=text_key,
            shuffle_buffer=shuffle_buffer,
            lanes=lanes,
            encode=encode,
            vocab_size=vocab_size,
            notes=(*notes, *more),
        )

    def open_lane(self, lane: int, *, seed: int, epoch: int, shuffle: bool, mark: str = "") -> LaneReader:
        """Open a lane; see :meth:`flodl_pipe.sources.stream_protocol.Stream.open_lane`."""
        files = self._files_of(lane, seed, epoch, shuffle=shuffle)
        open_feed = partial(self._open_feed, lane, files)
        if not shuffle:
            return open_feed(mark)
        return BlockShuffle(open_feed, self.spec, self._block_rows, (seed, epoch, lane), mark)

    def count_lane(self, lane: int, *, seed: int, epoch: int, shuffle: bool) -> int:
        """Return the rows of a lane; see :meth:`flodl_pipe.sources.stream_protocol.Stream.count_lane`."""
        feed = self._open_feed(lane, self._files_of(lane, seed, epoch, shuffle=shuffle), "")
        total = 0
        while passed := feed.skip(_COUNT_ROWS):
            total += passed
        return total

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Slice and widen stored windows; see :meth:`flodl_pipe.sources.protocol.Source.deliver`.

        Raises:
            LoaderError: if rows are documents.
        """
        self._rows.deliver(stored, out)

    def deliver_rows(self, stored: Mapping[str, Array]) -> Columns:
        """Deliver stored rows of any kind; see :meth:`flodl_pipe.sources.stream_protocol.RaggedStream.deliver_rows`."""
        return self._rows.deliver_rows(stored)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of files and windows; see :class:`flodl_pipe.sources.protocol.Fingerprint`."""
        blobs, formats = self._files.blobs, self._files.formats
        kinds = ",".join(map(str, formats))
        key = self._files.text_key if any(kind.json for kind in formats) else ""
        summary = (
            f"stream: {len(formats)} files ({shown_formats(formats)}), {format_count(int(blobs.sizes.sum()))} bytes, "
            f"encoded by {self._encode_name} to {self.spec.fields[0].dtype}, {self._rows.summary}"
        )
        layout = f"stream/1|{kinds}|{key}|{self._encode_name}|{self.spec}{self._rows.layout}"
        return JoinedBytes(blobs, np.zeros_like(blobs.sizes), blobs.sizes).fingerprint(summary, layout, full=full)

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells: files, lanes, buffers, and what is left out."""
        rows, name = self._block_rows, self._rows.name
        blobs, formats = self._files.blobs, self._files.formats
        count = self.num_samples_estimate
        about = "" if count is None else f"about {format_count(count)} an epoch, "
        return (
            *self._notes,
            Fact("files", f"{len(formats)} ({shown_formats(formats)}), first {blobs.names[0]}"),
            Fact("size", format_bytes(int(blobs.sizes.sum()))),
            Fact(name, about + self._how),
            Fact("tokens", f"{self.spec.fields[0].dtype}, encoded by {self._encode_name}"),
            Fact("lanes", f"{self.num_lanes}, blocks of {format_count(rows)} {name} when shuffled"),
            Fact("buffers of all lanes", format_bytes(self.buffer_bytes)),
            *self._rows.facts(),
        )

    def check_unchanged(self) -> None:
        """Compare the files with what they were; see :class:`flodl_pipe.sources.protocol.BundledSource`."""
        self._files.blobs.check_unchanged()

    def close(self) -> None:
        """Close the files open in this process; a later read opens them again."""
        self._files.blobs.close()

    def _files_of(self, lane: int, seed: int, epoch: int, *, shuffle: bool) -> list[int]:
        if not 0 <= lane < self.num_lanes:
            raise IndexError(f"lane {lane} does not exist: there are {self.num_lanes}, numbered from 0")
        order = np.arange(len(self._files))
        if shuffle:
            order = permutation(len(order), _DOMAIN, seed, epoch).at(order)
        files: list[int] = order[lane :: self.num_lanes].tolist()
        return files

    def _open_feed(self, lane: int, files: list[int], mark: str) -> LaneReader:
        place = Place.parse(mark) if mark else Place(0, 0, 0, 1)
        if place.file > len(files):
            raise ResumeError(
                f"the saved place is in file {place.file} of lane {lane}, which has {len(files)}; the state belongs to "
                "other data, resume with the data it was saved with"
            )
        return self._rows.open(self._files, lane, files, place)
