"""The content of one file in large portions, from any byte on: read in sequence, unpacked on the way.

A plain file is read from the byte asked for. A packed one has no way in but its beginning: it is unpacked and thrown
away up to that byte, which takes the time of unpacking and no more.
"""

import zlib
from collections.abc import Iterator

import numpy as np

from flodl_pipe.errors import ResumeError, SourceError
from flodl_pipe.sources.stream_formats import Packing
from flodl_pipe.sources.stream_zstd import frame_content_bytes, unpack_zstd
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_count

__all__ = ["CHUNK_BYTES", "READ_BYTES", "content_bytes", "read_content"]

READ_BYTES = 1 << 20
"""Bytes of a read: large enough that the time to the first byte of a remote one does not decide."""
CHUNK_BYTES = 1 << 18
"""Bytes of a portion: small enough that what is made of it stays in the cache of a core."""
_GZIP_INPUT = 1 << 16  # what is not taken in is copied at every call

_GZIP = 16 + zlib.MAX_WBITS


def read_content(blobs: Blobs, blob: int, packing: Packing, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield ``(place, bytes)``: the content from ``offset`` on, each portion with the place of its first byte.

    Portions hold at least ``CHUNK_BYTES``, except the last, and at most 128 KiB more.

    Args:
        blobs: The files.
        blob: Which of them.
        packing: How it is packed.
        offset: Byte of the unpacked content to begin with.

    Raises:
        SourceError: if the file changed, cannot be read, is damaged, or ends early.
        ResumeError: if the content ends before ``offset``.
    """
    name = blobs.names[blob]
    if not packing:
        place = offset
        for data in _cut(_raw(blobs, blob, offset), CHUNK_BYTES):
            yield place, data
            place += len(data)
        return
    place = 0
    unpack = unpack_zstd if packing == "zst" else _unpack_gzip
    for data in _gathered(unpack(name, _raw(blobs, blob, 0))):
        end = place + len(data)
        if end > offset:
            yield max(place, offset), data[max(offset - place, 0) :]
        place = end
    if place < offset:
        raise _beyond(name, place, offset)


def content_bytes(blobs: Blobs, blob: int, packing: Packing) -> int | None:
    """Return the bytes of a file's content if sizes tell: a gzip file ends with them, a zstd frame may begin with them.

    Right for files of one member or frame below 4 GiB; None where the file cannot be one, else an estimate.
    """
    size = int(blobs.sizes[blob])
    if not packing:
        return size
    head = np.empty(min(size, 18), dtype=np.uint8)
    blobs.read_range(blob, size - len(head) if packing == "gz" else 0, head)
    raw = head.tobytes()
    found = int.from_bytes(raw[-4:], "little") if packing == "gz" else frame_content_bytes(raw)
    return found if found is not None and found >= size else None


def _raw(blobs: Blobs, blob: int, offset: int) -> Iterator[bytes]:
    size = int(blobs.sizes[blob])
    if offset > size:
        raise _beyond(blobs.names[blob], size, offset)
    for start in range(offset, size, READ_BYTES):
        yield _read(blobs, blob, start, min(READ_BYTES, size - start))


def _read(blobs: Blobs, blob: int, start: int, num_bytes: int) -> bytes:
    buffer = np.empty(num_bytes, dtype=np.uint8)  # gone before the bytes are used
    blobs.read_range(blob, start, buffer)
    return buffer.tobytes()


def _beyond(name: str, size: int, offset: int) -> ResumeError:
    return ResumeError(
        f"{name} holds {format_count(size)} bytes, the saved place is byte {format_count(offset)}; the state belongs "
        "to other data, resume with the data it was saved with"
    )


def _cut(parts: Iterator[bytes], most: int) -> Iterator[bytes]:
    """Cut portions into smaller ones."""
    for part in parts:
        for start in range(0, len(part), most):
            yield part[start : start + most]


def _gathered(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Join small portions, so that a file of many small members is no slower than one of a single one."""
    held: list[bytes] = []
    num_bytes = 0
    for part in parts:
        held.append(part)
        num_bytes += len(part)
        if num_bytes >= CHUNK_BYTES:
            yield b"".join(held)
            held, num_bytes = [], 0
    if held:
        yield b"".join(held)


def _unpack_gzip(name: str, raw: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content of all members, at most ``CHUNK_BYTES`` at a time."""
    member = None
    place = 0  # of the first byte of `data` that is not unpacked
    for data in _cut(raw, _GZIP_INPUT):
        end = place + len(data)
        while data:
            if member is None:
                data = data.lstrip(b"\0")  # noqa: PLW2901 - members may be padded with zeros
                if not data:
                    break
                member = zlib.decompressobj(_GZIP)
            try:
                yield from _inflate(member, data)
            except zlib.error as error:
                raise SourceError(
                    f"{name}, byte {format_count(end - len(data))} or after: damaged gzip data ({error}); copy the "
                    "file again"
                ) from error
            data = member.unused_data  # noqa: PLW2901
            if member.eof:
                member = None
        place = end
    if member is not None:
        raise SourceError(
            f"{name}, byte {format_count(place)}: the gzip data ends in the middle of a member: the file is truncated; "
            "copy it again"
        )


def _inflate(member: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
    while True:
        part = member.decompress(data, CHUNK_BYTES)
        if part:
            yield part
        data = member.unconsumed_tail
        # What may still be inside comes out with the next input: a member ends with eight bytes that are no content.
        if member.eof or not data:
            return
