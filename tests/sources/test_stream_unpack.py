"""Packed content in portions, from any byte on; and every way in which it can end early."""

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from flodl_pipe.errors import ResumeError, SourceError
from flodl_pipe.sources import stream_unpack
from flodl_pipe.sources.stream_unpack import content_bytes, read_content
from flodl_pipe.storage.memory import MemoryBlobs
from flodl_pipe.storage.open import open_blobs

CONTENT = b"".join(b"line %d of some text\n" % number for number in range(60))


def blob(data: bytes) -> MemoryBlobs:
    return MemoryBlobs([np.frombuffer(data, dtype=np.uint8)], ["file"])


def unpacked(blobs: Any, packing: Any, offset: int = 0) -> bytes:
    parts = list(read_content(blobs, 0, packing, offset))
    place = offset
    for at, part in parts:
        assert at == place
        assert part
        place += len(part)
    return b"".join(part for _, part in parts)


def zstd(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


@pytest.fixture(params=[1 << 20, 97])
def small_portions(request: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(stream_unpack, "READ_BYTES", request.param)
    monkeypatch.setattr(stream_unpack, "CHUNK_BYTES", request.param // 2)


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("packing", ["", "gz", "zst"])
def test_content_comes_from_any_byte_on(tmp_path: Path, packing: str) -> None:
    pack: Any = {"": bytes, "gz": gzip.compress, "zst": zstd}[packing]
    (tmp_path / "file").write_bytes(pack(CONTENT))
    blobs = open_blobs([str(tmp_path / "file")])
    for offset in (0, 1, 48, 49, 500, len(CONTENT) - 1, len(CONTENT)):
        assert unpacked(blobs, packing, offset) == CONTENT[offset:]
    with pytest.raises(ResumeError, match=r"holds [\d,]+ bytes, the saved place is byte"):
        unpacked(blobs, packing, len(CONTENT) + 1)


@pytest.mark.parametrize(
    ("packing", "data"),
    [
        ("gz", gzip.compress(CONTENT)),
        ("gz", gzip.compress(CONTENT[:400]) + gzip.compress(CONTENT[400:])),
        ("zst", zstd(CONTENT)),
        ("zst", zstd(CONTENT, write_checksum=True, write_content_size=False)),
        ("zst", zstd(CONTENT[:400], level=19) + zstd(CONTENT[400:], write_checksum=True)),
    ],
)
def test_an_end_at_any_byte_but_between_members_is_seen(packing: Any, data: bytes) -> None:
    assert unpacked(blob(data), packing) == CONTENT
    found = {end: unpacked_or_error(data[:end], packing) for end in range(1, len(data))}
    errors = {end: str(error) for end, error in found.items() if isinstance(error, SourceError)}
    between = [content for end, content in found.items() if end not in errors]
    assert between in ([], [CONTENT[:400]])
    assert [end for end, text in errors.items() if not re.search(rf"byte {end}: .*truncated", text)] == []


def unpacked_or_error(data: bytes, packing: Any) -> object:
    try:
        return unpacked(blob(data), packing)
    except SourceError as error:
        return error


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_a_changed_byte_never_gives_other_content_in_silence(packing: Any) -> None:
    data = gzip.compress(CONTENT) if packing == "gz" else zstd(CONTENT, write_checksum=True)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x10
        found = unpacked_or_error(bytes(changed), packing)
        # Some bits of a header say nothing about the content.
        assert isinstance(found, SourceError) or found == CONTENT, place


def test_sizes_are_told_where_the_format_tells_them() -> None:
    cases: list[tuple[Any, bytes, Any]] = [
        ("", CONTENT, len(CONTENT)),
        ("gz", gzip.compress(CONTENT), len(CONTENT)),
        ("zst", zstd(CONTENT), len(CONTENT)),
        ("zst", zstd(CONTENT * 100), len(CONTENT) * 100),
        ("zst", zstd(CONTENT, write_content_size=False), None),
        ("gz", gzip.compress(CONTENT) + gzip.compress(b""), None),
    ]
    for packing, data, size in cases:
        assert content_bytes(blob(data), 0, packing) == size


def test_a_dictionary_or_a_reserved_block_is_an_error() -> None:
    trained = zstandard.train_dictionary(1000, [b"line %d of some text and more" % n * 3 for n in range(900)])
    with pytest.raises(SourceError, match="damaged zstd data"):
        unpacked(blob(zstandard.ZstdCompressor(dict_data=trained).compress(CONTENT)), "zst")
    with pytest.raises(SourceError, match="a block of unknown type"):
        unpacked(blob(bytes.fromhex("28b52ffd2000") + b"\x07\x00\x00"), "zst")
