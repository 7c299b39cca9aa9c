"""Packed files are told by their first bytes, in every format, and headerless data is not taken for them."""

import bz2
import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.containers import CONTAINER_HEAD_BYTES, refuse_container
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.tokens import TokenShards

IDS = np.random.default_rng(0).integers(0, 60_000, 2_000).astype("<u2")


def packed(kind: str, path: Path) -> None:
    """Write ids, packed by a real writer where Python has one."""
    raw = IDS.tobytes()
    if kind == "zip":
        with path.open("wb") as file:
            np.savez(file, ids=IDS)
    elif kind == "named gzip":
        with path.open("wb") as file, gzip.GzipFile("part.bin", "wb", fileobj=file) as stream:
            stream.write(raw)
    else:
        path.write_bytes(
            {
                "gzip": lambda: gzip.compress(raw, mtime=0),
                "zstd": lambda: b"\x28\xb5\x2f\xfd" + raw,
                "xz": lambda: lzma.compress(raw),
                "bzip2": lambda: bz2.compress(raw),
                "empty bzip2": lambda: bz2.compress(b""),
                "LFS": lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 10\n",
            }[kind]()
        )


KINDS = {
    "gzip": "gzip-compressed; unpack it and give the unpacked file",
    "named gzip": "gzip-compressed; unpack it",
    "zip": r"a zip archive, not the data; unpack it.*np\.save",
    "zstd": "zstd-compressed; unpack it",
    "xz": "xz-compressed; unpack it",
    "bzip2": "bzip2-compressed; unpack it",
    "empty bzip2": "bzip2-compressed; unpack it",
    "LFS": "a Git LFS pointer, not the data; run `git lfs pull`",
}


FORMATS = [("raw", "uint16"), ("auto", "uint16"), ("auto", None), ("npy", None), ("llmc", None)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_shard_is_named_for_what_it_is(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "part.bin"
    packed(kind, path)
    for _ in ("one size", "an odd one, or an even one"):  # no whole number of tokens is no other error
        for file_format, dtype in FORMATS:
            with pytest.raises(SourceError, match=rf"part\.bin: it is {KINDS[kind]}"):
                TokenShards.open(str(path), seq_len=8, file_format=file_format, dtype=dtype)
        path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("kind", KINDS)
def test_packed_records_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "part.bin"
    packed(kind, path)
    for header_bytes in (0, 8):
        with pytest.raises(SourceError, match=rf"part\.bin: it is {KINDS[kind]}"):
            Records.open(str(path), record_bytes=1, header_bytes=header_bytes, parts={"x": RecordPart(0, "uint8")})


@pytest.mark.parametrize(
    "head",
    [
        b"\x1f\x8b",  # uint16 id 35615, and no more
        b"\x1f\x8b\x08",
        b"\x1f\x8b\x07\x00",
        b"\x1f\x8b\x08\x20",  # a reserved flag
        b"PK",
        b"PK\x01\x02",
        b"\x28\xb5\x2f\xfc",
        b"\xfd7zXZ\x01",
        b"BZh9",
        b"BZh9 is how a text of bytes begins",
        b"version https://other",
        b"",
    ],
)
def test_data_that_only_begins_alike_is_data(head: bytes) -> None:
    refuse_container("a.bin", head)
    refuse_container("a.bin", head[:2] + bytes(CONTAINER_HEAD_BYTES))


def test_a_shard_that_begins_with_the_two_bytes_of_gzip_is_read(tmp_path: Path) -> None:
    ids = IDS.copy()
    ids[0] = 0x8B1F
    ids.tofile(tmp_path / "part.bin")
    assert TokenShards.open(str(tmp_path / "part.bin"), seq_len=8, dtype="uint16").total_tokens == len(ids)
