"""Character-level text: raw files, read once into ids that are kept in memory, windowed like token shards.

The whole text decides the vocabulary, whichever part is used, so that a model trained on one part reads the other. The
first ``floor(train_fraction * n)`` characters are ``train``, the rest is ``val``.

Shape letter: ``T`` = ``seq_len``.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.errors import ConfigError, SourceError
from flodl_pipe.sources.protocol import Fact, Fingerprint
from flodl_pipe.sources.text_files import read_code_points
from flodl_pipe.sources.text_vocabulary import CharVocabulary, Ids
from flodl_pipe.sources.token_files import named
from flodl_pipe.sources.token_formats import ShardTable
from flodl_pipe.sources.tokens import TokenShards
from flodl_pipe.storage.listing import list_files
from flodl_pipe.storage.memory import MemoryBlobs
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_count

__all__ = ["SPLITS", "VOCABULARY_FILE", "Text"]

_logger = logging.getLogger("flodl_pipe")

SPLITS = ("train", "val", "all")
VOCABULARY_FILE = "vocabulary.json"


@final
class Text:
    """Windows of ``seq_len`` characters with their targets; a :class:`flodl_pipe.sources.protocol.BundledSource`.

    Building one reads the text twice: for the characters that occur, then for their ids. A pickled one holds the files'
    names and reads them again.

    Args:
        blobs: The files, in order.
        seq_len: Characters of a window.
        split: One of ``SPLITS``.
        train_fraction: Share of the characters that is ``train``, above 0, at most 1.
        stride: See :class:`flodl_pipe.sources.tokens.TokenShards`, like ``tail`` and ``starts``.
        tail: See there.
        starts: See there.
        notes: Facts about where the files come from, put before the others.

    Raises:
        ConfigError: if an argument is impossible, or does not go with another.
        SourceError: if a file is empty, packed, or not UTF-8, or the part used is shorter than a window.
    """

    def __init__(
        self,
        blobs: Blobs,
        *,
        seq_len: int,
        split: str = "train",
        train_fraction: float = 0.9,
        stride: int | None = None,
        tail: str = "drop",
        starts: str = "stride",
        notes: tuple[Fact, ...] = (),
    ) -> None:
        if split not in SPLITS:
            raise ConfigError.at("source.split", f"must be one of {', '.join(SPLITS)}, got {split!r}")
        if not 0 < train_fraction <= 1:
            raise ConfigError.at("source.train_fraction", f"must be above 0 and at most 1, got {train_fraction}")
        windows: dict[str, Any] = {"seq_len": seq_len, "stride": stride, "tail": tail, "starts": starts}
        self._files, self._notes = blobs, notes
        self._options = {**windows, "split": split, "train_fraction": train_fraction, "notes": notes}
        self._vocabulary, self._num_characters = _scan(blobs)
        # As written: 0.29 of 100 characters are 29, though the float just below it would give 28.
        border = int(Fraction(repr(float(train_fraction))) * self._num_characters)
        self._part = {"train": (0, border), "val": (border, self._num_characters), "all": (0, self._num_characters)}[
            split
        ]
        self._require_window(seq_len, tail)
        ids = _encode(blobs, self._vocabulary, *self._part)
        dtype = self._vocabulary.dtype
        zero, count = np.zeros(1, dtype=np.int64), np.array([len(ids)], dtype=np.int64)
        self._shards = TokenShards(
            MemoryBlobs([ids.view(np.uint8)], [named(blobs.names)], origin=blobs),
            ShardTable(dtype, zero, count, ("text",)),
            **windows,
        )
        self.spec, self.delivered = self._shards.spec, self._shards.delivered
        self.thread_safe = True
        self.extents, self.ordering = self._shards.extents, self._shards.ordering
        self.tiers_off: str | None = None
        self.held_bytes = int(ids.nbytes)
        self.delivery = self._shards.delivery

    @classmethod
    def open(cls, path: str | Sequence[str], *, notes: tuple[Fact, ...] = (), **options: Any) -> "Text":
        """Find the files, read them, and say once what is left out.

        Args:
            path: A file, a folder (its ``.txt`` files), a glob pattern, or a list of them; see
                :mod:`flodl_pipe.storage.listing`.
            notes: See the class.
            options: What else the class takes.

        Raises:
            ConfigError: if an argument is impossible.
            SourceError: if files are missing or unreadable, or as the class raises.
        """
        listing = list_files(path, suffixes=(".txt",))
        if listing.foreign:
            notes = (*notes, Fact("not text files", named(listing.foreign)))
            _logger.info("left out beside the text: %s", named(listing.foreign))
        return cls(open_blobs(listing.files), notes=notes, **options)

    @property
    def vocab(self) -> str:
        """The characters, each once, ascending by code point; the place of a character is its id."""
        return self._vocabulary.characters

    def encode(self, text: str) -> IndexArray:
        """Return the id of each character, int64; see :meth:`flodl_pipe.sources.text_vocabulary.CharVocabulary.encode`.

        Raises:
            SourceError: naming the first character that is not in the vocabulary.
        """
        return self._vocabulary.encode(text)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of one row of ids: a list, an array, or a tensor on any device.

        Raises:
            SourceError: if they are no row of ids.
        """
        return self._vocabulary.decode(ids)

    def artifacts(self) -> dict[str, str]:
        """Return what belongs beside a trained model, file name -> content: the vocabulary as a JSON list."""
        return {VOCABULARY_FILE: self._vocabulary.to_json()}

    def __len__(self) -> int:
        return len(self._shards)

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Read windows into rows of ``out``; see :meth:`flodl_pipe.sources.protocol.Source.read_into`."""
        self._shards.read_into(indices, rows, out)

    def buffers(self, num_rows: int) -> dict[str, Array]:
        """Return rows for :meth:`read_into`; see :meth:`flodl_pipe.sources.protocol.BundledSource.buffers`."""
        return self._shards.buffers(num_rows)

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Slice and widen stored windows; see :meth:`flodl_pipe.sources.protocol.Source.deliver`."""
        self._shards.deliver(stored, out)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of ids and vocabulary; see :class:`flodl_pipe.sources.protocol.Fingerprint`."""
        ids = self._shards.fingerprint(full=full)
        digest = hashlib.blake2b(f"text/1|{ids.digest}|{self.vocab}".encode(), digest_size=16).hexdigest()
        summary = f"text: vocabulary of {len(self.vocab)}; {ids.summary}"
        return Fingerprint(summary, digest, full, "vocabulary, windows, and blocks of the ids in use")

    def check_unchanged(self) -> None:
        """Compare the files with what they were; see :class:`flodl_pipe.sources.protocol.BundledSource`."""
        self._shards.check_unchanged()

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells: files, characters, the part used, windows."""
        names, (start, end) = self._files.names, self._part
        fraction = f", train_fraction {self._options['train_fraction']}" if self._options["split"] != "all" else ""
        windows = tuple(fact for fact in self._shards.facts() if fact.name not in ("files", "tokens"))
        return (
            *self._notes,
            Fact("files", f"{len(names)}, first {names[0]}"),
            Fact("text", f"{format_count(self._num_characters)} characters, vocabulary of {len(self.vocab)}"),
            Fact("split", f"{self._options['split']}: {format_count(end - start)} characters{fraction}"),
            *windows,
        )

    def close(self) -> None:
        """Close the files open in this process; the ids stay."""
        self._shards.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Text, **self._options), (self._files,)

    def _require_window(self, seq_len: int, tail: str) -> None:
        start, end = self._part
        needed = 2 if tail == "keep" else seq_len + 1
        if end - start >= needed:
            return
        split, fraction = self._options["split"], self._options["train_fraction"]
        of = "" if split == "all" else f" of {format_count(self._num_characters)} (source.train_fraction={fraction})"
        needs = "a character and its target" if tail == "keep" else f"source.seq_len + 1 = {needed} characters"
        raise SourceError(
            f"{named(self._files.names)}: too short: split={split} has {format_count(end - start)} characters{of}, and "
            f"a window needs {needs}; lower source.seq_len, change source.split or source.train_fraction, or give more "
            "text"
        )


def _scan(blobs: Blobs) -> tuple[CharVocabulary, int]:
    """Return the vocabulary of a text and its number of characters."""
    seen, count = np.zeros(0x110000, dtype=np.bool_), 0
    for codes in read_code_points(blobs):
        seen[codes] = True
        count += len(codes)
    if not count:
        raise SourceError(f"{named(blobs.names)}: empty: no text after the byte order mark; copy the file again")
    return CharVocabulary.of_codes(np.flatnonzero(seen)), count


def _encode(blobs: Blobs, vocabulary: CharVocabulary, start: int, end: int) -> Array:
    """Return the ids of characters ``start`` to ``end`` of a text, shape ``(end - start,)``."""
    table, ids = vocabulary.table(), np.empty(end - start, dtype=vocabulary.dtype)
    at = 0
    for codes in read_code_points(blobs):
        first, last = max(start - at, 0), min(end - at, len(codes))
        if first < last:
            ids[at + first - start : at + last - start] = table[codes[first:last]]
        at += len(codes)
    return ids
