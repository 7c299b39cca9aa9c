"""Token shards: windows of token ids out of flat binary files, with the target shifted by one.

A stored row is one run of ``seq_len + 1`` ids in the type they have on disk; ``input`` and ``target`` are two
overlapping slices of it, widened to int64 in the copy that delivers them. Building one reads headers only.

With ``starts="random"`` every token that a window can begin at is a sample, and an epoch draws as many of them, with
replacement, as there are windows side by side. The tokens themselves are the same, once.

Shape letters: ``K`` windows asked for, ``B`` rows of a buffer, ``T`` = ``seq_len``.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import OF_HOST, ConfigError, SourceError
from flodl_pipe.sources.documents import Documents
from flodl_pipe.sources.joined import JoinedBytes
from flodl_pipe.sources.ordering import Drawn, Ordering
from flodl_pipe.sources.protocol import Extents, Fact, Fingerprint
from flodl_pipe.sources.shifted import copied_windows, deliver_windows, delivered_spec, stored_spec
from flodl_pipe.sources.token_extents import TokenExtents
from flodl_pipe.sources.token_files import list_token_files, named
from flodl_pipe.sources.token_formats import ShardTable, read_shard_table, token_count
from flodl_pipe.sources.vocabulary import IdCheck
from flodl_pipe.sources.windows import Windows
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_count

__all__ = ["TokenShards"]

_logger = logging.getLogger("flodl_pipe")


@final
class TokenShards:
    """Windows of ``seq_len`` tokens with their targets; a :class:`flodl_pipe.sources.protocol.BundledSource`.

    Args:
        blobs: The shards, in order.
        table: Where their tokens lie.
        seq_len: Tokens of a window.
        stride: Tokens from one window's start to the next; default ``seq_len``, so that no target occurs twice.
        tail: ``drop`` leaves out the tokens of a shard after its last whole window; ``keep`` makes a shorter window of
            them, padded with input 0 and target -100. With ``keep`` a row is stored with its length beside it.
        starts: ``stride``, or ``random``: every possible start is a sample (so the stride is 1), drawn as
            ``ordering`` says.
        vocab_size: When set, an id outside ``0 .. vocab_size - 1`` in anything that is read is an error.
        documents: When set, a batch also holds ``document`` and ``position``; see
            :mod:`flodl_pipe.sources.documents`.
        notes: Facts about where the files come from, put before the others.

    Raises:
        ConfigError: if an argument is impossible, or does not go with another.
        SourceError: if no shard is long enough for a window.
    """

    def __init__(
        self,
        blobs: Blobs,
        table: ShardTable,
        *,
        seq_len: int,
        stride: int | None = None,
        tail: str = "drop",
        starts: str = "stride",
        vocab_size: int | None = None,
        documents: Documents | None = None,
        notes: tuple[Fact, ...] = (),
    ) -> None:
        _require_starts(starts, stride, tail)
        stride = (1 if starts == "random" else seq_len) if stride is None else stride
        for key, value in (("seq_len", seq_len), ("stride", stride), ("vocab_size", vocab_size or 1)):
            if value < 1:
                raise ConfigError.at(f"source.{key}", f"must be at least 1, got {value}")
        if tail not in ("drop", "keep"):
            raise ConfigError.at("source.tail", f"must be drop or keep, got {tail!r}")
        if documents is not None:
            documents.require_possible(table.dtype, vocab_size)
        self._blobs, self._table, self._notes = blobs, table, notes
        self._windows = Windows(table.tokens, seq_len, stride, tail == "keep")
        self._documents = documents
        self._item_bytes = np.dtype(table.dtype).itemsize
        self._check = IdCheck.needed(table.dtype, vocab_size)
        if not len(self._windows):
            longest = int(table.tokens.argmax())
            raise SourceError(
                f"no shard holds a window: the longest, {blobs.names[longest]}, has "
                f"{token_count(int(table.tokens[longest]))}, and a window needs "
                f"seq_len + 1 = {seq_len + 1}; lower source.seq_len or give longer shards"
            )
        joined = JoinedBytes(blobs, table.offsets, table.tokens * self._item_bytes)
        self._joined = joined
        self._rows = self._windows.rows(table.offsets, self._item_bytes)
        self.spec = stored_spec(table.dtype, seq_len, keep_tail=tail == "keep")
        fields = documents.fields(seq_len) if documents else ()
        self.delivered = SampleSpec((*delivered_spec(seq_len), *fields))
        self.thread_safe = True
        self.ordering: Ordering = None
        if starts == "random":
            self.ordering = Drawn(len(Windows(table.tokens, seq_len, seq_len, keep_tail=False)))
        self.tiers_off: str | None = None
        self.held_bytes = 0
        kind = ("tokens", tail, documents)
        self.delivery: object = kind if tail == "keep" or documents else copied_windows(kind, table.dtype)
        self.extents: Extents | None = (
            None if tail == "keep" else TokenExtents(joined, self._windows, table.dtype, self._check)
        )

    @classmethod
    def open(
        cls,
        path: str | Sequence[str],
        *,
        seq_len: int,
        stride: int | None = None,
        tail: str = "drop",
        starts: str = "stride",
        vocab_size: int | None = None,
        documents: Documents | None = None,
        file_format: str = "auto",
        dtype: str | None = None,
        notes: tuple[Fact, ...] = (),
    ) -> "TokenShards":
        """Find the files, read their headers, and say once what is left out.

        Args:
            path: A file, a folder, a glob pattern, or a list of them; see :mod:`flodl_pipe.sources.token_files`.
            seq_len: See the class, like all that is not of the files.
            stride: See the class.
            tail: See the class.
            starts: See the class.
            vocab_size: See the class.
            documents: See the class.
            file_format: See :mod:`flodl_pipe.sources.token_formats`.
            dtype: Type of a stored token; raw files need it.
            notes: See the class.

        Raises:
            ConfigError: if an argument is impossible.
            SourceError: if files are missing, unreadable, damaged, of another format, or too short.
        """
        listing = list_token_files(path, file_format)
        blobs = open_blobs(listing.files)
        table = read_shard_table(blobs, file_format=file_format, dtype=dtype)
        if listing.foreign:
            notes = (*notes, Fact("not token files", named(listing.foreign)))
            _logger.info("left out beside the token shards: %s", named(listing.foreign))
        source = cls(
            *(blobs, table),
            seq_len=seq_len,
            stride=stride,
            tail=tail,
            starts=starts,
            vocab_size=vocab_size,
            documents=documents,
            notes=notes,
        )
        if source.short_shards:
            _logger.warning(
                "too short for a window of seq_len + 1 = %d tokens, so left out: %s",
                *(seq_len + 1, named(source.short_shards)),
                extra=OF_HOST,
            )
        return source

    @property
    def total_tokens(self) -> int:
        """Tokens in all shards, those in no window included."""
        return int(self._table.tokens.sum())

    @property
    def num_windows(self) -> int:
        """Number of samples: windows, or possible starts of one."""
        return len(self._windows)

    @property
    def windows_per_shard(self) -> IndexArray:
        """Windows of each shard, int64, shape ``(S,)``."""
        return self._windows.per_shard

    @property
    def short_shards(self) -> tuple[str, ...]:
        """Paths of the shards that are too short for a window."""
        return tuple(self._blobs.names[shard] for shard in np.flatnonzero(self._windows.per_shard == 0).tolist())

    def shard_starts(self) -> IndexArray:
        return self._windows.shard_starts

    def __len__(self) -> int:
        return len(self._windows)

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Read windows into rows of ``out``; see :meth:`flodl_pipe.sources.protocol.Source.read_into`."""
        if not len(indices):
            return
        shards, offsets = self._rows.locate(indices)
        tokens = out["tokens"]
        raw: ByteArray = tokens.view(np.uint8)
        row_bytes = raw.shape[1]
        if not self._windows.keep_tail:
            self._blobs.read_rows(shards, offsets, row_bytes, rows, raw)
        else:
            left = self._table.tokens[shards] - (offsets - self._table.offsets[shards]) // self._item_bytes
            counts = np.minimum(left, tokens.shape[1])
            out["num_tokens"][rows] = counts
            whole = counts == tokens.shape[1]
            self._blobs.read_rows(shards[whole], offsets[whole], row_bytes, rows[whole], raw)
            for i in np.flatnonzero(~whole).tolist():  # one a shard at most
                used = int(counts[i]) * self._item_bytes
                self._blobs.read_range(int(shards[i]), int(offsets[i]), raw[rows[i], :used])
                raw[rows[i], used:] = 0
        if self._check:
            self._check.require_rows(tokens, rows, shards, offsets, self._blobs.names)

    def buffers(self, num_rows: int) -> dict[str, Array]:
        """Return rows for :meth:`read_into`; see :meth:`flodl_pipe.sources.protocol.BundledSource.buffers`."""
        kept = self.spec.empty(0 if self.extents else num_rows)
        tokens = self._blobs.buffer(num_rows * self.spec.fields[0].row_bytes).view(self._table.dtype)
        return {**kept, "tokens": tokens.reshape(num_rows, -1)}

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Slice and widen stored windows; see :meth:`flodl_pipe.sources.protocol.Source.deliver`."""
        deliver_windows(stored, out, keep_tail=self._windows.keep_tail)
        if self._documents is not None:
            self._documents.deliver(stored["tokens"], stored.get("num_tokens"), out)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of tokens and windows; see :class:`flodl_pipe.sources.protocol.Fingerprint`."""
        windows, dtype = self._windows, self._table.dtype
        tags = ["random starts"] if self.ordering is not None else []
        if self._documents is not None:
            tags.append(self._documents.summary)
        shape = [
            f"seq_len {windows.seq_len}",
            f"stride {windows.stride}",
            *(["tail kept"] if windows.keep_tail else []),
        ]
        summary = (
            f"token_shards: {len(self._table.tokens)} shards, {format_count(self.total_tokens)} tokens {dtype}, "
            f"{', '.join([*shape, *tags])}"
        )
        layout = f"token_shards/1|{dtype}|{windows.seq_len}|{windows.stride}|{windows.keep_tail}"
        layout = "|".join([layout, *tags])
        return self._joined.fingerprint(summary, layout, full=full)

    def check_unchanged(self) -> None:
        """Compare the files with what they were; see :class:`flodl_pipe.sources.protocol.BundledSource`."""
        self._blobs.check_unchanged()

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells: files, tokens, windows, and every token that is in none."""
        windows, table = self._windows, self._table
        facts = [
            *self._notes,
            Fact("files", f"{len(self._blobs.names)} ({', '.join(table.formats)}), first {self._blobs.names[0]}"),
            Fact("tokens", f"{format_count(self.total_tokens)} {table.dtype}"),
            *self._window_facts(),
            Fact("tail tokens in no window", format_count(int(windows.tail_tokens.sum()))),
        ]
        if windows.gap_tokens:
            facts.append(Fact("tokens skipped by the stride", format_count(windows.gap_tokens)))
        if table.sequences:
            facts.append(Fact("sequences", f"{format_count(table.sequences)}; windows run over their bounds"))
        if self._documents is not None:
            facts.append(Fact("documents", self._documents.summary.removeprefix("documents ")))
        if self.short_shards:
            facts.append(Fact("shards too short for a window", named(self.short_shards)))
        return tuple(facts)

    def _window_facts(self) -> tuple[Fact, ...]:
        windows = self._windows
        found, size = format_count(len(windows)), token_count(windows.seq_len)
        if not isinstance(self.ordering, Drawn):
            return (Fact("windows", f"{found} of {size}, stride {windows.stride}"),)
        draws = format_count(self.ordering.num_picks)
        return (
            Fact("possible starts", f"{found}, for windows of {size}"),
            Fact("draws an epoch", f"{draws}, with replacement: about one pass"),
        )

    def close(self) -> None:
        """Close the files open in this process; a later read opens them again."""
        self._blobs.close()


def _require_starts(starts: str, stride: int | None, tail: str) -> None:
    if starts not in ("stride", "random"):
        raise ConfigError.at("source.starts", f"must be stride or random, got {starts!r}")
    if starts == "random" and stride is not None:
        raise ConfigError.at(
            "source.stride", f"must be unset when starts is random, got {stride}: every token can begin a window"
        )
    if starts == "random" and tail == "keep":
        raise ConfigError.at("source.tail", "must be drop when starts is random, got keep: no window is a part of one")
