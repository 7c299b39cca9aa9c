"""What a text file is: documents as lines or as JSON objects, plain or packed, told by its name and held to its bytes.

=============  ===================================================================================================
``lines``      a document a line; with ``auto``: names that end in ``.txt`` or ``.text``
``jsonl``      a JSON object a line; with ``auto``: ``.jsonl``, ``.ndjson`` or ``.json``
``.gz``        after either: gzip, of any number of members
``.zst``       after either: Zstandard, of any number of frames
=============  ===================================================================================================

A name promises, the first bytes must agree: gzip bytes under a plain name are an error, and so is plain text under a
packed one. Nothing is guessed from content.
"""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Literal, NamedTuple

import numpy as np

from flodl_pipe.errors import ConfigError, SourceError
from flodl_pipe.sources.containers import CONTAINER_HEAD_BYTES, refuse_container
from flodl_pipe.storage.protocol import Blobs

__all__ = ["FORMATS", "Packing", "TextFormat", "shown_formats", "suffixes_of", "tell_format", "tell_formats"]

Packing = Literal["", "gz", "zst"]
"""How a file is packed; empty: it is not."""

FORMATS = ("auto", "lines", "jsonl")

_ENDINGS = {"lines": (".txt", ".text"), "jsonl": (".jsonl", ".ndjson", ".json")}
_PACKINGS: dict[str, Packing] = {".gz": "gz", ".zst": "zst"}
_MAGIC: dict[Packing, bytes] = {"gz": b"\x1f\x8b\x08", "zst": b"\x28\xb5\x2f\xfd"}
_TOOL: dict[Packing, str] = {"gz": "gzip", "zst": "zstd"}
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
"""A zstd file may begin with a frame that holds no data."""


class TextFormat(NamedTuple):
    """What one file is."""

    json: bool
    packing: Packing

    def __str__(self) -> str:
        return ("jsonl" if self.json else "lines") + (f".{self.packing}" if self.packing else "")


def suffixes_of(file_format: str) -> tuple[str, ...]:
    """Return the endings of the files that a folder gives.

    Raises:
        ConfigError: if there is no such format.

    >>> suffixes_of("lines")
    ('.txt', '.text', '.txt.gz', '.text.gz', '.txt.zst', '.text.zst')
    """
    if file_format not in FORMATS:
        raise ConfigError.at("source.format", f"must be one of {', '.join(FORMATS)}, got {file_format!r}")
    endings = [ending for name in _ENDINGS if file_format in ("auto", name) for ending in _ENDINGS[name]]
    return tuple(ending + packing for packing in ("", *_PACKINGS) for ending in endings)


def tell_format(name: str, file_format: str) -> TextFormat:
    """Return what a file is by its name.

    Raises:
        SourceError: if ``auto`` does not know the ending.

    >>> str(tell_format("/data/c4-00001.JSON.gz", "auto")), str(tell_format("notes", "lines"))
    ('jsonl.gz', 'lines')
    """
    # An address may go on with a query; a local name may hold any sign.
    path = PurePath((name.partition("?")[0] if "://" in name else name).lower())
    packing = _PACKINGS.get(path.suffix, "")
    ending = (path.with_suffix("") if packing else path).suffix
    if file_format == "auto":
        known = [kind for kind, endings in _ENDINGS.items() if ending in endings]
        if not known:
            raise SourceError(
                f"{name}: the ending {ending!r} does not say whether a line is a document or a JSON object; set "
                "source.format to lines or jsonl"
            )
        file_format = known[0]
    return TextFormat(file_format == "jsonl", packing)


def tell_formats(blobs: Blobs, file_format: str) -> tuple[TextFormat, ...]:
    """Return what each file is, after a look at its first bytes.

    Raises:
        SourceError: if a name and the bytes under it disagree, or a packed file is empty.
    """
    found = tuple(tell_format(name, file_format) for name in blobs.names)
    for blob, (name, size, kind) in enumerate(zip(blobs.names, blobs.sizes.tolist(), found, strict=True)):
        head = np.empty(min(size, CONTAINER_HEAD_BYTES), dtype=np.uint8)
        if len(head):
            blobs.read_range(blob, 0, head)
        _require_head(name, kind.packing, head.tobytes())
    return found


def _require_head(name: str, packing: Packing, head: bytes) -> None:
    if packing:
        if head.startswith(_MAGIC[packing]):
            return
        if packing == "zst" and int.from_bytes(head[:4], "little") in _SKIPPABLE:
            return
        what = f"begins with {head[:4].hex(' ')}" if head else "is empty, 0 bytes: a copy that stopped early"
        raise SourceError(
            f"{name}: it is called .{packing} but {what}, not {_TOOL[packing]} data; rename it to what it is, or copy "
            "it again"
        )
    for actual, magic in _MAGIC.items():
        if head.startswith(magic):
            raise SourceError(
                f"{name}: it begins as {_TOOL[actual]} data (byte 0: {head[:4].hex(' ')}) under a name without "
                f".{actual}; rename it to end in .{actual}, or unpack it ({_TOOL[actual]} -d)"
            )
    refuse_container(name, head)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SourceError(f"{name}: byte 0: it begins as UTF-16 text, and text is read as UTF-8; convert it (iconv)")


def shown_formats(formats: Sequence[TextFormat]) -> str:
    """Return the formats that occur, sorted, for people."""
    return ", ".join(sorted({str(kind) for kind in formats}))
