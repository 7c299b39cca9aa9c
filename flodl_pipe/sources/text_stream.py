"""Text files of any size as a stream of token windows, without an index.

::

    files --dealt--> lanes --unpacked--> documents --encoded--> tokens --cut--> windows --permuted--> rows

Files are dealt over lanes: in the order of their names, or of a keyed permutation of ``(seed, epoch)`` when shuffled.
Within a lane the documents of its files follow each other, and windows run on over the ends of documents and files. The
parts of this line live in ``stream_*.py``; here they are put together.

Shape letter: ``T`` = ``seq_len``.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import final

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.errors import ConfigError, ResumeError, SourceError
from flodl_pipe.keyed.permute import ALGORITHM, permutation
from flodl_pipe.sources.joined import JoinedBytes
from flodl_pipe.sources.protocol import Fact, Fingerprint
from flodl_pipe.sources.shifted import deliver_windows, delivered_spec, stored_spec
from flodl_pipe.sources.stream_blocks import BlockShuffle, block_rows
from flodl_pipe.sources.stream_encode import Encoder
from flodl_pipe.sources.stream_files import TextFiles, find_files
from flodl_pipe.sources.stream_formats import TextFormat, shown_formats
from flodl_pipe.sources.stream_protocol import LaneReader
from flodl_pipe.sources.stream_tokens import BYTE_VOCAB_SIZE
from flodl_pipe.sources.stream_windows import Place, WindowFeed
from flodl_pipe.sources.token_files import named
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_bytes, format_count

__all__ = ["DEFAULT_LANES", "TextStream"]

_logger = logging.getLogger("flodl_pipe")

DEFAULT_LANES = 16
"""Most lanes that are made when their number is not set."""

_DOMAIN = 0x7E47
_LANE_BYTES = 8 << 20
"""What reading a lane takes at its peak, measured: bytes as read, portions unpacked, tokens made of them. A JSON line,
or one for a tokenizer, that is longer than a portion takes its own size several times more; a zstd file its window."""
_HELD_WINDOWS = 3
"""Windows that a lane holds beside the shuffle buffer, where one is longer than a portion: while tokens are joined."""
_COUNT_ROWS = 1 << 20


@final
class TextStream:
    """Windows of ``seq_len`` tokens out of text; a :class:`flodl_pipe.sources.stream_protocol.Stream`.

    Args:
        blobs: The files, in the order of a stream that is not shuffled.
        formats: What each is.
        seq_len: Tokens of a window.
        tail: ``drop`` leaves out the tokens of a lane after its last whole window; ``keep`` makes a shorter window of
            them, padded with input 0 and target -100. With ``keep`` a row is stored with its length beside it.
        text_key: Key of the text in a JSON object.
        shuffle_buffer: Windows that shuffling holds over all lanes.
        lanes: Number of lanes; default one per file, at most ``DEFAULT_LANES``.
        encode: Text of a document -> token ids; default bytes, and 256 after each document.
        vocab_size: Number of token ids. It decides how ``encode``'s ids are stored (uint16 up to 65,536, else uint32),
            and an id beyond it is an error.
        notes: Facts about where the files come from, put before the others.

    Raises:
        ConfigError: if ``seq_len``, ``tail``, ``lanes``, ``shuffle_buffer`` or ``vocab_size`` is impossible.
        SourceError: if no file holds a document, the first one is damaged, or all are too short for a window.
    """

    def __init__(
        self,
        blobs: Blobs,
        formats: Sequence[TextFormat],
        *,
        seq_len: int,
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
        for key, value in (("seq_len", seq_len), ("shuffle_buffer", shuffle_buffer), ("lanes", lanes)):
            if value < 1:
                raise ConfigError.at(f"source.{key}", f"must be at least 1, got {value}")
        if tail not in ("drop", "keep"):
            raise ConfigError.at("source.tail", f"must be drop or keep, got {tail!r}")
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
        self._seq_len, self._keep_tail, self._notes = seq_len, tail == "keep", notes
        self._encode_name = f"{encode.__module__}:{encode.__qualname__}" if encode else "bytes"
        self._block_rows = block_rows(shuffle_buffer, lanes)
        self._said_tail = False
        self.num_lanes = lanes
        self.spec = stored_spec(dtype, seq_len, keep_tail=self._keep_tail)
        self.delivered = delivered_spec(seq_len)
        self.buffer_bytes = lanes * ((self._block_rows + _HELD_WINDOWS) * self.spec.row_bytes + _LANE_BYTES)
        self.tag = f"text/1 lanes={lanes} block={self._block_rows} {ALGORITHM}"
        self._files.require_document()
        estimate = self._files.estimate_tokens()
        self.num_samples_estimate = None if estimate is None else estimate.num_tokens // seq_len
        self._how = "not known before they are read" if estimate is None else estimate.how
        most = self._files.most_tokens()
        if most is not None and most <= seq_len and not self._keep_tail:
            raise SourceError(
                f"{named(blobs.names)}: too short for a window: at most {format_count(most)} tokens, and a window has "
                f"seq_len + 1 = {format_count(seq_len + 1)}; lower source.seq_len, set source.tail=keep, or give more "
                "text"
            )

    @classmethod
    def open(
        cls,
        path: str | Sequence[str],
        *,
        seq_len: int,
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
            seq_len: See the class, like what is not named here.
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
            seq_len=seq_len,
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
        """Slice and widen stored windows; see :meth:`flodl_pipe.sources.protocol.Source.deliver`."""
        deliver_windows(stored, out, keep_tail=self._keep_tail)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of files and windows; see :class:`flodl_pipe.sources.protocol.Fingerprint`."""
        blobs, formats = self._files.blobs, self._files.formats
        kinds = ",".join(map(str, formats))
        key = self._files.text_key if any(kind.json for kind in formats) else ""
        tail = ", tail kept" if self._keep_tail else ""
        summary = (
            f"stream: {len(formats)} files ({shown_formats(formats)}), {format_count(int(blobs.sizes.sum()))} bytes, "
            f"encoded by {self._encode_name} to {self.spec.fields[0].dtype}, seq_len {self._seq_len}{tail}"
        )
        layout = f"stream/1|{kinds}|{key}|{self._encode_name}|{self.spec}"
        return JoinedBytes(blobs, np.zeros_like(blobs.sizes), blobs.sizes).fingerprint(summary, layout, full=full)

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells: files, lanes, buffers, and what is left out."""
        rows, lanes = self._block_rows, self.num_lanes
        left = (
            "one padded window a lane" if self._keep_tail else f"at most {format_count(self._seq_len)} a lane, dropped"
        )
        blobs, formats = self._files.blobs, self._files.formats
        count = self.num_samples_estimate
        about = "" if count is None else f"about {format_count(count)} an epoch, "
        return (
            *self._notes,
            Fact("files", f"{len(formats)} ({shown_formats(formats)}), first {blobs.names[0]}"),
            Fact("size", format_bytes(int(blobs.sizes.sum()))),
            Fact("windows", about + self._how),
            Fact("tokens", f"{self.spec.fields[0].dtype}, encoded by {self._encode_name}"),
            Fact("lanes", f"{lanes}, blocks of {format_count(rows)} windows when shuffled"),
            Fact("buffers of all lanes", format_bytes(self.buffer_bytes)),
            Fact("tail tokens in no window", left),
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

    def _open_feed(self, lane: int, files: list[int], mark: str) -> WindowFeed:
        place = Place.parse(mark) if mark else Place(0, 0, 0, 1)
        if place.file > len(files):
            raise ResumeError(
                f"the saved place is in file {place.file} of lane {lane}, which has {len(files)}; the state belongs to "
                "other data, resume with the data it was saved with"
            )
        return WindowFeed(
            self._files.runs(files, place),
            place,
            num_files=len(files),
            seq_len=self._seq_len,
            dtype=self.spec.fields[0].dtype,
            has_places=[self._files.has_places(file) for file in files],
            keep_tail=self._keep_tail,
            left_out=partial(self._say_tail, lane),
        )

    def _say_tail(self, lane: int, num_tokens: int) -> None:
        if not self._said_tail:
            self._said_tail = True
            _logger.info(
                "lane %d of the stream ends with %s that fill no window and are left out, as in every lane and epoch "
                "(at most %s; source.tail=keep pads them)",
                *(lane, f"{format_count(num_tokens)} tokens", format_count(self._seq_len)),
            )
