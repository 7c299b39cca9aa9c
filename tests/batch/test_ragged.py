"""Rows of different lengths in one array: joined, sliced, taken."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.batch.ragged import Ragged

ROWS = [np.array([5, 3]), np.array([], dtype=np.int64), np.array([7, 7, 1])]


def lists(ragged):
    return [ragged.row(index).tolist() for index in range(len(ragged))]


def test_rows_are_joined_and_found_again():
    ragged = Ragged.of(ROWS)
    assert ragged.values.tolist() == [5, 3, 7, 7, 1]
    assert ragged.offsets.tolist() == [0, 2, 2, 5]
    assert ragged.lengths.tolist() == [2, 0, 3]
    assert lists(ragged) == [[5, 3], [], [7, 7, 1]]
    assert len(ragged) == 3


def test_a_slice_is_a_view_that_begins_at_zero():
    ragged = Ragged.of(ROWS)
    part = ragged.slice(1, 3)
    assert part.offsets.tolist() == [0, 0, 3]
    assert lists(part) == [[], [7, 7, 1]]
    assert np.shares_memory(part.values, ragged.values)
    assert lists(ragged.slice(2, 2)) == []


@settings(max_examples=60, deadline=None)
@given(data=st.data(), width=st.sampled_from([(), (2,)]))
def test_rows_are_taken_in_the_order_asked_for(data, width):
    rows = data.draw(st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=6))
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    arrays = [np.repeat(np.array(row, np.int64), int(np.prod(width))).reshape(-1, *width) for row in rows]
    ragged = Ragged.of(arrays)
    taken = ragged.take(np.array(indices, dtype=np.int64))
    assert lists(taken) == [arrays[index].tolist() for index in indices]
    assert taken.values.shape[1:] == width
    assert taken.values.dtype == ragged.values.dtype
    assert not np.shares_memory(taken.values, ragged.values)


def test_a_row_that_is_not_there_is_an_error():
    with pytest.raises(IndexError):
        Ragged.of(ROWS).take(np.array([3]))
