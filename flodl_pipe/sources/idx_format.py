"""IDX files: one array each, in the format of MNIST and its kin, plain or gzip-compressed.

::

    00 00 TT DD                  two zero bytes, type of an element, number of dimensions
    DD sizes, uint32             all numbers big-endian
    elements                     row after row, exactly as many as the sizes say

Whether a file is compressed is told by its first bytes, never by its name. No more is decompressed than the header says
and one byte, and what a file of that length cannot possibly hold is refused before anything is.
"""

import math
import zlib
from collections.abc import Iterator
from typing import Protocol, final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.data_folder import read_head, refuse_archive
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_bytes, format_count

__all__ = ["IDX_DTYPES", "IdxFile"]

IDX_DTYPES = {0x08: "uint8", 0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}
"""Type byte of the header -> NumPy name."""

_CHUNK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
# Deflate's longest match is 258 bytes and takes at least two bits.
_MAX_GZIP_RATIO = 1032


@final
class IdxFile:
    """One IDX file whose header has been read and checked; its elements are read by :meth:`read_into`, once.

    Args:
        blobs: Where the file is.
        blob: Its number.

    Attributes:
        name: Its path.
        dtype: NumPy name of an element's type.
        dims: Size of each dimension, the first is the number of samples.
        is_packed: Whether it is gzip-compressed.

    Raises:
        SourceError: if it is no IDX file, has no samples, or is too short for what its header says.
    """

    def __init__(self, blobs: Blobs, blob: int) -> None:
        self.name = blobs.names[blob]
        self._size = int(blobs.sizes[blob])
        self._start = read_head(blobs, blob)
        self.is_packed = self._start.startswith(_GZIP_MAGIC)
        self._bytes: _Bytes = _Unpacked(blobs, blob) if self.is_packed else _Plain(blobs, blob)
        head = self._header(4)
        if head[:2] != b"\0\0" or head[2] not in IDX_DTYPES or not head[3]:
            raise self._bad_magic(head)
        self.dtype = IDX_DTYPES[head[2]]
        self.dims: tuple[int, ...] = tuple(np.frombuffer(self._header(4 * head[3]), dtype=">u4").tolist())
        if not self.dims[0]:
            raise SourceError(f"{self.name}: empty: its header says {self.shape}, so no samples; give a file with some")
        if not all(self.dims):
            raise SourceError(f"{self.name}: a dimension of its header is 0: {self.shape}; samples of no bytes")
        self._require_plausible(4 + 4 * head[3])

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.dims[1:], start=np.dtype(self.dtype).itemsize)

    @property
    def shape(self) -> str:
        """Its dimensions as people write them, for example ``60000 x 28 x 28``."""
        return " x ".join(map(str, self.dims))

    @property
    def magic(self) -> int:
        """The first four bytes as a number: 2051 for MNIST's images, 2049 for its labels."""
        code = next(code for code, dtype in IDX_DTYPES.items() if dtype == self.dtype)
        return code << 8 | len(self.dims)

    def read_into(self, out: ByteArray) -> None:
        """Read the elements, in little-endian order, and check that the file ends after them.

        Args:
            out: uint8, shape ``(N, row_bytes)``; rows may be apart.

        Raises:
            SourceError: if the file is cut, damaged, or goes on after the last element.
        """
        width, row_bytes = np.dtype(self.dtype).itemsize, self.row_bytes
        step = max(1, _CHUNK_BYTES // row_bytes)
        for first in range(0, len(out), step):
            rows = out[first : first + step]
            chunk = np.empty(rows.shape, dtype=np.uint8)
            found = self._bytes.take(chunk.reshape(-1))
            if found < chunk.size:
                raise self._truncated(first * row_bytes + found)
            rows[:] = _swapped(chunk, width)
        if self._bytes.take(np.empty(1, dtype=np.uint8)):
            raise SourceError(
                f"{self.name}: goes on after the {format_count(len(out) * row_bytes)} bytes that its header says "
                f"({self.dtype}, {self.shape}): surplus bytes mean that the header, or the file, is another's; get it "
                "again"
            )

    def _header(self, num_bytes: int) -> bytes:
        head = np.empty(num_bytes, dtype=np.uint8)
        found = self._bytes.take(head)
        if found == num_bytes:
            return head.tobytes()
        what = "empty" if not self._size else "truncated"
        raise SourceError(
            f"{self.name}: {what}: its {format_count(self._size)} bytes do not hold the header of an IDX file; copy or "
            "download it again"
        )

    def _bad_magic(self, head: bytes) -> SourceError:
        if head.startswith(_GZIP_MAGIC):
            return SourceError(f"{self.name}: gzip-compressed twice, or more often; unpack it once (gzip -d)")
        if not self.is_packed:
            refuse_archive(self.name, self._start)
        return SourceError(
            f"{self.name}: not an IDX file: its magic is 0x{head.hex()}, and an IDX file begins with two zero bytes, a "
            f"type ({', '.join(f'0x{code:02X}' for code in IDX_DTYPES)}) and a number of dimensions; check the path, "
            "or download it again"
        )

    def _require_plausible(self, header_bytes: int) -> None:
        """Refuse what the file is too short for, before memory is taken for it."""
        wanted = self.dims[0] * self.row_bytes
        most = self._size * _MAX_GZIP_RATIO if self.is_packed else self._size - header_bytes
        if wanted > most:
            raise self._truncated(None if self.is_packed else most)

    def _truncated(self, found: int | None) -> SourceError:
        wanted = self.dims[0] * self.row_bytes
        there = (
            f"a gzip file of {format_bytes(self._size)} cannot hold them"
            if found is None
            else f"only {format_count(found)} are there"
        )
        return SourceError(
            f"{self.name}: truncated, or its header is wrong: {self.dtype} {self.shape} is expected to take "
            f"{format_count(wanted)} bytes, and {there}; copy or download it again"
        )


def _swapped(chunk: ByteArray, width: int) -> Array:
    """Return rows of elements with the bytes of each element in reverse order."""
    return chunk if width == 1 else chunk.reshape(len(chunk), -1, width)[:, :, ::-1].reshape(chunk.shape)


class _Bytes(Protocol):
    """Bytes read front to back."""

    def take(self, out: ByteArray) -> int:
        """Fill ``out`` with the next bytes and return how many there were; fewer only at the end."""
        ...


@final
class _Plain:
    """A file as it lies there."""

    def __init__(self, blobs: Blobs, blob: int) -> None:
        self._blobs, self._blob = blobs, blob
        self._at, self._end = 0, int(blobs.sizes[blob])

    def take(self, out: ByteArray) -> int:
        count = min(len(out), self._end - self._at)
        if count:
            self._blobs.read_range(self._blob, self._at, out[:count])
        self._at += count
        return count


@final
class _Unpacked:
    """What a gzip file holds; several members, as parallel compressors write them, are one after the other."""

    def __init__(self, blobs: Blobs, blob: int) -> None:
        self._name = blobs.names[blob]
        self._chunks = _chunks(blobs, blob)
        self._packed = b""
        self._member = zlib.decompressobj(wbits=31)

    def take(self, out: ByteArray) -> int:
        done = 0
        while done < len(out):
            if not self._member.eof:
                part = self._inflate(len(out) - done)
                out[done : done + len(part)] = np.frombuffer(part, dtype=np.uint8)
                done += len(part)
            elif not self._next_member():
                break
        return done

    def _inflate(self, most: int) -> bytes:
        """Return up to ``most`` bytes; none when the decompressor needs more than one chunk for them."""
        if not self._packed:
            self._packed = next(self._chunks, b"")
        at_end = not self._packed  # the decompressor may still hold output of what it took
        try:
            part = self._member.decompress(self._packed, most)
        except zlib.error as error:
            raise SourceError(f"{self._name}: damaged gzip data ({error}); copy or download it again") from error
        if at_end and not part and not self._member.eof:
            raise SourceError(
                f"{self._name}: truncated: the gzip data ends before its end-of-stream mark; copy or download it again"
            )
        self._packed = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        return part

    def _next_member(self) -> bool:
        while not self._packed.strip(b"\0"):  # archives pad with zeros
            self._packed = next(self._chunks, b"")
            if not self._packed:
                return False
        self._packed = self._packed.lstrip(b"\0")
        if len(self._packed) < len(_GZIP_MAGIC):
            self._packed += next(self._chunks, b"")
        if not self._packed.startswith(_GZIP_MAGIC):
            raise SourceError(f"{self._name}: surplus bytes follow its gzip data; copy or download it again")
        self._member = zlib.decompressobj(wbits=31)
        return True


def _chunks(blobs: Blobs, blob: int) -> Iterator[bytes]:
    size = int(blobs.sizes[blob])
    for start in range(0, size, _CHUNK_BYTES):
        chunk = np.empty(min(_CHUNK_BYTES, size - start), dtype=np.uint8)
        blobs.read_range(blob, start, chunk)
        yield chunk.tobytes()
