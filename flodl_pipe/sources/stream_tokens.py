"""The documents of one file as runs of tokens, each token with the way back to its place in the file.

Two ways in, one kind of run out. Lines encoded as bytes take no step per document: NumPy turns a portion of 256 KiB
into token ids (a newline becomes the end of a document, the carriage return before it and empty lines go). JSON lines
and a tokenizer of the user's take one Python step per line. What leaves no token leaves no anchor either, so that a run
is no larger than the portion it comes from.

What a token's place is, in a run with anchors ``first[j]`` (a token) and ``offset[j]`` (a byte), ``j`` the last anchor
at or before token ``k``::

    bytes     byte offset[j] + (k - first[j]): every token has its own
    lines     byte offset[j], the line's first, and k - first[j] tokens to skip there
"""

import codecs
import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.stream_encode import Encoder
from flodl_pipe.sources.stream_lines import Line, json_text, read_lines
from flodl_pipe.units import format_count

__all__ = ["BYTE_VOCAB_SIZE", "END_OF_DOCUMENT", "Run", "byte_runs", "count_line_tokens", "document_runs"]

_logger = logging.getLogger("flodl_pipe")

END_OF_DOCUMENT = 256
BYTE_VOCAB_SIZE = 257
"""256 byte values and the end of a document."""

_NEWLINE, _RETURN = 10, 13
_BOM = codecs.BOM_UTF8
_FOLDED_BYTES = 1 << 16
"""Bytes that are folded at once: one of two may need an anchor, which takes more than what it stands for."""
# No byte of valid UTF-8; marks the ends of documents where many are turned into tokens at once.
_NO_UTF8 = 0xFF


def _byte_table() -> Array:
    table = np.arange(256, dtype=np.uint16)
    table[_NEWLINE] = END_OF_DOCUMENT
    return table


_TABLE = _byte_table()


class Run(NamedTuple):
    """At least one token, shape ``(K,)``, and their anchors, int64, shape ``(A,)``, the first at token 0."""

    tokens: Array
    first: IndexArray
    offset: IndexArray
    line: IndexArray


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
            yield from _byte_runs(data, place, in_line)
            in_line = data[-1] != _NEWLINE
        place += len(data)
    if carry and carry != b"\r":
        raise _not_utf8(name, place, carry[0])
    if carry:
        yield from _byte_runs(carry, place, in_line)
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


def _byte_runs(data: bytes, place: int, in_line: bool) -> Iterator[Run]:
    if b"\n\n" not in data and b"\r\n" not in data and (in_line or data[0] != _NEWLINE):
        start = np.zeros(1, dtype=np.int64)
        yield _run(_TABLE.take(np.frombuffer(data, dtype=np.uint8)), start, start + place)
        return
    begin = 0
    while begin < len(data):
        end = min(begin + _FOLDED_BYTES, len(data))
        end += data[end - 1 : end + 1] == b"\r\n"
        run = _folded(data[begin:end], place + begin, in_line)
        if len(run.tokens):
            yield run
        in_line = data[end - 1] != _NEWLINE
        begin = end


def _folded(data: bytes, place: int, in_line: bool) -> Run:
    """Return lines without the ends that leave no token: returns before newlines, and the newlines of empty lines."""
    raw: ByteArray = np.frombuffer(data, dtype=np.uint8)
    newline = raw == _NEWLINE
    begins = np.empty_like(newline)  # a line begins here
    begins[0], begins[1:] = not in_line, newline[:-1]
    gone = np.zeros_like(newline)
    np.logical_and(raw[:-1] == _RETURN, newline[1:], out=gone[:-1])
    empty = newline & begins
    empty[1:] |= gone[:-1] & begins[:-1]
    gone |= empty
    start = np.zeros(1, dtype=np.int64)
    edges = np.flatnonzero(np.diff(gone, prepend=False, append=False))
    begin, end = edges[::2], edges[1::2]
    # Behind bytes that go, tokens and bytes march on together again: one anchor there, however many went.
    first = end - np.cumsum(end - begin)
    kept = slice(len(end) - int(gone[-1]))
    return _run(
        _TABLE.take(raw[~gone]),
        np.concatenate([start, first[kept]]),
        np.concatenate([start, end[kept]]) + place,
    )


def count_line_tokens(data: bytes, *, in_line: bool) -> tuple[int, int]:
    """Return the tokens that a piece of lines encoded as bytes gives, wherever it was cut out, and the ends among them.

    Args:
        data: The piece.
        in_line: Something of its first line lies before it.
    """
    tokens = ends = 0
    for run in _byte_runs(data, 0, in_line) if data else ():
        tokens += len(run.tokens)
        ends += int(np.count_nonzero(run.tokens == END_OF_DOCUMENT))
    return tokens, ends


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
            part = encoder.ids(text, name, one) if encoder else _utf8(text, one, name)
            if len(part):
                parts.append(part)
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
