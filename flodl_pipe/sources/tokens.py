"""Token shards: windows of token ids out of flat binary files, with the target shifted by one.

A stored row is one run of ``seq_len + 1`` ids in the type they have on disk; ``input`` and ``target`` are two
overlapping slices of it, widened to int64 in the copy that delivers them. Building one reads headers only.

Shape letters: ``K`` windows asked for, ``B`` rows of a buffer, ``T`` = ``seq_len``.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.errors import ConfigError, SourceError
from flodl_pipe.sources.joined import JoinedBytes
from flodl_pipe.sources.ordering import Ordering
from flodl_pipe.sources.protocol import Extents, Fact, Fingerprint
from flodl_pipe.sources.shifted import deliver_windows, delivered_spec, stored_spec
from flodl_pipe.sources.token_formats import SUFFIXES, ShardTable, read_shard_table, token_count
from flodl_pipe.sources.vocabulary import IdCheck
from flodl_pipe.sources.windows import Windows
from flodl_pipe.storage.listing import list_files
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_count

__all__ = ["TokenExtents", "TokenShards"]

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
        vocab_size: When set, an id outside ``0 .. vocab_size - 1`` in anything that is read is an error.
        notes: Facts about where the files come from, put before the others.

    Raises:
        ConfigError: if ``seq_len``, ``stride``, ``tail`` or ``vocab_size`` is impossible.
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
        vocab_size: int | None = None,
        notes: tuple[Fact, ...] = (),
    ) -> None:
        stride = seq_len if stride is None else stride
        for key, value in (("seq_len", seq_len), ("stride", stride), ("vocab_size", vocab_size or 1)):
            if value < 1:
                raise ConfigError.at(f"source.{key}", f"must be at least 1, got {value}")
        if tail not in ("drop", "keep"):
            raise ConfigError.at("source.tail", f"must be drop or keep, got {tail!r}")
        self._blobs, self._table, self._notes = blobs, table, notes
        self._windows = Windows(table.tokens, seq_len, stride, tail == "keep")
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
        self.delivered = delivered_spec(seq_len)
        self.thread_safe = True
        self.ordering: Ordering = None
        self.tiers_off: str | None = None
        self.held_bytes = 0
        self.extents: Extents | None = (
            None if tail == "keep" else TokenExtents(joined, self._windows, table, self._check)
        )

    @classmethod
    def open(
        cls,
        path: str | Sequence[str],
        *,
        seq_len: int,
        stride: int | None = None,
        tail: str = "drop",
        vocab_size: int | None = None,
        file_format: str = "auto",
        dtype: str | None = None,
        notes: tuple[Fact, ...] = (),
    ) -> "TokenShards":
        """Find the files, read their headers, and say once what is left out.

        Args:
            path: A file, a folder, a glob pattern, or a list of them; see :mod:`flodl_pipe.storage.listing`.
            seq_len: See the class, like ``stride``, ``tail``, ``vocab_size`` and ``notes``.
            stride: See the class.
            tail: See the class.
            vocab_size: See the class.
            file_format: See :mod:`flodl_pipe.sources.token_formats`.
            dtype: Type of a stored token; raw files need it.
            notes: See the class.

        Raises:
            ConfigError: if an argument is impossible.
            SourceError: if files are missing, unreadable, damaged, of another format, or too short.
        """
        listing = list_files(path, suffixes=SUFFIXES.get(file_format, ()))
        blobs = open_blobs(listing.files)
        table = read_shard_table(blobs, file_format=file_format, dtype=dtype)
        if listing.foreign:
            notes = (*notes, Fact("not token files", named(listing.foreign)))
            _logger.info("left out beside the token shards: %s", named(listing.foreign))
        source = cls(blobs, table, seq_len=seq_len, stride=stride, tail=tail, vocab_size=vocab_size, notes=notes)
        if source.short_shards:
            _logger.warning(
                "too short for a window of seq_len + 1 = %d tokens, so left out: %s",
                *(seq_len + 1, named(source.short_shards)),
            )
        return source

    @property
    def total_tokens(self) -> int:
        """Tokens in all shards, those in no window included."""
        return int(self._table.tokens.sum())

    @property
    def num_windows(self) -> int:
        """Number of samples."""
        return len(self._windows)

    @property
    def windows_per_shard(self) -> IndexArray:
        """Windows of each shard, int64, shape ``(S,)``."""
        return self._windows.per_shard

    @property
    def short_shards(self) -> tuple[str, ...]:
        """Paths of the shards that are too short for a window."""
        return tuple(self._blobs.names[shard] for shard in np.flatnonzero(self._windows.per_shard == 0).tolist())

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

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of tokens and windows; see :class:`flodl_pipe.sources.protocol.Fingerprint`."""
        windows, dtype = self._windows, self._table.dtype
        tail = ", tail kept" if windows.keep_tail else ""
        summary = (
            f"token_shards: {len(self._table.tokens)} shards, {format_count(self.total_tokens)} tokens {dtype}, "
            f"seq_len {windows.seq_len}, stride {windows.stride}{tail}"
        )
        layout = f"token_shards/1|{dtype}|{windows.seq_len}|{windows.stride}|{windows.keep_tail}"
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
            Fact("windows", f"{format_count(len(windows))} of {token_count(windows.seq_len)}, stride {windows.stride}"),
            Fact("tail tokens in no window", format_count(int(windows.tail_tokens.sum()))),
        ]
        if windows.gap_tokens:
            facts.append(Fact("tokens skipped by the stride", format_count(windows.gap_tokens)))
        if self.short_shards:
            facts.append(Fact("shards too short for a window", named(self.short_shards)))
        return tuple(facts)

    def close(self) -> None:
        """Close the files open in this process; a later read opens them again."""
        self._blobs.close()


@final
class TokenExtents:
    """Windows as runs of bytes in the joined tokens of all shards; a :class:`flodl_pipe.sources.protocol.Extents`."""

    def __init__(self, joined: JoinedBytes, windows: Windows, table: ShardTable, check: IdCheck | None) -> None:
        self._joined, self._check = joined, check
        self._dtype = np.dtype(table.dtype)
        self._rows = windows.rows(joined.starts, self._dtype.itemsize)
        self.num_bytes = joined.num_bytes
        self.memory = joined.memory
        self.row_bytes = (windows.seq_len + 1) * self._dtype.itemsize

    def starts(self, indices: IndexArray) -> IndexArray:
        """Return the first byte of each window in the joined range, int64, shape ``(K,)``."""
        return self._rows.locate(indices)[1]

    def read(self, start: int, out: ByteArray) -> None:
        """Fill ``out`` with the joined bytes from ``start`` on; ids are checked as in samples."""
        self._joined.read(start, out)
        if not self._check:
            return
        # Ids that ``out`` cuts at either end are read whole, to be checked like the others.
        width = self._dtype.itemsize
        first, end = start // width * width, -(-(start + len(out)) // width) * width
        ids = out
        if (first, end) != (start, start + len(out)):
            ids = np.empty(end - first, dtype=np.uint8)
            self._joined.read(first, ids)
        self._check.require_run(ids.view(self._dtype), first, self._joined)


def named(names: Sequence[str]) -> str:
    """Return up to five names and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
