"""A check word differs for other bytes, bytes in another place, and another sample."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.staging.row_checks import row_checks


def words(num_rows: int, num_words: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, size=(num_rows, num_words), dtype=np.uint64)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9000), st.data())
def test_any_changed_bit_changes_the_check(num_words, data):
    rows = words(2, num_words)
    before = row_checks(np.arange(2), rows)
    rows[1, data.draw(st.integers(0, num_words - 1))] ^= np.uint64(1 << data.draw(st.integers(0, 63)))
    after = row_checks(np.arange(2), rows)
    assert (after == before).tolist() == [True, False]


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 20000), st.data())
def test_words_that_change_places_change_the_check(num_words, data):
    row = words(1, num_words)
    one, other = data.draw(st.lists(st.integers(0, num_words - 1), min_size=2, max_size=2, unique=True))
    moved = row.copy()
    moved[0, [one, other]] = row[0, [other, one]]
    assert row_checks(np.zeros(1, np.int64), row) != row_checks(np.zeros(1, np.int64), moved)


@pytest.mark.parametrize("num_words", [0, 1, 256, 8192, 8193, 30000])
def test_checks_of_samples_differ_though_their_bytes_are_equal(num_words):
    checks = row_checks(np.arange(500), np.broadcast_to(words(1, num_words), (500, num_words)))
    assert len(set(checks.tolist())) == 500


def test_zeros_have_no_check_of_zero():
    for num_words in (0, 1, 5000):
        assert row_checks(np.arange(1000), np.zeros((1000, num_words), np.uint64)).all()


@pytest.mark.parametrize("num_words", [0, 3, 8192, 20000])
def test_a_check_does_not_depend_on_the_rows_beside_it_or_their_layout(num_words):
    rows, samples = words(7, num_words + 1), np.arange(7) * 1000
    together = row_checks(samples, rows[:, 1:])
    alone = [int(row_checks(samples[at : at + 1], np.ascontiguousarray(rows[at : at + 1, 1:]))[0]) for at in range(7)]
    assert together.tolist() == alone
    assert row_checks(samples[:0], rows[:0]).shape == (0,)


def test_every_word_of_a_long_row_counts():
    rows = np.zeros((1, 20000), np.uint64)
    found = set()
    for place in [0, 1, 8191, 8192, 16383, 16384, 19999]:
        rows[0, place] = 5
        found.add(int(row_checks(np.zeros(1, np.int64), rows)[0]))
        rows[0, place] = 0
    assert len(found) == 7
