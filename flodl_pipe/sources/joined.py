"""The data of many files as one range of bytes: what extents and fingerprints are made over.

Headers are left out, so equal tokens in another container, or cut at the same places under other names, are equal.
"""

import hashlib
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import ByteArray, IndexArray
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.protocol import Fingerprint
from flodl_pipe.storage.memory import MemoryBlobs
from flodl_pipe.storage.planar import PlanarBlobs
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_count

__all__ = ["JoinedBytes"]

_BLOCK = 4096
_MAX_BLOCKS = 1024
"""Blocks of a sampled fingerprint over all files: at most 4 MiB read."""
_MAX_BLOCKS_OF_FILE = 16
_CHUNK = 16 << 20


@final
@dataclass(frozen=True, eq=False)
class JoinedBytes:
    """The data runs of ``S`` blobs, one after the other.

    Attributes:
        blobs: The files.
        offsets: First data byte of each, int64, shape ``(S,)``.
        lengths: Data bytes of each, int64, shape ``(S,)``.
    """

    blobs: Blobs
    offsets: IndexArray
    lengths: IndexArray

    @property
    def num_bytes(self) -> int:
        """Length of the joined range."""
        return int(self.lengths.sum())

    @property
    def memory(self) -> ByteArray | None:
        """The joined range as one array, where the files are held in memory and in that order; else None."""
        return self.blobs.run(self.offsets, self.lengths) if isinstance(self.blobs, MemoryBlobs) else None

    @property
    def planes(self) -> tuple[ByteArray, ...] | None:
        """The joined range as planes of records, where the blobs are held so and are all of it; else None."""
        if not isinstance(self.blobs, PlanarBlobs) or self.num_bytes != self.blobs.num_bytes:
            return None
        return self.blobs.planes

    @property
    def starts(self) -> IndexArray:
        """First joined byte of each blob's data, int64, shape ``(S,)``."""
        return np.cumsum(self.lengths) - self.lengths

    def read(self, start: int, out: ByteArray) -> None:
        """Fill ``out`` (uint8, 1-D, contiguous) with the joined bytes from ``start`` on.

        Raises:
            SourceError: if the range is not inside the joined one, or a file changed or cannot be read.
        """
        if not 0 <= start <= self.num_bytes - len(out):
            raise SourceError(
                f"bytes {format_count(start)} .. {format_count(start + len(out))} lie outside the data of "
                f"{format_count(self.num_bytes)} bytes"
            )
        starts, done = self.starts, 0
        blob = int(np.searchsorted(starts, start, side="right")) - 1
        while done < len(out):
            inside = start + done - int(starts[blob])
            count = min(len(out) - done, int(self.lengths[blob]) - inside)
            if count > 0:
                self.blobs.read_range(blob, int(self.offsets[blob]) + inside, out[done : done + count])
                done += count
            blob += 1

    def fingerprint(self, summary: str, layout: str, *, full: bool) -> Fingerprint:
        """Return the identity of the content.

        The digest covers layout, data bytes of each file, and content: all of it when ``full``, otherwise the first,
        the last and some blocks of 4 KiB in between, at places that follow from sizes and layout alone. Paths play no
        part, the order of the files does.

        Args:
            summary: What is covered, in words.
            layout: Everything besides the bytes that decides what a sample holds.
            full: Read every byte.

        Raises:
            SourceError: if a file changed or cannot be read.
        """
        scope = "full" if full else "sampled"
        digest = hashlib.blake2b(f"{scope}|{layout}|{self.lengths.tolist()}".encode(), digest_size=16)
        key = digest.digest()
        if full:
            for file, length in enumerate(self.lengths.tolist()):
                self._absorb(digest, file, length)
        else:
            self._absorb_blocks(digest, key)
        return Fingerprint(summary, digest.hexdigest(), full)

    def _absorb(self, digest: "hashlib.blake2b", file: int, num_bytes: int) -> None:
        buffer = np.empty(min(num_bytes, _CHUNK), dtype=np.uint8)
        for done in range(0, num_bytes, _CHUNK):
            part = buffer[: num_bytes - done]
            self.blobs.read_range(file, int(self.offsets[file]) + done, part)
            digest.update(part.data)

    def _absorb_blocks(self, digest: "hashlib.blake2b", key: bytes) -> None:
        """Absorb the sampled runs in order; whole blocks of all files are read by one call, together."""
        runs = [
            (file, begin, min(_BLOCK, offset + num_bytes - begin))
            for file, length in enumerate(self.lengths.tolist())
            for offset, num_bytes in self._sampled(file, length, key)
            for begin in range(offset, offset + num_bytes, _BLOCK)
        ]
        whole = [(file, begin) for file, begin, num_bytes in runs if num_bytes == _BLOCK]
        files, begins = np.array(whole, dtype=np.int64).reshape(-1, 2).T
        blocks = np.empty((len(whole), _BLOCK), dtype=np.uint8)
        self.blobs.read_rows(files, self.offsets[files] + begins, _BLOCK, np.arange(len(whole)), blocks)
        row = 0
        for file, begin, num_bytes in runs:
            if num_bytes == _BLOCK:
                digest.update(blocks[row].data)
                row += 1
            else:
                rest = np.empty(num_bytes, dtype=np.uint8)
                self.blobs.read_range(file, int(self.offsets[file]) + begin, rest)
                digest.update(rest.data)

    def _sampled(self, file: int, length: int, key: bytes) -> list[tuple[int, int]]:
        """Return the runs of one file that a sampled digest reads, ascending.

        With more files than blocks, a keyed choice of about ``_MAX_BLOCKS`` files gives one block each.
        """
        num_files = len(self.lengths)
        count = min(_MAX_BLOCKS // num_files, _MAX_BLOCKS_OF_FILE)
        if not count and _keyed(key, file, 0, num_files) >= _MAX_BLOCKS:
            return []
        if length <= max(count, 1) * _BLOCK:
            return [(0, length)]
        places = {0, length - _BLOCK} if count > 1 else set()
        inner = max(count, 1) - len(places)
        places.update(_keyed(key, file, 1 + block, length - _BLOCK + 1) for block in range(inner))
        return [(place, _BLOCK) for place in sorted(places)]


def _keyed(key: bytes, file: int, block: int, below: int) -> int:
    word = hashlib.blake2b(f"{file}|{block}".encode(), key=key, digest_size=16).digest()
    return int.from_bytes(word, "little") % below
