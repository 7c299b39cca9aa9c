"""Draws with replacement: uniform, seekable, keyed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import LoaderError
from flodl_pipe.sampling.drawn import DrawnOrder, draw

GOLDEN = {
    (100, 42, 0): [25, 19, 92, 53],
    (2**32 + 5, 42, 0): [1083990257, 831509037, 3972144266, 2299562387],
    (2**62, 7, 3): [3847513686720997411, 4194174817768316640, 3055037582863629825, 4038617444390526588],
}


@pytest.mark.parametrize(("key", "picks"), GOLDEN.items())
def test_values_are_pinned(key, picks):
    num_samples, seed, epoch = key
    assert DrawnOrder(num_samples, 10, seed).epoch(epoch).at(2, 6).tolist() == picks


@settings(max_examples=60, deadline=None)
@given(
    n=st.one_of(st.integers(1, 300), st.integers(1, 2**62)),
    picks=st.integers(1, 20_000),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_any_range_of_an_epoch_is_part_of_the_whole(n, picks, seed, epoch, data):
    order = DrawnOrder(n, picks, seed).epoch(epoch)
    start = data.draw(st.integers(0, picks))
    stop = data.draw(st.integers(start, picks))
    whole = order.at(0, picks)
    assert whole.min() >= 0
    assert whole.max() < n
    assert np.array_equal(order.at(start, stop), whole[start:stop])
    backwards = np.arange(picks)[::-1]
    assert np.array_equal(order.pick(backwards), whole[::-1])


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 2**62), counter=st.integers(0, 2**62))
def test_a_draw_is_the_upper_half_of_the_exact_product(n, counter):
    top = 2**62  # scaled to 2**62, the hash shows its upper 62 bits
    word = int(draw(top, 5, np.array([counter]))[0])
    exact_low, exact_high = (word * 4 * n) >> 64, ((word * 4 + 3) * n) >> 64
    assert exact_low <= int(draw(n, 5, np.array([counter]))[0]) <= exact_high


@pytest.mark.parametrize("n", [2, 7, 64, 1000])
def test_draws_are_uniform(n):
    """Chi-square of 200,000 draws, and of pairs of neighbours: within five standard deviations."""
    picks = DrawnOrder(n, 200_000, 11).epoch(4).at(0, 200_000)
    for cells, num_cells in ((picks, n), (picks[::2] * n + picks[1::2], n * n)):
        if num_cells > 5000:
            continue
        seen = np.bincount(cells, minlength=num_cells)
        expected = len(cells) / num_cells
        chi_square = float(((seen - expected) ** 2 / expected).sum())
        assert abs(chi_square - (num_cells - 1)) < 5 * np.sqrt(2 * (num_cells - 1))


def test_seeds_and_epochs_never_share_draws():
    keys = [(0, 1), (1, 0), (2**64 - 1, 0), (0, 2**64 - 1), (7, 1), (8, 0), (0, 8)]
    first = {tuple(DrawnOrder(2**62, 8, seed).epoch(epoch).at(0, 8).tolist()) for seed, epoch in keys}
    assert len(first) == len(keys)
    assert len({pick for picks in first for pick in picks}) == 8 * len(keys)


def test_a_sample_has_no_position():
    with pytest.raises(LoaderError, match="stands at several positions"):
        DrawnOrder(10, 5, 1).epoch(0).where(np.arange(3))


def test_the_tag_names_algorithm_and_constants():
    assert DrawnOrder(10, 20, 42).tag == "drawn d64v1 samples=10 picks=20 seed=42"


@pytest.mark.parametrize(("samples", "picks"), [(0, 1), (1, 0), (2**62 + 1, 1), (1, 2**62 + 1)])
def test_sizes_out_of_range_are_refused(samples, picks):
    with pytest.raises(ValueError, match=r"1 to 2\*\*62"):
        DrawnOrder(samples, picks, 1)


def test_a_seed_an_epoch_and_a_range_out_of_bounds_are_refused():
    with pytest.raises(ValueError, match="got -1"):
        DrawnOrder(1, 1, -1)
    with pytest.raises(ValueError, match="got -1"):
        DrawnOrder(1, 1, 1).epoch(-1)
    with pytest.raises(ValueError, match="epoch of 5 picks"):
        DrawnOrder(1, 5, 1).epoch(0).at(0, 6)
