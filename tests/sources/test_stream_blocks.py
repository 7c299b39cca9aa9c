"""The keyed block shuffle: pinned values, and how far a row can go."""

from typing import Any

import numpy as np
import pytest

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.sources.iterable_stream import IterableStream
from flodl_pipe.sources.stream_blocks import BlockShuffle, block_rows
from tests.contract.streams import read_lane, take

GOLDEN = [1, 3, 0, 5, 7, 4, 6, 2, 15, 10, 13, 11, 9, 12, 14, 8, 17, 19, 16, 18]


def order(num_rows: int, block: int, **which: Any) -> list[int]:
    stream = IterableStream([range(num_rows)], shuffle_buffer=block)
    rows: list[int] = read_lane(stream, 0, **{"seed": 42, "epoch": 1, **which})["0"].tolist()
    return rows


def test_the_values_are_pinned() -> None:
    # Other values are another order: a run that resumes would get other rows. Bump the version in the streams' tags.
    assert order(20, 8) == GOLDEN
    assert order(20, 8, seed=43) != GOLDEN


def test_a_row_stays_within_its_block_and_blocks_differ() -> None:
    found = np.array(order(40, 8)).reshape(5, 8)
    assert (found // 8 == np.arange(5)[:, np.newaxis]).all()
    assert len({tuple(row % 8) for row in found}) == 5


def test_lanes_are_permuted_apart() -> None:
    stream = IterableStream([range(8), range(8)], shuffle_buffer=16)
    assert read_lane(stream, 0)["0"].tolist() != read_lane(stream, 1)["0"].tolist()


@pytest.mark.parametrize(("buffer", "lanes", "rows"), [(1024, 16, 64), (10, 16, 1), (7, 2, 3)])
def test_lanes_share_the_buffer(buffer: int, lanes: int, rows: int) -> None:
    assert block_rows(buffer, lanes) == rows


class Counted:
    """A lane that counts what is read of it, and what is passed over."""

    def __init__(self, num_rows: int, mark: str) -> None:
        self.at, self.num_rows = int(mark or 0), num_rows
        self.read = self.passed = 0

    def read_into(self, out: Any, first_row: int, num_rows: int) -> int:
        count = min(num_rows, self.num_rows - self.at)
        out["x"][first_row : first_row + count] = np.arange(self.at, self.at + count)
        self.at, self.read = self.at + count, self.read + count
        return count

    def skip(self, num_rows: int) -> int:
        count = min(num_rows, self.num_rows - self.at)
        self.at, self.passed = self.at + count, self.passed + count
        return count

    def mark(self) -> str:
        return str(self.at)

    def close(self) -> None:
        pass


def shuffled(mark: str = "") -> tuple[BlockShuffle, list[Counted]]:
    made: list[Counted] = []

    def open_feed(begin: str) -> Counted:
        made.append(Counted(100, begin))
        return made[-1]

    return BlockShuffle(open_feed, SampleSpec.of(x=("int64", ())), 10, (1, 2, 3), mark), made


def test_resuming_reads_one_block_again_and_skipping_reads_none() -> None:
    reader, (lane,) = shuffled()
    assert reader.skip(47) == 47
    assert (lane.passed, lane.read) == (40, 10)
    resumed, (again,) = shuffled(reader.mark())
    assert resumed.skip(3) == 3
    assert (again.passed, again.read) == (0, 10)
    resumed, (fresh,) = shuffled(resumed.mark())
    assert fresh.at == 50
    assert resumed.skip(100) == 50
    assert fresh.read == 0


def test_a_shorter_lane_than_was_saved_is_seen() -> None:
    reader, _ = shuffled("9,9,95")
    with pytest.raises(Exception, match=r"block 9 of this lane has 5 rows, the saved place is behind row 9"):
        take(reader, IterableStream([range(3)]), 1)
