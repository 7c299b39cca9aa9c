"""The documents of one file as runs of tokens, each token with the way back to its place in the file.

Two ways in, one kind of run out. Lines encoded as bytes take no step per document: NumPy turns a portion of 1 MiB into
token ids (a newline becomes the end of a document, the carriage return before it and empty lines go). JSON lines and a
tokenizer of the user's take one Python step per line.

What a token's place is, in a run with anchors ``first[j]`` (a token) and ``offset[j]`` (a byte), ``j`` the last anchor
at or before token ``k``::

    bytes     byte offset[j] + (k - first[j]): every token has its own
    lines     byte offset[j], the line's first, and k - first[j] tokens to skip there
"""

import codecs
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.stream_lines import Line, json_text, read_lines
from flodl_pipe.units import format_count

__all__ = ["BYTE_VOCAB_SIZE", "END_OF_DOCUMENT", "Encoder", "Run", "byte_runs", "document_runs"]

_logger = logging.getLogger("flodl_pipe")

END_OF_DOCUMENT = 256
BYTE_VOCAB_SIZE = 257
"""256 byte values and the end of a document."""

_NEWLINE, _RETURN = 10, 13
_BOM = codecs.BOM_UTF8
# No byte of valid UTF-8; marks the ends of documents where many are turned into tokens at once.
_NO_UTF8 = 0xFF


def _byte_table() -> Array:
    table = np.arange(256, dtype=np.uint16)
    table[_NEWLINE] = END_OF_DOCUMENT
    return table


_TABLE = _byte_table()


class Run(NamedTuple):
    """Consecutive tokens, shape ``(K,)``, and their anchors, int64, shape ``(A,)``, the first at token 0."""

    tokens: Array
    first: IndexArray
    offset: IndexArray
    line: IndexArray


@final
class Encoder:
    """A tokenizer of the user's, held to its word: ids of integer type, in ``[0, limit)``.

    Args:
        encode: Text of one document -> its ids, an end-of-document id included if it wants one.
        dtype: What ids are stored as.
        limit: One more than the largest id.
    """

    def __init__(self, encode: Callable[[str], Sequence[int]], dtype: str, limit: int) -> None:
        self._encode, self.dtype, self._limit = encode, dtype, limit

    def ids(self, text: str, name: str, line: Line) -> Array:
        """Return the ids of a document.

        Raises:
            SourceError: if they are no integers, or out of range. What the tokenizer raises arrives as it is.
        """
        try:
            ids = np.asarray(self._encode(text))
        except Exception as error:
            error.add_note(f"while encoding {name}, line {format_count(line.number)}")
            raise
        if not ids.size:
            return np.empty(0, dtype=self.dtype)
        where = f"{name}, line {format_count(line.number)}"
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise SourceError(
                f"{where}: source.encode gave {ids.dtype} of shape {ids.shape}; it must return the ids of a document "
                "as a flat sequence of integers"
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self._limit:
            raise SourceError(
                f"{where}: source.encode gave id {low if low < 0 else high}, and ids must lie in 0 .. "
                f"{self._limit - 1}; correct source.vocab_size or the tokenizer"
            )
        return ids.astype(self.dtype)


def byte_runs(chunks: Iterator[tuple[int, bytes]], name: str, offset: int) -> Iterator[Run]:
    """Yield the lines of a file as bytes, each line ended by ``END_OF_DOCUMENT``.

    Args:
        chunks: The content from ``offset`` on.
        name: Path, for messages.
        offset: 0, or the place of a token.

    Raises:
        SourceError: if the content is not UTF-8; with the byte.
    """
    in_line = offset > 0  # a kept newline ends a line that holds something
    carry, place = b"", offset
    begun = 3 if offset else 0  # bytes of a character that was checked when its first byte was read
    for at, chunk in chunks:
        data, place = carry + chunk, at - len(carry)
        if not place and data.startswith(_BOM):
            data, place = data[len(_BOM) :], len(_BOM)
        checked = 0
        while checked < min(begun, len(data)) and data[checked] & 0xC0 == 0x80:
            checked += 1
        begun = begun - checked if checked == len(data) else 0
        carry = _unfinished(data, place, name, checked)
        data = data[: len(data) - len(carry)]
        if data:
            yield _byte_run(data, place, in_line)
            in_line = data[-1] != _NEWLINE
        place += len(data)
    if carry and carry != b"\r":
        raise _not_utf8(name, place, carry[0])
    if carry:
        yield _byte_run(carry, place, in_line)
        in_line, place = True, place + 1
    if in_line:
        yield _run(np.array([END_OF_DOCUMENT], dtype=np.uint16), np.zeros(1, np.int64), np.array([place]))


def _unfinished(data: bytes, place: int, name: str, checked: int) -> bytes:
    """Return the end of ``data`` that only the next portion decides: part of a character, or a carriage return."""
    if data.isascii():
        return b"\r" if data.endswith(b"\r") else b""
    try:
        used = codecs.utf_8_decode(memoryview(data)[checked:], "strict", False)[1] + checked
    except UnicodeDecodeError as error:
        wrong = error.start + checked
        raise _not_utf8(name, place + wrong, data[wrong]) from None
    if used == len(data) and data.endswith(b"\r"):
        used -= 1
    return data[used:]


def _not_utf8(name: str, place: int, byte: int) -> SourceError:
    return SourceError(
        f"{name}, byte {format_count(place)}: {byte:#04x} is not valid UTF-8, and text is read as UTF-8; convert the "
        "file (iconv -f ENCODING -t UTF-8), or leave it out"
    )


def _byte_run(data: bytes, place: int, in_line: bool) -> Run:
    raw: ByteArray = np.frombuffer(data, dtype=np.uint8)
    start = np.zeros(1, dtype=np.int64)
    folds = b"\n\n" in data or b"\r\n" in data or (not in_line and data[0] == _NEWLINE)
    if not folds:
        return _run(_TABLE[raw], start, start + place)
    newlines = np.flatnonzero(raw == _NEWLINE)
    before = newlines - 1
    returned = (before >= 0) & (raw[before] == _RETURN)
    before -= returned
    empty = np.where(before >= 0, raw[before] == _NEWLINE, not in_line)
    gone = np.sort(np.concatenate([newlines[returned] - 1, newlines[empty]]))
    tokens = np.delete(_TABLE[raw], gone)
    # Behind each byte that goes, tokens and bytes march on together again.
    first = np.concatenate([start, gone - np.arange(len(gone))])
    offset = np.concatenate([start, gone + 1]) + place
    return _run(tokens, first, offset)


def _run(tokens: Array, first: IndexArray, offset: IndexArray) -> Run:
    return Run(tokens, first, offset, np.zeros(len(first), dtype=np.int64))


def document_runs(
    chunks: Iterator[tuple[int, bytes]],
    name: str,
    line: int,
    *,
    text_key: str | None,
    encoder: Encoder | None,
) -> Iterator[Run]:
    """Yield the documents of a file, one Python step each.

    Args:
        chunks: The content from the beginning of a line on.
        name: Path, for messages.
        line: Number of that line, counted from 1.
        text_key: Key of the text in a JSON object; None: a line is the text.
        encoder: Tokenizer; None: bytes, and ``END_OF_DOCUMENT`` after each document.

    Raises:
        SourceError: naming file, line and byte.
    """
    for lines in read_lines(chunks, name, line):
        parts: list[bytes | Array] = []
        kept: list[Line] = []
        for one in lines:
            text = json_text(one, text_key, name) if text_key is not None else one.text(name)
            if not text:
                continue
            parts.append(encoder.ids(text, name, one) if encoder else _utf8(text, one, name))
            kept.append(one)
        if not kept:
            continue
        lengths = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
        if encoder:
            tokens = np.concatenate([np.asarray(part) for part in parts])
        else:
            raw = np.frombuffer(b"".join(bytes(part) for part in parts), dtype=np.uint8)
            tokens = raw.astype(np.uint16)
            tokens[raw == _NO_UTF8] = END_OF_DOCUMENT
        yield Run(
            tokens,
            np.cumsum(lengths) - lengths,
            np.array([one.offset for one in kept], dtype=np.int64),
            np.array([one.number for one in kept], dtype=np.int64),
        )


def _utf8(text: str, line: Line, name: str) -> bytes:
    try:
        return text.encode() + bytes([_NO_UTF8])
    except UnicodeEncodeError as error:
        raise SourceError(
            f"{line.at(name)}: the text holds half of a surrogate pair ({text[error.start]!r}), which is no character; "
            "correct the JSON escape"
        ) from None
