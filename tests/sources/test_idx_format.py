"""IDX files: what is told from a header, and everything that can be wrong with one."""

import gzip
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.idx_format import IDX_DTYPES, IdxFile
from flodl_pipe.storage.local import LocalBlobs


def idx(array: np.ndarray) -> bytes:
    """Write an array the plainest way."""
    code = {dtype: code for code, dtype in IDX_DTYPES.items()}[array.dtype.name]
    head = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def opened(content: bytes, folder: Path, name: str = "file") -> IdxFile:
    (folder / name).write_bytes(content)
    return IdxFile(LocalBlobs([str(folder / name)]), 0)


def read(file: IdxFile) -> np.ndarray:
    out = np.full((file.dims[0], file.row_bytes + 3), 0xA5, dtype=np.uint8)
    file.read_into(out[:, 1:-2])
    assert (out[:, [0, -2, -1]] == 0xA5).all()
    stored = np.ascontiguousarray(out[:, 1:-2]).view(np.dtype(file.dtype).newbyteorder("<"))
    return stored.reshape(file.dims)


IMAGES = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)


@pytest.mark.parametrize("dtype", IDX_DTYPES.values())
def test_every_type_is_read_in_our_byte_order(tmp_path: Path, dtype: str) -> None:
    array = np.random.default_rng(1).integers(0, 256, (7, 5, 8 * 3), dtype=np.uint8).view(dtype)
    content = idx(array)
    for packed in (content, gzip.compress(content), zlib_level(content, 0)):
        file = opened(packed, tmp_path)
        assert (file.dtype, file.dims) == (dtype, array.shape)
        found = read(file)
        assert found.tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


def zlib_level(content: bytes, level: int) -> bytes:
    packer = zlib.compressobj(level, wbits=31)
    return packer.compress(content) + packer.flush()


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 2, 2, 2), (1,) * 20, (400_000, 3)])
def test_any_number_of_dimensions_is_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    np.testing.assert_array_equal(read(opened(gzip.compress(idx(array), 1), tmp_path)), array)


def test_compression_is_told_by_the_bytes_not_by_the_name(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read(opened(gzip.compress(idx(IMAGES)), tmp_path, "plain-idx3-ubyte")), IMAGES)
    np.testing.assert_array_equal(read(opened(idx(IMAGES), tmp_path, "packed.gz")), IMAGES)


def test_members_one_after_the_other_and_padding_are_one_file(tmp_path: Path) -> None:
    content = idx(IMAGES)
    packed = gzip.compress(content[:100]) + bytes(9) + gzip.compress(b"") + gzip.compress(content[100:]) + bytes(3000)
    np.testing.assert_array_equal(read(opened(packed, tmp_path)), IMAGES)


def refused(content: bytes, folder: Path) -> str:
    with pytest.raises(SourceError) as caught:
        read(opened(content, folder))
    text = str(caught.value)
    assert text.startswith(f"{folder}/file: ")
    return text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty: its 0 bytes do not hold the header"),
        (idx(IMAGES)[:3], "truncated: its 3 bytes do not hold the header"),
        (idx(IMAGES)[:15], "truncated: its 15 bytes do not hold the header"),
        (b"<!DOCTYPE html><html>", "its magic is 0x3c21444f, and an IDX file begins with two zero bytes"),
        (b"\0\0\x0a\3" + idx(IMAGES)[4:], "its magic is 0x00000a03"),
        (b"\0\0\x08\0" + idx(IMAGES)[4:], "its magic is 0x00000800"),
        (b"PK\3\4" + bytes(40), "a zip archive, not the data"),
        (b"\xfd7zXZ\0" + bytes(40), "xz-compressed; unpack it"),
        (struct.pack(">HBB3I", 0, 8, 3, 0, 28, 28), "empty: its header says 0 x 28 x 28"),
        (struct.pack(">HBB3I", 0, 8, 3, 5, 0, 28), "a dimension of its header is 0: 5 x 0 x 28"),
        (bytes(257) + b"ustar" + bytes(300), "it is a tar archive; unpack it"),
        (idx(IMAGES)[:-1], "uint8 20 x 28 x 28 is expected to take 15,680 bytes, and only 15,679 are there"),
        (idx(IMAGES) + b"x", "goes on after the 15,680 bytes that its header says"),
        (struct.pack(">HBB3I", 0, 8, 3, *(2**32 - 1,) * 3) + bytes(50), "and only 50 are there"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_plain_file_that_is_wrong_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    assert says in refused(content, tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gzip.compress(b""), "truncated: its 20 bytes do not hold the header"),
        (gzip.compress(idx(IMAGES))[:-1], "the gzip data ends before its end-of-stream mark"),
        (gzip.compress(idx(IMAGES))[:-9], "the gzip data ends before its end-of-stream mark"),
        (gzip.compress(idx(IMAGES))[:5000], "the gzip data ends before its end-of-stream mark"),
        (b"\x1f\x8b", "the gzip data ends before its end-of-stream mark"),
        (b"\x1f\x8b" + bytes(200), "damaged gzip data"),
        (gzip.compress(idx(IMAGES))[:-8] + bytes(8), "damaged gzip data (Error -3 while decompressing data: incorrect"),
        (gzip.compress(idx(IMAGES)[:-1]), "and only 15,679 are there"),
        (gzip.compress(idx(IMAGES) + b"x"), "goes on after the 15,680 bytes"),
        (gzip.compress(idx(IMAGES)) + b"more", "surplus bytes follow its gzip data"),
        (gzip.compress(gzip.compress(idx(IMAGES))), "gzip-compressed twice"),
        (gzip.compress(struct.pack(">HBB3I", 0, 8, 3, *(2**32 - 1,) * 3)), "cannot hold them"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_packed_file_that_is_wrong_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    assert says in refused(content, tmp_path)


@pytest.mark.parametrize("header", [(20, 28, 28), (2**31, 2**31, 4)])
def test_a_bomb_is_never_unpacked(tmp_path: Path, header: tuple[int, ...]) -> None:
    bomb = gzip.compress(struct.pack(">HBB3I", 0, 8, 3, *header) + bytes(30_000_000), 1)
    tracemalloc.start()
    try:
        text = refused(bomb, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert "goes on after" in text or "cannot hold them" in text


def test_the_magic_is_a_number(tmp_path: Path) -> None:
    assert opened(idx(IMAGES), tmp_path).magic == 2051
    assert opened(idx(IMAGES[:, 0, 0]), tmp_path).magic == 2049
