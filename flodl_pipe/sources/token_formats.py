"""Token files of any format -> one table of where the ids lie.

============  ======================================================================================================
``npy``       NumPy's ``.npy``, versions 1 to 3, 1-D, ``|u1 <u2 <u4 <i4 <i8``
``raw``       little-endian ids and nothing else; the dtype must be stated (OLMo's shards and nanoGPT's ``.bin``)
``llmc``      llm.c's ``.bin``: int32[256] header (magic 20240520, version 1, count), then uint16 ids
``megatron``  Megatron's ``.bin``, ids and nothing else, with the ``.idx`` beside it that says what they are
``auto``      told per file by its magic, or that of the ``.idx`` beside it; a file without one is raw, which needs the
              dtype: it is never guessed
============  ======================================================================================================

Only headers and indexes are read here. Sizes must agree with them to the byte; bytes *after* an array are reported and
left out.
"""

import logging
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.errors import OF_HOST, ConfigError, SourceError
from flodl_pipe.sources.containers import refuse_container
from flodl_pipe.sources.megatron import has_index, read_index
from flodl_pipe.sources.npy_header import HEAD_BYTES, NPY_MAGIC, parse_npy_header
from flodl_pipe.sources.token_files import SUFFIXES
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_count

__all__ = ["FORMATS", "TOKEN_DTYPES", "ShardTable", "read_shard_table", "token_count"]

_logger = logging.getLogger("flodl_pipe")

TOKEN_DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
"""Types a stored token may have, little endian."""

FORMATS = tuple(SUFFIXES)

_LLMC_MAGIC = (20240520).to_bytes(4, "little")
_LLMC_HEADER = 1024


@final
@dataclass(frozen=True, eq=False)
class ShardTable:
    """Where the tokens of ``S`` shards lie.

    Attributes:
        dtype: NumPy name of the stored type, the same in all shards.
        offsets: First byte of the tokens in each file, int64, shape ``(S,)``.
        tokens: Tokens of each shard, at least 1, int64, shape ``(S,)``.
        formats: The formats that occur, sorted.
        sequences: Pieces that the tokens were written in, as far as an index tells them.
    """

    dtype: str
    offsets: IndexArray
    tokens: IndexArray
    formats: tuple[str, ...]
    sequences: int = 0


@final
@dataclass(frozen=True)
class _Shard:
    file_format: str
    dtype: str
    offset: int
    tokens: int
    sequences: int = 0


def read_shard_table(blobs: Blobs, *, file_format: str = "auto", dtype: str | None = None) -> ShardTable:
    """Read the header of every file.

    Args:
        blobs: The shards, in order.
        file_format: One of ``FORMATS``.
        dtype: Type of a stored token: needed for raw files, compared with what a header says.

    Raises:
        ConfigError: if format or dtype is unknown.
        SourceError: if a file is empty, packed, cut, of another format, or of another dtype than the rest.
    """
    if file_format not in FORMATS:
        raise ConfigError.at("source.format", f"must be one of {', '.join(FORMATS)}, got {file_format!r}")
    if dtype is not None and dtype not in TOKEN_DTYPES:
        raise ConfigError.at("source.dtype", f"must be one of {', '.join(TOKEN_DTYPES)}, got {dtype!r}")
    if file_format == "raw" and dtype is None:
        raise ConfigError.at("source.dtype", "must be set when format is 'raw', got null; for example uint16")
    shards: list[_Shard] = []
    for blob, (name, size) in enumerate(zip(blobs.names, blobs.sizes.tolist(), strict=True)):
        if not size:
            raise SourceError(f"{name}: empty: 0 bytes, no tokens; remove the file or copy it again")
        head = np.empty(min(size, HEAD_BYTES), dtype=np.uint8)
        blobs.read_range(blob, 0, head)
        refuse_container(name, head.tobytes())
        shard = _read(name, head.tobytes(), size, file_format, dtype)
        if not shard.tokens:
            raise SourceError(f"{name}: empty: 0 tokens; remove the file or write it again")
        if shard.dtype != (dtype or shard.dtype):
            raise SourceError(
                f"{name}: holds {shard.dtype}, but source.dtype says {dtype}; correct or remove source.dtype"
            )
        if shards and shard.dtype != shards[0].dtype:
            raise SourceError(
                f"{name}: holds {shard.dtype}, but {blobs.names[0]} holds {shards[0].dtype}; the shards of one source "
                "must agree: convert one, or make two sources"
            )
        shards.append(shard)
    return ShardTable(
        dtype=shards[0].dtype,
        offsets=np.array([shard.offset for shard in shards], dtype=np.int64),
        tokens=np.array([shard.tokens for shard in shards], dtype=np.int64),
        formats=tuple(sorted({shard.file_format for shard in shards})),
        sequences=sum(shard.sequences for shard in shards),
    )


def token_count(count: int) -> str:
    """Return a number of tokens in words.

    >>> token_count(1), token_count(1200)
    ('1 token', '1,200 tokens')
    """
    return f"{format_count(count)} token{'' if count == 1 else 's'}"


def _read(name: str, head: bytes, size: int, file_format: str, dtype: str | None) -> _Shard:
    if file_format == "npy" or (file_format == "auto" and head.startswith(NPY_MAGIC)):
        found, offset, tokens = parse_npy_header(name, head)
        return _sized(name, size, _Shard("npy", found, offset, tokens))
    if file_format == "llmc" or (file_format == "auto" and head.startswith(_LLMC_MAGIC)):
        return _sized(name, size, _read_llmc(name, head))
    if file_format == "megatron" or (file_format == "auto" and has_index(name)):
        index = read_index(name, size)
        return _Shard("megatron", index.dtype, 0, index.tokens, index.sequences)
    return _read_raw(name, head, size, file_format, dtype)


def _read_llmc(name: str, head: bytes) -> _Shard:
    if head[:4] != _LLMC_MAGIC:
        raise SourceError(
            f"{name}: no llm.c token file: its magic is {int.from_bytes(head[:4], 'little')}, expected 20240520; a "
            "nanoGPT .bin has no header: read it with source.format=raw source.dtype=uint16"
        )
    if len(head) < _LLMC_HEADER:
        raise SourceError(
            f"{name}: truncated in the llm.c header: expected 1,024 bytes, found {len(head)}; copy it again"
        )
    version, count = np.frombuffer(head, dtype="<i4", count=3)[1:].tolist()
    if version != 1:
        raise SourceError(
            f"{name}: llm.c header version {version}; only version 1 (uint16 tokens) is read: write the tokens again "
            "in version 1, or as .npy, which also holds wider ids"
        )
    if count < 0:
        raise SourceError(f"{name}: the llm.c header's token count is negative: {count}; write the shard again")
    return _Shard("llmc", "uint16", _LLMC_HEADER, count)


def _read_raw(name: str, head: bytes, size: int, file_format: str, dtype: str | None) -> _Shard:
    if dtype is None:
        raise SourceError(
            f"{name}: has neither a .npy nor an llm.c header (it begins {head[:6]!r}) nor a Megatron .idx beside it, "
            "so it is headerless raw data, which does not say how wide a token is; set source.dtype, for example uint16"
        )
    if file_format == "raw" and head.startswith(NPY_MAGIC):
        raise SourceError(
            f"{name}: a true .npy file with a NUMPY header, not a raw dump; read it with "
            "source.format=npy and source.dtype unset"
        )
    if file_format == "raw" and head.startswith(_LLMC_MAGIC + b"\x01\0\0\0"):
        raise SourceError(f"{name}: an llm.c file with a header, not a raw dump; read it with source.format=llmc")
    width = np.dtype(dtype).itemsize
    if size % width:
        raise SourceError(
            f"{name}: {format_count(size)} bytes are no multiple of the {width} bytes of a {dtype} token "
            f"({size % width} left over); the file is cut, or the dtype is another"
        )
    return _Shard("raw", dtype, 0, size // width)


def _sized(name: str, size: int, shard: _Shard) -> _Shard:
    expected = shard.offset + shard.tokens * np.dtype(shard.dtype).itemsize
    if size < expected:
        raise SourceError(
            f"{name}: truncated: its header counts {token_count(shard.tokens)}, expected "
            f"{format_count(expected)} bytes, found {format_count(size)}; copy the file again"
        )
    if size > expected:
        _logger.warning(
            "%s: %s surplus byte%s after the %s its header counts: left out",
            *(name, format_count(size - expected), "" if size == expected + 1 else "s", token_count(shard.tokens)),
            extra=OF_HOST,
        )
    return shard
