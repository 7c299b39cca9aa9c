"""Records held field by field: read like files of records, whatever is asked for."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.storage.local import LocalBlobs
from flodl_pipe.storage.planar import PlanarBlobs, cut_planes

COUNTS, WIDTHS, NAMES = (5, 1, 0, 7), (3, 1, 7), ["a", "b", "c", "d"]
SIZE, NUM = sum(WIDTHS), sum(COUNTS)
RECORDS = np.random.default_rng(2).integers(0, 256, (NUM, SIZE), dtype=np.uint8)
JOINED = RECORDS.reshape(-1)


def made(**options) -> PlanarBlobs:
    planes = cut_planes(np.empty(NUM * SIZE, dtype=np.uint8), NUM, WIDTHS)
    begin = 0
    for plane in planes:
        plane[...] = RECORDS[:, begin : begin + plane.shape[1]]
        begin += plane.shape[1]
    return PlanarBlobs(planes, COUNTS, NAMES, **options)


BLOBS = made()


def read(blobs: PlanarBlobs, where: list[tuple[int, int]], row_bytes: int) -> np.ndarray:
    files, offsets = np.array(where, dtype=np.int64).reshape(-1, 2).T
    out = np.zeros((len(where) + 1, row_bytes), dtype=np.uint8)
    blobs.read_rows(np.ascontiguousarray(files), offsets, row_bytes, np.arange(len(where))[::-1] + 1, out)
    return out[1:][::-1]


def test_names_sizes_and_bytes_are_those_of_the_records() -> None:
    assert list(BLOBS.names) == NAMES
    assert BLOBS.sizes.tolist() == [count * SIZE for count in COUNTS]
    assert (BLOBS.num_bytes, BLOBS.record_bytes) == (NUM * SIZE, SIZE)
    assert sum(plane.nbytes for plane in BLOBS.planes) == BLOBS.num_bytes
    for offset in range(SIZE):
        np.testing.assert_array_equal(BLOBS.column(offset), RECORDS[:, offset])
        assert any(np.shares_memory(BLOBS.column(offset), plane) for plane in BLOBS.planes)
    with pytest.raises(ValueError, match="no byte 11"):
        BLOBS.column(SIZE)


@settings(deadline=None)
@given(st.data())
def test_any_range_and_any_rows_are_those_of_the_records(data: st.DataObject) -> None:
    blob = data.draw(st.sampled_from([0, 1, 3]))
    begin = sum(COUNTS[:blob]) * SIZE
    offset = data.draw(st.integers(0, COUNTS[blob] * SIZE))
    out = np.zeros(data.draw(st.integers(0, COUNTS[blob] * SIZE - offset)), dtype=np.uint8)
    BLOBS.read_range(blob, offset, out)
    np.testing.assert_array_equal(out, JOINED[begin + offset : begin + offset + len(out)])
    row_bytes = data.draw(st.integers(1, SIZE))
    where = data.draw(st.lists(st.integers(0, COUNTS[blob] * SIZE - row_bytes), max_size=9))
    rows = read(BLOBS, [(blob, place) for place in where], row_bytes)
    for row, place in zip(rows, where, strict=True):
        np.testing.assert_array_equal(row, JOINED[begin + place : begin + place + row_bytes])


@settings(deadline=None)
@given(st.lists(st.integers(0, NUM - 1), max_size=30))
def test_whole_records_of_all_blobs_go_where_they_belong(records: list[int]) -> None:
    ends = np.cumsum(COUNTS)
    blobs = np.searchsorted(ends, records, side="right")
    where = [(int(b), (r - int(ends[b]) + COUNTS[b]) * SIZE) for r, b in zip(records, blobs, strict=True)]
    np.testing.assert_array_equal(read(BLOBS, where, SIZE), RECORDS[records].reshape(-1, SIZE))


@pytest.mark.parametrize("where", [(0, 5 * SIZE), (0, -1), (1, 1), (2, 0)])
def test_a_row_over_the_end_of_its_blob_is_an_error_not_the_next_one(where: tuple[int, int]) -> None:
    with pytest.raises(SourceError, match=f"^{NAMES[where[0]]}: bytes {where[1]} .. {where[1] + SIZE} lie outside its"):
        read(BLOBS, [(0, 0), where], SIZE)
    with pytest.raises(SourceError, match="lie outside"):
        BLOBS.read_range(*where, np.empty(SIZE, dtype=np.uint8))


@pytest.mark.parametrize("blob", [-1, 4])
def test_a_blob_that_is_not_there_is_an_error(blob: int) -> None:
    with pytest.raises(SourceError, match="there are 4"):
        read(BLOBS, [(blob, 0)], 1)
    with pytest.raises(SourceError, match="there are 4"):
        BLOBS.read_range(blob, 0, np.empty(1, dtype=np.uint8))


def test_planes_must_have_one_row_a_record() -> None:
    with pytest.raises(ValueError, match=r"planes of 3 records .* got \(4, 2\)"):
        PlanarBlobs([np.zeros((4, 2), dtype=np.uint8)], [3], ["a"])
    with pytest.raises(ValueError, match="contiguous"):
        PlanarBlobs([np.zeros((3, 4), dtype=np.uint8)[:, ::2]], [3], ["a"])


def test_a_change_of_the_files_they_come_from_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(JOINED.tobytes())
    blobs = made(origin=LocalBlobs([str(file)]))
    blobs.check_unchanged()
    file.write_bytes(b"other")
    with pytest.raises(ChangedError, match=r"a\.bin"):
        blobs.check_unchanged()
    assert read(blobs, [(0, 0)], 4).tolist() == [JOINED[:4].tolist()], "the copy in memory is whole"
    blobs.close()


def test_without_an_origin_nothing_can_change_and_a_copy_reads_the_same() -> None:
    BLOBS.check_unchanged()
    BLOBS.close()
    copy = pickle.loads(pickle.dumps(BLOBS))
    np.testing.assert_array_equal(read(copy, [(3, 4)], 9), read(BLOBS, [(3, 4)], 9))
    assert len(copy.buffer(12)) == 12
