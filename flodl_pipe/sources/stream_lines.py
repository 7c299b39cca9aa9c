"""The lines of a file, each with its number and the byte where it begins; and the text that a JSON line holds.

A line ends at a line feed, with or without a carriage return before it, or at the end of the file. A byte order mark at
the beginning of the file belongs to no line.
"""

import codecs
import json
from collections.abc import Iterator
from typing import NamedTuple

from flodl_pipe.errors import SourceError
from flodl_pipe.units import format_bytes, format_count

__all__ = ["MAX_LINE_BYTES", "Line", "json_text", "read_lines"]

MAX_LINE_BYTES = 16 << 20
"""Longest line that is taken; a longer one is held to be a file without line ends."""

_BLANK = b" \t\r"
_GROUP_LINES = 4096
"""Lines split off at a time: a line of two bytes is an object of a hundred, and a portion has 100,000 of them."""


class Line(NamedTuple):
    """One line, without its end."""

    offset: int
    number: int
    raw: bytes

    def at(self, name: str, inside: int = 0) -> str:
        """Return file, line and byte, as messages begin."""
        return f"{name}, line {format_count(self.number)} (byte {format_count(self.offset + inside)})"

    def text(self, name: str) -> str:
        """Return the line as text.

        Raises:
            SourceError: if it is not UTF-8; with the byte.
        """
        try:
            return self.raw.decode()
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{self.at(name, error.start)}: {self.raw[error.start]:#04x} is not valid UTF-8, and text is read as "
                "UTF-8; convert the file (iconv -f ENCODING -t UTF-8), or leave it out"
            ) from None


def read_lines(chunks: Iterator[tuple[int, bytes]], name: str, number: int) -> Iterator[list[Line]]:
    """Yield the lines of a file, some thousands at a time; empty ones are left out.

    Args:
        chunks: The content from the beginning of a line on.
        name: Path, for messages.
        number: Number of that line, counted from 1.

    Raises:
        SourceError: if a line is longer than ``MAX_LINE_BYTES``.
    """
    begun: list[bytes] = []  # portions of a line that is not complete
    held = offset = 0
    for at, chunk in chunks:
        if not begun:
            offset = at
        cut = chunk.rfind(b"\n") + 1
        if cut:
            data = b"".join([*begun, chunk[:cut]])
            yield from _split(data, offset, number, name)
            number += data.count(b"\n")
            offset, begun, held = at + cut, [], 0
        if cut < len(chunk):
            begun.append(chunk[cut:])
            held += len(chunk) - cut
            _require_short(held, name, number, offset)
    if begun:
        yield from _split(b"".join(begun), offset, number, name)


def _split(rest: bytes, offset: int, number: int, name: str) -> Iterator[list[Line]]:
    while rest:
        pieces = rest.split(b"\n", _GROUP_LINES)
        rest = pieces.pop() if len(pieces) > _GROUP_LINES else b""
        lines = []
        for raw in pieces:
            start = offset
            _require_short(len(raw), name, number, start)
            offset += len(raw) + 1
            if not start and raw.startswith(codecs.BOM_UTF8):
                start, raw = len(codecs.BOM_UTF8), raw[len(codecs.BOM_UTF8) :]  # noqa: PLW2901
            raw = raw.removesuffix(b"\r")  # noqa: PLW2901
            if raw:
                lines.append(Line(start, number, raw))
            number += 1
        yield lines


def _require_short(num_bytes: int, name: str, number: int, offset: int) -> None:
    if num_bytes > MAX_LINE_BYTES:
        raise SourceError(
            f"{name}, line {format_count(number)} (byte {format_count(offset)}): longer than "
            f"{format_bytes(MAX_LINE_BYTES)}, the most that a line may be; is this the right source.format, or a file "
            "without line ends? Break the document into several lines"
        )


def json_text(line: Line, key: str, name: str) -> str:
    """Return the text of a JSON line; empty for a blank line.

    Raises:
        SourceError: if the line is no JSON object, or has no text under the key.
    """
    if not line.raw.strip(_BLANK):
        return ""
    text = line.text(name)
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        inside = len(text[: error.pos].encode("utf-8", "surrogatepass"))
        raise SourceError(
            f"{line.at(name, inside)}: no valid JSON ({error.msg}, column {error.colno}); a line must hold one whole "
            "JSON object, correct or remove it"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; thousands of brackets
        raise SourceError(f"{line.at(name)}: no usable JSON ({error}); correct or remove the line") from None
    if not isinstance(found, dict):
        raise SourceError(
            f"{line.at(name)}: holds a JSON {_kind(found)}; a line must hold one JSON object, for example "
            f'{{"{key}": "..."}}'
        )
    if key not in found:
        keys = ", ".join(repr(known) for known in list(found)[:8]) or "none"
        raise SourceError(f"{line.at(name)}: has no key {key!r}; its keys are {keys}: set source.text_key")
    value = found[key]
    if not isinstance(value, str):
        raise SourceError(f"{line.at(name)}: {key!r} holds a {_kind(value)}, not text; set source.text_key to the text")
    return value


def _kind(value: object) -> str:
    return {dict: "object", list: "list", str: "string", bool: "truth value", type(None): "null"}.get(
        type(value), "number"
    )
