"""Weighted draws: as likely as the weight says, never where it is 0, the same on every machine; labels to weights.

White box: the running totals that stand for the weights are read.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import WeightedRandomSampler

from flodl_pipe.errors import ConfigError, LoaderError
from flodl_pipe.sampling.inverse_frequency import inverse_frequency
from flodl_pipe.sampling.weighted import WeightedOrder


def order_of(weights, num_picks=100, seed=42):
    return WeightedOrder(np.asarray(weights), num_picks, seed, num_samples=len(weights))


def drawn(weights, num_picks, seed=42, epoch=0):
    return order_of(weights, num_picks, seed).epoch(epoch).at(0, num_picks)


def test_values_are_pinned():
    """If they have to change, the tag must change with them."""
    order = order_of(np.arange(1000) % 7)
    assert order.tag == "weighted w1 d64v1 samples=1000 picks=100 weights=8f8d32c2554bb80c seed=42"
    assert order.epoch(3).at(0, 8).tolist() == [401, 171, 744, 760, 19, 664, 625, 383]


def test_inverse_frequencies_balance_classes_as_torch_does():
    labels = np.repeat([0, 1], [900, 100])
    weights = inverse_frequency(labels)
    ours = drawn(weights, 20_000)
    generator = torch.Generator().manual_seed(0)
    theirs = np.array(list(WeightedRandomSampler(weights.tolist(), num_samples=20_000, generator=generator)))
    for picks in (ours, theirs):
        assert 0.45 <= labels[picks].mean() <= 0.55
        assert len(np.unique(picks[labels[picks] == 1])) == 100


@pytest.mark.parametrize("epoch", range(3))
def test_samples_come_as_often_as_their_weights_say(epoch):
    weights = np.array([0.1, 3.0, 0.0, 1e-3, 7.5, 2.0, 0.0, 1.0])
    num_picks = 400_000
    counts = np.bincount(drawn(weights, num_picks, epoch=epoch), minlength=8)
    expected = weights / weights.sum() * num_picks
    assert not counts[weights == 0].any()
    here = weights > 0
    chi_squared = ((counts[here] - expected[here]) ** 2 / expected[here]).sum()
    degrees = here.sum() - 1
    assert chi_squared < degrees + 5 * np.sqrt(2 * degrees)


@settings(max_examples=120, deadline=None)
@given(
    weights=st.lists(
        st.floats(0, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 5e-324, 1e-300, 1.0, 1.7e308]),
        min_size=1,
        max_size=60,
    ).filter(any)
)
def test_whole_numbers_stand_for_the_exact_weights(weights):
    totals = order_of(weights)._totals
    counts = np.diff(totals, prepend=0).tolist()
    exact = [Fraction(weight) for weight in weights]
    assert sum(counts) <= 2**62
    assert all((count == 0) == (weight == 0) for count, weight in zip(counts, weights, strict=True))
    for count, weight in zip(counts, exact, strict=True):
        if weight:
            assert abs(Fraction(count, sum(counts)) - weight / sum(exact)) < Fraction(len(weights), 2**58)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**32), zeros=st.floats(0, 1))
def test_a_sample_of_weight_0_is_never_drawn(n, seed, zeros):
    rng = np.random.default_rng(seed)
    weights = rng.random(n) * (rng.random(n) > zeros)
    weights[rng.integers(n)] = 1e-12
    assert (weights[drawn(weights, 3000, seed)] > 0).all()


def test_a_draw_is_found_in_the_running_totals_and_does_not_depend_on_what_else_is_asked():
    weights = np.random.default_rng(1).random(70_000)
    order = order_of(weights, 40_000).epoch(9)
    together = order.at(0, 40_000)
    for place in (0, 1, 8191, 8192, 39_999):
        assert order.at(place, place + 1)[0] == together[place]
    assert np.array_equal(order.pick(np.array([5, 5, 0])), together[[5, 5, 0]])


def test_a_draw_belongs_to_the_stretch_it_falls_into_edges_and_all(monkeypatch):
    order = order_of([0, 2, 0, 0, 1, 5, 0])
    totals = order._totals
    edges = np.unique([0, *(totals[totals < totals[-1]]).tolist(), *(totals[totals > 0] - 1).tolist()])
    monkeypatch.setattr("flodl_pipe.sampling.weighted.draw", lambda size, key, counters: edges[counters])
    assert int(totals[-1]) == 2**60
    assert edges.tolist() == [0, 2**58 - 1, 2**58, 3 * 2**57 - 1, 3 * 2**57, 2**60 - 1]
    assert order.epoch(0).pick(np.arange(6)).tolist() == [1, 1, 4, 4, 5, 5]


def test_a_common_factor_a_type_and_a_byte_order_change_nothing():
    weights = np.array([1, 2, 0, 40, 3])
    tag, picks = order_of(weights).tag, drawn(weights, 500)
    for same in (
        weights / 8,
        weights * 2.0**70,
        weights.astype(np.float16),
        weights.astype(">f8"),
        weights[::-1][::-1],
    ):
        assert order_of(same).tag == tag
        assert np.array_equal(drawn(same, 500), picks)
    assert np.array_equal(drawn(weights * 3, 500), picks), "another factor changes how it is rounded, by 1 in 2**60"
    assert order_of(weights + np.array([0, 0, 0, 1, 0])).tag != tag


def test_later_changes_of_the_array_are_not_seen_and_8_bytes_a_sample_are_held():
    weights = np.ones(1000)
    order = order_of(weights)
    before = order.epoch(0).at(0, 100)
    weights[:] = 0
    weights[3] = 1
    assert np.array_equal(order.epoch(0).at(0, 100), before)
    assert order.held_bytes == 8000


def test_a_pick_is_the_sample_and_has_no_position():
    order = order_of([1.0, 2.0])
    assert order.num_repeats is None
    assert order.num_picks == 100
    with pytest.raises(LoaderError, match=r"3 picks .* stands at several positions"):
        order.epoch(0).where(np.arange(3))


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (np.ones(4), "4 weights were given for 5 samples"),
        (np.ones(0), "0 weights were given for 5 samples"),
        (np.ones((5, 1)), r"one-dimensional array of numbers, got float64 of shape \(5, 1\)"),
        (np.array(1.0), r"got float64 of shape \(\)"),
        (np.array([1, 1, -2, 1, -3]), r"sample 2 has the weight -2, .* at least 0.*\(2 of 5"),
        (np.array([1, 1, 1, np.nan, 1]), "sample 3 has the weight nan"),
        (np.array([1, 1, 1, 1, np.inf]), "sample 4 has the weight inf"),
        (np.zeros(5), "all 5 weights are 0"),
        (np.array(["1"] * 5), "got <U1"),
        (np.array([1.0] * 5, dtype=object), "got object"),
        (np.ones(5, dtype=bool), "got bool"),
        (np.ones(5, dtype=complex), "got complex128"),
    ],
)
def test_what_is_no_weight_is_refused(weights, says):
    with pytest.raises(ConfigError, match=says) as caught:
        WeightedOrder(weights, 10, 42, num_samples=5)
    assert caught.value.problems[0].key == "sampling.weights"


@pytest.mark.parametrize("num_picks", [0, -1, 2**62 + 1])
def test_a_number_of_draws_out_of_range_is_refused(num_picks):
    with pytest.raises(ValueError, match=rf"1 to 2\*\*62 picks, got {num_picks}"):
        WeightedOrder(np.ones(5), num_picks, 42, num_samples=5)


@pytest.mark.parametrize(
    "labels",
    [np.array([3, 0, 3, 3, 7]), np.array([3, 0, 3, 3, 7], dtype=np.uint8), np.array([2**60, 5, 2**60, 2**60, 2**62])],
)
def test_the_weights_of_a_class_add_up_to_1_whatever_the_labels_are(labels):
    weights = inverse_frequency(labels)
    assert weights.dtype == np.float64
    assert weights.tolist() == [1 / 3, 1.0, 1 / 3, 1 / 3, 1.0]


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.array([0.0, 1.0]), r"integers, got float64 of shape \(2,\)"),
        (np.array([True, False]), "integers, got bool"),
        (np.array([[0], [1]]), r"shape \(2, 1\)"),
        (np.array([0, 1, -1, 0]), "at least 0, got -1 at sample 2"),
        (np.array([], dtype=np.int64), "at least one label"),
    ],
)
def test_what_is_no_label_is_refused(labels, says):
    with pytest.raises(ConfigError, match=says):
        inverse_frequency(labels)
