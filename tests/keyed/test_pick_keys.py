"""Draws of a pick: a function of (seed, epoch, sample, repeat, stream, place) and of nothing else."""

import numpy as np
import pytest

from flodl_pipe.keyed.pick_keys import PickKeys


def keys(sample, repeat=None, epoch=0, seed=42):
    sample = np.asarray(sample, dtype=np.int64)
    return PickKeys(sample, np.zeros_like(sample) if repeat is None else np.asarray(repeat), epoch, seed)


def test_a_row_draws_the_same_numbers_in_any_batch():
    alone = keys([17]).words(7)
    among = keys([3, 17, 9]).words(7)
    assert np.array_equal(alone[0], among[1])


def test_every_part_of_the_key_counts():
    base = keys([17]).words(4).tolist()
    others = [
        keys([18]).words(4).tolist(),
        keys([17], [1]).words(4).tolist(),
        keys([17], epoch=1).words(4).tolist(),
        keys([17], seed=43).words(4).tolist(),
        keys([17]).words(4, stream=1).tolist(),
        keys([17]).of_stream(1).words(4).tolist(),
    ]
    assert base not in others
    assert len({str(other) for other in others}) == 6


def test_some_rows_of_keys_draw_what_they_drew():
    whole = keys([3, 17, 9]).of_stream(5)
    assert np.array_equal(whole.rows(slice(1, 3)).words(4), whole.words(4)[1:])


def test_asking_for_more_keeps_the_first():
    assert np.array_equal(keys([5]).words(3), keys([5]).words(9)[:, :3])


def test_uniforms_are_24_bit_and_even():
    values = keys(np.arange(20_000)).uniform(5)
    assert values.dtype == np.float32
    assert values.shape == (20_000, 5)
    assert values.min() >= 0.0
    assert values.max() < 1.0
    assert np.array_equal(values * 2**24, np.round(values * 2**24))
    assert abs(values.mean() - 0.5) < 5 / np.sqrt(12 * values.size)
    counts = np.bincount((values.ravel() * 50).astype(int), minlength=50)
    assert abs(((counts - 2000) ** 2 / 2000).sum() - 49) < 5 * (2 * 49) ** 0.5


def test_integers_are_in_range_and_even():
    values = keys(np.arange(30_000)).integers(10, 2)
    counts = np.bincount(values.ravel(), minlength=10)
    assert len(counts) == 10
    assert abs(((counts - 6000) ** 2 / 6000).sum() - 9) < 5 * (2 * 9) ** 0.5


@pytest.mark.parametrize("high", [0, -3, 2**32 + 1])
def test_a_range_that_32_bits_do_not_hold_is_refused(high):
    with pytest.raises(ValueError, match=f"got {high}"):
        keys([1]).integers(high, 1)


def test_values_are_pinned():
    found = keys([0, 1, 5], [0, 0, 1], epoch=3)
    assert found.words(2).tolist() == [[628052809, 1929739392], [3782851468, 3787362844], [3542699291, 341885515]]
    assert found.integers(10, 4, stream=1).tolist() == [[3, 4, 8, 6], [8, 4, 8, 0], [5, 5, 6, 6]]


def test_first_words_of_several_streams_are_those_of_each():
    found = keys([3, 17, 9], [0, 2, 1], epoch=4)
    words = found.first_words([5, 0, 2**63])
    assert words.shape == (3, 4, 3)
    for place, stream in enumerate([5, 0, 2**63]):
        assert np.array_equal(words[place].T, found.of_stream(stream).words(4))
