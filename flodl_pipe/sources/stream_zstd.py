"""Zstandard data, unpacked block by block.

The framing is walked here, the blocks are unpacked by a library. That buys two things: what one call gives is bounded
(128 KiB a block, however well it packs), and a file that ends early is noticed at the byte where it does: the libraries
take an early end for the end. Layout of a frame (RFC 8878)::

    magic  descriptor  [window]  [dictionary]  [content size]  (block header of 3 bytes, block)...  [checksum]
"""

import sys
from collections.abc import Iterator
from typing import Any, Protocol, final

from flodl_pipe.errors import SourceError
from flodl_pipe.units import format_count

__all__ = ["frame_content_bytes", "require_zstd", "unpack_zstd"]

_MAGIC = 0xFD2FB528
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_RAW, _REPEATED, _RESERVED = 0, 1, 3


class _Frame(Protocol):
    def decompress(self, data: bytes, /) -> bytes: ...


def require_zstd() -> None:
    """Refuse early where Zstandard cannot be read.

    Raises:
        SourceError: naming the extra to install.
    """
    _library()


def _library() -> tuple[Any, type[Exception]]:
    """Return a function that makes an unpacker of one frame, and the errors it raises."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415 - only there, and only when a .zst file is read

        return zstd.ZstdDecompressor, zstd.ZstdError
    try:
        import zstandard  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise SourceError(
            "reading .zst files needs the package zstandard (Python 3.14 has its own); install it with "
            "pip install 'flodl-pipe[zstd]', or repack the files with gzip"
        ) from error
    return zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError


def frame_content_bytes(head: bytes) -> int | None:
    """Return the content size that the first frame states, given its first 18 bytes; None where it states none.

    >>> frame_content_bytes(bytes.fromhex("28b52ffd600010"))
    4352
    """
    if int.from_bytes(head[:4], "little") != _MAGIC or len(head) < 5:
        return None
    size_bytes, before = _header(head[4])
    if not size_bytes or len(head) < 5 + before + size_bytes:
        return None
    stated = int.from_bytes(head[5 + before : 5 + before + size_bytes], "little")
    return stated + 256 if size_bytes == 2 else stated


def _header(flags: int) -> tuple[int, int]:
    """Return, of a frame's descriptor, the bytes of the content size, and those between the two."""
    single = flags >> 5 & 1
    return (single, 2, 4, 8)[flags >> 6], (1 - single) + (0, 1, 2, 4)[flags & 3]


def unpack_zstd(name: str, raw: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content of a file, at most 128 KiB at a time.

    Args:
        name: Path, for messages.
        raw: The file's bytes, in portions of any size.

    Raises:
        SourceError: if the data is damaged or ends early; with the byte of the file.
    """
    make, failure = _library()
    window = _Input(name, raw)
    while window.more():
        magic = int.from_bytes(window.take(4), "little")
        if magic in _SKIPPABLE:
            window.drop(int.from_bytes(window.take(4), "little"))
            continue
        if magic != _MAGIC:
            raise window.damaged("what follows is no zstd frame", back=4)
        frame: _Frame = make()
        try:
            yield from _blocks(window, frame)
        except failure as error:
            raise window.damaged(str(error)) from error


def _blocks(window: "_Input", frame: _Frame) -> Iterator[bytes]:
    descriptor = window.take(1)
    flags = descriptor[0]
    size_bytes, before = _header(flags)
    rest = window.take(before + size_bytes)
    frame.decompress(_MAGIC.to_bytes(4, "little") + descriptor + rest)
    last = 0
    while not last:
        header = window.take(3)
        word = int.from_bytes(header, "little")
        last, kind, size = word & 1, word >> 1 & 3, word >> 3
        if kind == _RESERVED:
            raise window.damaged("a block of unknown type", back=3)
        block = window.take(1 if kind == _REPEATED else size)
        checksum = window.take(4) if last and flags >> 2 & 1 else b""
        data = frame.decompress(header + block + checksum)
        if data:
            yield data


@final
class _Input:
    """Bytes in the portions wanted, out of portions as they come."""

    def __init__(self, name: str, raw: Iterator[bytes]) -> None:
        self._name, self._raw = name, raw
        self._held, self._at, self._place = b"", 0, 0

    def more(self) -> bool:
        """Return whether any byte is left."""
        return self._at < len(self._held) or self._refill()

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        while len(self._held) - self._at < count:
            if not self._refill():
                end = self._place + len(self._held) - self._at
                raise SourceError(
                    f"{self._name}, byte {format_count(end)}: the zstd data ends in the middle of a frame: the file is "
                    "truncated; copy it again"
                )
        part = self._held[self._at : self._at + count]
        self._at += count
        self._place += count
        return part

    def drop(self, count: int) -> None:
        """Pass over ``count`` bytes."""
        while count:
            part = min(count, 1 << 20)
            self.take(part)
            count -= part

    def damaged(self, reason: str, *, back: int = 0) -> SourceError:
        """Return the error for the place reached."""
        place = format_count(self._place - back)
        return SourceError(f"{self._name}, byte {place}: damaged zstd data ({reason}); copy the file again")

    def _refill(self) -> bool:
        more = next(self._raw, None)
        if more is None:
            return False
        self._held, self._at = self._held[self._at :] + more, 0
        return True
