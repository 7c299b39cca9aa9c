"""Which requests fetch which rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.storage.remote_ranges import coalesce

SIZE = 5000


def plan(blobs, offsets, row_bytes=10, *, gap=0, longest=10_000, whole=()):
    mask = np.zeros(4, np.bool_)
    mask[list(whole)] = True
    rows = np.arange(len(blobs))
    return coalesce(
        np.array(blobs), np.array(offsets), row_bytes, rows, gap_bytes=gap, range_bytes=longest, whole=mask,
        sizes=np.full(4, SIZE),
    )  # fmt: skip


def spans(ranges):
    return [(one.blob, one.start, one.stop, one.rows.tolist()) for one in ranges]


def test_neighbours_are_one_range_whatever_their_order():
    assert spans(plan([0, 0, 0], [20, 0, 10])) == [(0, 0, 30, [1, 2, 0])]


def test_repeats_and_overlaps_are_fetched_once():
    assert spans(plan([0, 0, 0], [5, 0, 5])) == [(0, 0, 15, [1, 0, 2])]


def test_a_gap_is_read_over_up_to_its_limit():
    assert spans(plan([0, 0], [0, 30], gap=20)) == [(0, 0, 40, [0, 1])]
    assert spans(plan([0, 0], [0, 31], gap=20)) == [(0, 0, 10, [0]), (0, 31, 41, [1])]


def test_objects_are_never_joined():
    assert spans(plan([1, 0, 1], [0, 10, 10])) == [(0, 10, 20, [1]), (1, 0, 20, [0, 2])]


def test_a_range_is_at_most_its_limit_and_a_row():
    found = plan([0] * 50, list(range(0, 500, 10)), longest=100)
    assert [one.stop - one.start for one in found] == [100] * 5


def test_an_object_to_be_fetched_whole_is_one_range():
    found = plan([0, 0, 1, 1], [0, 4000, 0, 4000], longest=100, whole=[1])
    assert spans(found) == [(0, 0, 10, [0]), (0, 4000, 4010, [1]), (1, 0, SIZE, [2, 3])]


@settings(deadline=None, max_examples=200)
@given(
    places=st.lists(st.tuples(st.integers(0, 3), st.integers(0, SIZE - 7)), min_size=1, max_size=60),
    gap=st.integers(0, 300),
    longest=st.integers(1, 1000),
    whole=st.sets(st.integers(0, 3)),
)
def test_every_row_gets_its_bytes(places, gap, longest, whole):
    data = np.random.default_rng(0).integers(0, 256, (4, SIZE), dtype=np.uint8)
    blobs, offsets = zip(*places, strict=True)
    out = np.zeros((len(places), 7), np.uint8)
    found = plan(blobs, offsets, 7, gap=gap, longest=longest, whole=whole)
    for one in found:
        one.scatter(data[one.blob, one.start : one.stop], out)
        assert one.blob in whole or one.stop - one.start < longest + 7
    for row, (blob, offset) in enumerate(places):
        np.testing.assert_array_equal(out[row], data[blob, offset : offset + 7])
    assert sorted(np.concatenate([one.rows for one in found]).tolist()) == list(range(len(places)))


def test_a_wrong_row_would_be_seen():
    out = np.zeros((1, 7), np.uint8)
    plan([0], [5], 7)[0].scatter(np.arange(5, 12, dtype=np.uint8), out)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(out[0], np.arange(4, 11))
