"""Megatron's data sets: the tokens in ``NAME.bin``, what they are in ``NAME.idx``.

The ``.bin`` is token ids and nothing else, so it is served like any shard; the ``.idx`` says their type and is checked
wholly, because ids read in the wrong type, or from a ``.bin`` that is not the one indexed, look like data. Its layout,
little endian, as written by ``megatron/core/datasets/indexed_dataset.py`` of NVIDIA's Megatron-LM::

    byte 0    magic     "MMIDIDX" and two zero bytes
         9    version   u64, 1
        17    dtype     u8: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 float64, 7 float32, 8 uint16
        18    n         u64, sequences
        26    d         u64, entries of the document index
        34    sizes     i32[n], tokens of each sequence
              pointers  i64[n], byte of the .bin where each begins: the sizes before it, added up
              documents i64[d], sequence that each document begins at, and at last n

Descendants write 9 for uint32 and 10 for uint64. Left alone are indexes of other layouts: ``TNTIDX`` (before 2019),
fairseq's (same magic, no documents) and multimodal ones (a mode for each sequence at the end).
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.errors import SourceError
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.storage.remote_address import is_remote
from flodl_pipe.units import format_count

__all__ = ["MegatronIndex", "has_index", "read_index"]

_MAGIC, _OLD_MAGIC = b"MMIDIDX\x00\x00", b"TNTIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_NO_DOCUMENTS = 26
"""Where fairseq's sizes begin: it counts no documents."""
_SERVED = {1: "uint8", 4: "int32", 5: "int64", 8: "uint16", 9: "uint32"}
_REFUSED = {2: "int8", 3: "int16", 6: "float64", 7: "float32", 10: "uint64"}
_SAME_BYTES = {"int8": "uint8", "int16": "uint16", "uint64": "int64"}
_CHUNK = 1 << 18
_AGAIN = "copy the index again, or write the data set again"


@final
@dataclass(frozen=True)
class MegatronIndex:
    """What an index says of its ``.bin``.

    Attributes:
        dtype: NumPy name of a token's type.
        tokens: Tokens in the ``.bin``.
        sequences: Pieces they were written in.
    """

    dtype: str
    tokens: int
    sequences: int


def has_index(name: str) -> bool:
    """Return whether a file on this machine is a ``.bin`` with a Megatron index, of any age, beside it.

    Raises:
        SourceError: if there is a file by the index's name that cannot be read.
    """
    index = _index_name(name)
    if index is None or is_remote(name) or not os.path.isfile(index):  # noqa: PTH113 - Path.is_file raises where this answers
        return False
    blobs = open_blobs([index])
    return _head(blobs).startswith((_MAGIC, _OLD_MAGIC))


def read_index(name: str, size: int) -> MegatronIndex:
    """Read and check the index of a ``.bin``.

    Args:
        name: Path or address of the ``.bin``.
        size: Its bytes.

    Raises:
        SourceError: if there is no index, it is cut, damaged, of another kind, or does not fit the ``.bin``.
    """
    index = _index_name(name)
    if index is None:
        raise SourceError(f"{name}: a Megatron data set is NAME.bin with NAME.idx beside it; give the .bin or its NAME")
    try:
        blobs = open_blobs([index])
    except SourceError as error:
        raise SourceError(
            f"{name}: its index cannot be opened ({error}); a Megatron .bin needs its .idx beside it. Copy it there, "
            "or, if you know the type of a token, read the .bin alone with format=raw and dtype"
        ) from error
    dtype, sequences, documents = _require_header(blobs)
    num_tokens = _require_sequences(blobs, sequences, np.dtype(dtype).itemsize)
    _require_documents(blobs, sequences, documents)
    expected = num_tokens * np.dtype(dtype).itemsize
    if size != expected:
        raise SourceError(
            f"{name}: {format_count(size)} bytes, but its index {index} counts {format_count(num_tokens)} {dtype} "
            f"tokens, {format_count(expected)} bytes; {'the .bin is truncated' if size < expected else 'they differ'}: "
            "copy both files of one data set again"
        )
    blobs.close()
    return MegatronIndex(dtype, num_tokens, sequences)


def _index_name(name: str) -> str | None:
    return f"{name.removesuffix('.bin')}.idx" if name.endswith(".bin") else None


def _head(blobs: Blobs) -> bytes:
    head = np.empty(min(int(blobs.sizes[0]), _HEADER.size), dtype=np.uint8)
    blobs.read_range(0, 0, head)
    return head.tobytes()


def _require_header(blobs: Blobs) -> tuple[str, int, int]:
    """Return dtype, sequences and document entries, after what can be checked without reading further."""
    name, size, head = blobs.names[0], int(blobs.sizes[0]), _head(blobs)
    if head.startswith(_OLD_MAGIC):
        raise SourceError(
            f"{name}: a TNTIDX index, Megatron's format of before MMIDIDX, which is not read; write the data set again "
            "with a Megatron that writes MMIDIDX, or read its .bin alone with format=raw and dtype"
        )
    if head[: len(_MAGIC)] != _MAGIC[: len(head)] or not head:
        raise SourceError(f"{name}: no Megatron index: it begins {head[:9]!r}, expected {_MAGIC!r}; {_AGAIN}")
    if len(head) < _HEADER.size:
        raise SourceError(
            f"{name}: truncated in its header: expected {_HEADER.size} bytes, found {len(head)}; {_AGAIN}"
        )
    _, version, code, sequences, documents = _HEADER.unpack(head)
    if version != 1:
        raise SourceError(f"{name}, byte 9: version {version}; only version 1 is known; {_AGAIN}")
    dtype = _require_dtype(name, code)
    if size == _NO_DOCUMENTS + 12 * sequences:
        raise SourceError(
            f"{name}: an index without documents, as fairseq writes it; read its .bin alone with format=raw "
            f"dtype={dtype}"
        )
    expected = _HEADER.size + 12 * sequences + 8 * documents
    if size == expected + sequences and sequences:
        raise SourceError(
            f"{name}: the index of a multimodal data set: {format_count(sequences)} bytes of modes after the documents;"
            " only text is read: write the text apart"
        )
    if size != expected:
        raise SourceError(
            f"{name}: {'truncated' if size < expected else 'too long'}: its header counts {sequences:,} "
            f"sequences and {documents:,} document entries, expected {expected:,} bytes, found {size:,}; {_AGAIN}"
        )
    if not sequences:
        raise SourceError(f"{name}: empty: it counts 0 sequences; remove the data set or write it again")
    return dtype, sequences, documents


def _require_dtype(name: str, code: int) -> str:
    if code in _SERVED:
        return _SERVED[code]
    dtype = _REFUSED.get(code)
    if dtype is None:
        known = ", ".join(f"{number} {known}" for number, known in _SERVED.items())
        raise SourceError(f"{name}, byte 17: dtype code {code} is unknown; read are {known}; {_AGAIN}")
    if dtype not in _SAME_BYTES:
        raise SourceError(f"{name}, byte 17: its .bin holds {dtype}, and token ids are integers; it is other data")
    raise SourceError(
        f"{name}, byte 17: its .bin holds {dtype}, which is not read; if no id is "
        f"{'2**63 or more' if dtype == 'uint64' else 'negative'}, the same bytes are {_SAME_BYTES[dtype]}: read the "
        f".bin alone with format=raw dtype={_SAME_BYTES[dtype]}"
    )


def _require_sequences(blobs: Blobs, sequences: int, item_bytes: int) -> int:
    """Return the tokens of all sequences, which must lie end to end."""
    name, total = blobs.names[0], 0
    at_pointers = _HEADER.size + 4 * sequences
    pairs = zip(
        _chunks(blobs, _HEADER.size, sequences, "<i4"), _chunks(blobs, at_pointers, sequences, "<i8"), strict=True
    )
    for (first, sizes), (_, pointers) in pairs:
        if sizes.min() < 0:
            bad = int(np.argmax(sizes < 0))
            raise SourceError(
                f"{name}, byte {format_count(_HEADER.size + 4 * (first + bad))}: sequence {first + bad} has "
                f"{int(sizes[bad])} tokens, a negative number; {_AGAIN}"
            )
        # A chunk adds less than 2**53 to what is below 2**62.
        ends = total + np.cumsum(sizes, dtype=np.int64)
        begins = (ends - sizes) * item_bytes if total < 2**58 else np.full(len(sizes), -1)
        if not np.array_equal(begins, pointers):
            bad = int(np.argmax(begins != pointers))
            raise SourceError(
                f"{name}, byte {format_count(at_pointers + 8 * (first + bad))}: sequence {first + bad} begins at byte "
                f"{int(pointers[bad])} of the .bin, but the tokens before it end at {int(begins[bad])}; sequences must "
                f"lie end to end: {_AGAIN}"
            )
        total = int(ends[-1])
    return total


def _require_documents(blobs: Blobs, sequences: int, documents: int) -> None:
    name, before = blobs.names[0], 0
    at = _HEADER.size + 12 * sequences
    for first, begins in _chunks(blobs, at, documents, "<i8"):
        steps = np.diff(begins, prepend=before if first else 0)
        wrong = (begins < 0) | (begins > sequences) | (steps < 0)
        wrong[0] |= not first and begins[0] != 0
        if wrong.any():
            bad = int(np.argmax(wrong))
            raise SourceError(
                f"{name}, byte {format_count(at + 8 * (first + bad))}: document {first + bad} begins at sequence "
                f"{int(begins[bad])}; documents begin at 0, ascend, and end at {format_count(sequences)}: {_AGAIN}"
            )
        before = int(begins[-1])
    if before != sequences:
        raise SourceError(
            f"{name}: its documents end at sequence {format_count(before)}, but it has {format_count(sequences)} "
            f"sequences: {_AGAIN}"
        )


def _chunks(blobs: Blobs, offset: int, count: int, dtype: str) -> Iterator[tuple[int, Array]]:
    """Yield (number of the first entry, entries) of an array in the index."""
    width = np.dtype(dtype).itemsize
    for first in range(0, count, _CHUNK):
        raw = np.empty(min(_CHUNK, count - first) * width, dtype=np.uint8)
        blobs.read_range(0, offset + first * width, raw)
        yield first, raw.view(dtype)
