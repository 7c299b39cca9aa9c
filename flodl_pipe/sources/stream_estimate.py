"""About how many documents and tokens text files hold, from a few places in them.

Plain files are taken as one range of bytes, file after file. It is cut into equal strata, and one place of each is
read; where in it, the multiples of the golden ratio say, so that files of one size are not all met at their begin.
What lies between the first and the last line end there tells how many of them come from how many bytes. Packed files
have no way in but their begin: the first portion of some of them is what there is.

::

    plain     |....x...|.x......|.......x|...x....|     x: 64 KiB
    packed    |x.......|        |x.......|              x: 256 KiB, unpacked

It is an estimate: nothing depends on it but what is shown and planned. A line that is damaged tells nothing here and is
an error when it is read.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.stream_formats import TextFormat
from flodl_pipe.sources.stream_lines import Line, json_text
from flodl_pipe.sources.stream_tokens import count_line_tokens
from flodl_pipe.sources.stream_unpack import content_bytes, read_content
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_count

__all__ = ["Estimate", "estimate_tokens"]

_PLACES = 24
_PLACE_BYTES = 1 << 16
_LONG_PLACE_BYTES = 1 << 20
"""What is read where no line is as short as a place."""
_PACKED_FILES = 8
_GOLDEN = 0.6180339887498949


class Estimate(NamedTuple):
    """About how many tokens and documents there are, and how that was found; no tokens where a tokenizer decides."""

    num_tokens: int | None
    num_documents: int
    how: str


class _Seen(NamedTuple):
    """Tokens and ends of documents, and the bytes that they come from."""

    tokens: int
    documents: int
    bytes: int


def estimate_tokens(blobs: Blobs, formats: Sequence[TextFormat], text_key: str) -> Estimate | None:
    """Return about how many documents and tokens of bytes files hold; None where sizes do not tell how much is packed.

    Args:
        blobs: The files.
        formats: What each is.
        text_key: Key of the text in a JSON object.

    Raises:
        SourceError: if a file changed, cannot be read, or is packed and damaged at its begin.
    """
    total, documents, how = 0, 0, []
    for kind in sorted(set(formats)):
        files = [file for file, one in enumerate(formats) if one == kind]
        sizes = [content_bytes(blobs, file, kind.packing) for file in files]
        known = np.array([size for size in sizes if size is not None], dtype=np.int64)
        if len(known) < len(sizes):
            return None
        look = _look_packed if kind.packing else _look_plain
        seen, said = look(blobs, files, known, kind, text_key)
        num_bytes = int(known.sum())
        # No whole line in sight: documents longer than that are hardly anything but text.
        total += min(num_bytes * seen.tokens // seen.bytes, num_bytes) if seen.bytes else num_bytes
        documents += round(num_bytes * seen.documents / seen.bytes) if seen.bytes else len(files)
        how.append(said)
    return Estimate(total, max(documents, 1), " and ".join(how))


def _look_plain(
    blobs: Blobs, files: Sequence[int], sizes: IndexArray, kind: TextFormat, text_key: str
) -> tuple[_Seen, str]:
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    if total <= _PLACES * _PLACE_BYTES and len(files) <= _PLACES:
        return _sum(
            _tokens_in(_read(blobs, file, 0, size), kind, text_key, whole=(True, True))
            for file, size in zip(files, sizes.tolist(), strict=True)
        ), "counted in all of the plain files"
    seen = []
    for number in range(_PLACES):
        place = int((number + number * _GOLDEN % 1) * total / _PLACES)
        which = int(np.searchsorted(ends, place, side="right"))
        size = int(sizes[which])
        start = place - (int(ends[which]) - size)
        for most in (_PLACE_BYTES, _LONG_PLACE_BYTES):
            first = max(min(start, size - most), 0)
            last = min(first + most, size)
            data = _read(blobs, files[which], first, last - first)
            found = _tokens_in(data, kind, text_key, whole=(not first, last == size))
            if found.bytes:
                break
        seen.append(found)
    return _sum(seen), f"extrapolated from {_PLACES} places of the plain files"


def _look_packed(
    blobs: Blobs, files: Sequence[int], sizes: IndexArray, kind: TextFormat, text_key: str
) -> tuple[_Seen, str]:
    some = np.unique(np.linspace(0, len(files) - 1, min(_PACKED_FILES, len(files))).astype(np.int64))
    seen = []
    everything = len(some) == len(files)
    for which in some.tolist():
        _, data = next(read_content(blobs, files[which], kind.packing, 0), (0, b""))
        whole = len(data) >= int(sizes[which])
        everything &= whole
        seen.append(_tokens_in(data, kind, text_key, whole=(True, whole)))
    if everything:
        return _sum(seen), f"counted in all of the .{kind.packing} files"
    part = "each" if len(some) == len(files) else f"{len(some)} of {format_count(len(files))}"
    return _sum(seen), f"extrapolated from the first 256 KiB of {part} .{kind.packing} file{'s' * (part != 'each')}"


def _sum(seen: Iterable[_Seen]) -> _Seen:
    tokens, documents, num_bytes = zip(*seen, strict=True)
    return _Seen(sum(tokens), sum(documents), sum(num_bytes))


def _read(blobs: Blobs, file: int, offset: int, num_bytes: int) -> bytes:
    buffer = np.empty(num_bytes, dtype=np.uint8)
    blobs.read_range(file, offset, buffer)
    return buffer.tobytes()


def _tokens_in(data: bytes, kind: TextFormat, text_key: str, *, whole: tuple[bool, bool]) -> _Seen:
    """Count the tokens and documents of a piece; of JSON lines, of those that are not cut.

    Args:
        data: The piece.
        kind: What the file is.
        text_key: Key of the text in a JSON object.
        whole: Whether its first line begins in it, and its last one ends.
    """
    if not kind.json:
        tokens, documents = count_line_tokens(data, in_line=not whole[0])
        unended = whole[1] and not data.endswith(b"\n")
        return _Seen(tokens, documents + unended, len(data))
    begin = 0 if whole[0] else data.find(b"\n") + 1 or len(data)
    end = len(data) if whole[1] else data.rfind(b"\n") + 1
    tokens = documents = num_bytes = 0
    lines = data[begin:end].split(b"\n")
    for raw in lines if lines[-1] else lines[:-1]:
        try:
            text = json_text(Line(0, 0, raw.removesuffix(b"\r")), text_key, "")
        except SourceError:
            continue
        num_bytes += len(raw) + 1
        tokens += len(text.encode("utf-8", "surrogatepass")) + 1 if text else 0
        documents += bool(text)
    return _Seen(tokens, documents, num_bytes)
