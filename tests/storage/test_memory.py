"""Bytes in memory as blobs: read like files, watched where they come from."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.storage.local import LocalBlobs
from flodl_pipe.storage.memory import MemoryBlobs

SIZES = (40, 7, 0, 53)
JOINED = np.random.default_rng(0).integers(0, 256, sum(SIZES), dtype=np.uint8)
PARTS = np.split(JOINED, np.cumsum(SIZES)[:-1])
NAMES = ["a", "b", "c", "d"]


def made(way: str) -> MemoryBlobs:
    if way == "cut from one array":
        return MemoryBlobs.cut_from(JOINED, SIZES, NAMES)
    return MemoryBlobs([part.copy() for part in PARTS], NAMES)


@pytest.fixture(params=["cut from one array", "apart"])
def blobs(request: pytest.FixtureRequest) -> MemoryBlobs:
    return made(request.param)


def read(blobs: MemoryBlobs, where: list[tuple[int, int]], row_bytes: int) -> np.ndarray:
    out = np.full((len(where) + 2, row_bytes), 0xA5, dtype=np.uint8)
    files, offsets = (np.array(column, dtype=np.int64) for column in zip(*where, strict=True))
    rows = np.arange(len(where))[::-1] + 1
    blobs.read_rows(files, offsets, row_bytes, rows, out)
    assert (out[[0, -1]] == 0xA5).all()
    return out[rows]


def test_names_sizes_and_ranges_are_those_of_the_parts(blobs: MemoryBlobs) -> None:
    assert list(blobs.names) == NAMES
    assert blobs.sizes.tolist() == list(SIZES)
    assert blobs.num_bytes == len(JOINED)
    for blob, part in enumerate(PARTS):
        out = np.empty(max(len(part) - 3, 0), dtype=np.uint8)
        blobs.read_range(blob, min(2, len(part)), out)
        np.testing.assert_array_equal(out, part[2:][: len(out)])


def test_rows_of_any_blobs_go_where_they_belong(blobs: MemoryBlobs) -> None:
    where = [(3, 48), (0, 0), (1, 2), (0, 35), (3, 0), (0, 1), (0, 1)]
    found = read(blobs, where, 5)
    for row, (blob, offset) in enumerate(where):
        np.testing.assert_array_equal(found[row], PARTS[blob][offset : offset + 5])


def test_no_rows_and_rows_of_no_bytes_are_nothing(blobs: MemoryBlobs) -> None:
    none = np.empty(0, dtype=np.int64)
    blobs.read_rows(none, none, 5, none, np.empty((0, 5), dtype=np.uint8))
    assert read(blobs, [(0, 40), (2, 0)], 0).shape == (2, 0)


@pytest.mark.parametrize("where", [(0, 36), (0, -1), (1, 3), (2, 0)])
def test_a_row_over_the_end_of_its_blob_is_an_error_not_the_next_one(blobs: MemoryBlobs, where: tuple) -> None:
    with pytest.raises(SourceError, match=f"^{NAMES[where[0]]}: bytes {where[1]} .. {where[1] + 5} lie outside its"):
        read(blobs, [(0, 0), where], 5)
    with pytest.raises(SourceError, match="lie outside"):
        blobs.read_range(*where, np.empty(5, dtype=np.uint8))


@pytest.mark.parametrize("blob", [-1, 4])
def test_a_blob_that_is_not_there_is_an_error(blobs: MemoryBlobs, blob: int) -> None:
    with pytest.raises(SourceError, match="there are 4"):
        read(blobs, [(blob, 0)], 1)
    with pytest.raises(SourceError, match="there are 4"):
        blobs.read_range(blob, 0, np.empty(1, dtype=np.uint8))


def test_parts_of_one_array_are_one_run_without_a_copy() -> None:
    zero, sizes = np.zeros(4, dtype=np.int64), np.array(SIZES)
    run = made("cut from one array").run(zero, sizes)
    assert run is not None
    assert np.shares_memory(run, JOINED)
    np.testing.assert_array_equal(run, JOINED)
    assert made("apart").run(zero, sizes) is None
    assert (
        made("cut from one array").run(np.array([3, 0, 0, 0]), sizes - [3, 0, 0, 3]).tolist() == JOINED[3:-3].tolist()
    )
    assert made("cut from one array").run(np.array([0, 1, 0, 0]), sizes - [0, 1, 0, 0]) is None, "a gap between two"
    single = MemoryBlobs([JOINED], ["a"])
    assert single.run(np.array([10]), np.array([20])).tolist() == JOINED[10:30].tolist()


def test_parts_must_be_all_of_the_array() -> None:
    with pytest.raises(ValueError, match="93 bytes are not all"):
        MemoryBlobs.cut_from(JOINED, (40, 53), ["a", "b"])
    with pytest.raises(ValueError, match="contiguous"):
        MemoryBlobs.cut_from(JOINED[::2], (50,), ["a"])


def test_a_change_of_the_files_they_come_from_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(JOINED.tobytes())
    blobs = MemoryBlobs([JOINED], ["a"], origin=LocalBlobs([str(file)]))
    blobs.check_unchanged()
    file.write_bytes(b"other")
    with pytest.raises(ChangedError, match=r"a\.bin"):
        blobs.check_unchanged()
    assert read(blobs, [(0, 0)], 4).tolist() == [JOINED[:4].tolist()], "the copy in memory is whole"


def test_without_an_origin_nothing_can_change_and_a_copy_reads_the_same(blobs: MemoryBlobs) -> None:
    blobs.check_unchanged()
    blobs.close()
    text = pickle.dumps(blobs)
    assert len(text) < len(JOINED) + 1000, "the bytes travel once"
    copy = pickle.loads(text)
    assert (copy.run(np.zeros(4, np.int64), np.array(SIZES)) is None) == (
        blobs.run(np.zeros(4, np.int64), np.array(SIZES)) is None
    )
    np.testing.assert_array_equal(read(copy, [(3, 1)], 9), read(blobs, [(3, 1)], 9))
    assert len(blobs.buffer(12)) == 12
