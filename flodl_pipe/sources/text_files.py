"""Text files -> code points, in parts, so that a large text never stands in memory as Python's.

The text is what the files say, with two things settled:

- A byte order mark at the begin of a file is no character and is skipped; one that stands elsewhere is U+FEFF.
- CR LF is one line end, LF, on every system; a CR alone stays.

Anything that is not UTF-8 is an error that names the byte. Files are joined in order, with nothing in between, and each
is decoded by itself: no character and no line end reaches from one into the next.
"""

import codecs
from collections.abc import Iterator

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.containers import CONTAINER_HEAD_BYTES, refuse_container
from flodl_pipe.sources.text_vocabulary import code_points
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_count

__all__ = ["read_code_points"]

_CHUNK = 1 << 22
_BOM = codecs.BOM_UTF8
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_code_points(blobs: Blobs) -> Iterator[Array]:
    """Yield the code points of a text, part by part, uint32, one-dimensional.

    Args:
        blobs: The files, in order.

    Raises:
        SourceError: if a file is empty, packed, or not UTF-8.
    """
    for blob, name in enumerate(blobs.names):
        for text in _folded(_decoded(blobs, blob, name)):
            yield code_points(text)


def _decoded(blobs: Blobs, blob: int, name: str) -> Iterator[str]:
    size = int(blobs.sizes[blob])
    if not size:
        raise SourceError(f"{name}: empty: 0 bytes, no text; remove the file or copy it again")
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    for start in range(0, size, _CHUNK):
        raw = np.empty(min(_CHUNK, size - start), dtype=np.uint8)
        blobs.read_range(blob, start, raw)
        content, skipped = raw.tobytes(), 0
        if not start:
            refuse_container(name, content[:CONTAINER_HEAD_BYTES])
            skipped = len(_BOM) if content.startswith(_BOM) else 0
        waiting = len(decoder.getstate()[0])  # bytes of a character that the last part cut
        try:
            yield decoder.decode(content[skipped:], start + len(raw) == size)
        except UnicodeDecodeError as error:
            offset = start + skipped - waiting + error.start
            kind = "; it begins like UTF-16" if not start and content.startswith(_UTF16) else ""
            raise SourceError(
                f"{name}, byte {format_count(offset)}: 0x{error.object[error.start]:02X} is not UTF-8 "
                f"({error.reason}){kind}; save the file as UTF-8, for example with iconv -f ENCODING -t UTF-8"
            ) from error


def _folded(parts: Iterator[str]) -> Iterator[str]:
    """Yield the same text with CR LF as LF, though a part may end between the two."""
    held = ""
    for part in parts:
        text = held + part
        held = "\r" if text.endswith("\r") else ""
        yield text.removesuffix("\r").replace("\r\n", "\n")
    yield held
