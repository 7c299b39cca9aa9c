"""The order of a mixture: exact quotas, parts in passes of their own, seekable, resumable with other weights.

White box: of an order made by chance the parts, the segments of its schedule, its seed and its mode are read.
"""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.config.proportions import exact
from flodl_pipe.errors import ConfigError, LoaderError, ResumeError, SourceError
from flodl_pipe.sampling.mixture_order import MixtureOrder
from flodl_pipe.sources.ordering import MixedPart, Weights


def weights(*numbers):
    return tuple(map(exact, numbers))


def make(sizes=(60, 25), schedule=((0, (0.7, 0.3)),), block=10, num_picks=80, seed=42, shuffle=True, **options):
    parts = [
        MixedPart(f"p{i}", size, drawn=i in options.get("drawn", ()), max_epochs=options.get("max_epochs", {}).get(i))
        for i, size in enumerate(sizes)
    ]
    entries = [Weights(at, weights(*given)) for at, given in schedule]
    return MixtureOrder(parts, entries, block=block, num_picks=num_picks, seed=seed, shuffle=shuffle)


def run(order, num_positions, start=0):
    return order.at(np.arange(start, start + num_positions))


def by_part(order, picks):
    """Return the samples of each part, in the order they came."""
    sizes = [part.num_samples for part in order._parts]
    starts = np.cumsum([0, *sizes])
    return [picks[(picks >= low) & (picks < high)] - low for low, high in pairwise(starts)]


def require_whole_passes(samples, size):
    """Require that no sample comes again before all have been."""
    for begin in range(0, len(samples), size):
        one = samples[begin : begin + size]
        assert len(np.unique(one)) == len(one)
        assert len(one) < size or sorted(one.tolist()) == list(range(size))


@st.composite
def mixtures(draw):
    num_parts = draw(st.integers(1, 5))
    sizes = tuple(draw(st.integers(1, 90)) for _ in range(num_parts))
    block = draw(st.integers(num_parts * 20, 160))
    # Weights of 1 to 9 out of at most 45: each part has a place in a block of 20 or more a part... and 0 is allowed.
    one = st.lists(st.integers(0, 9), min_size=num_parts, max_size=num_parts).filter(any)
    starts = sorted(draw(st.sets(st.integers(1, 12), max_size=3)))
    shifts = [draw(st.integers(0, block - 1)) for _ in starts]
    schedule = [(0, draw(one)), *((s * block - shift, draw(one)) for s, shift in zip(starts, shifts, strict=True))]
    return make(
        sizes,
        tuple(schedule),
        block,
        block * draw(st.integers(1, 5)),
        draw(st.integers(0, 2**64 - 1)),
        draw(st.booleans()),
    )


@settings(max_examples=60, deadline=None)
@given(order=mixtures(), data=st.data())
def test_any_position_gives_what_the_whole_run_has_there(order, data):
    total = 16 * order.block
    whole = run(order, total)
    places = np.array(data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=40)))
    assert np.array_equal(order.at(places), whole[places])
    start = data.draw(st.integers(0, total))
    assert np.array_equal(run(order, total - start, start), whole[start:])
    for epoch in range(total // order.num_picks):
        first = epoch * order.num_picks
        assert np.array_equal(order.epoch(epoch).at(0, order.num_picks), whole[first : first + order.num_picks])
        assert np.array_equal(
            order.epoch(epoch).pick(np.array([order.num_picks - 1, 0])), whole[[first + order.num_picks - 1, first]]
        )


@settings(max_examples=80, deadline=None)
@given(order=mixtures())
def test_every_block_has_its_quotas_and_every_part_goes_through_all_its_samples(order):
    total = 16 * order.block
    whole = run(order, total)
    sizes = [part.num_samples for part in order._parts]
    parts = np.searchsorted(np.cumsum(sizes), whole, side="right")
    for block in range(16):
        wanted = order._schedule.segments[order._schedule.find(block)].quotas
        found = np.bincount(parts[block * order.block : (block + 1) * order.block], minlength=len(sizes))
        assert tuple(found.tolist()) == wanted
    for samples, size in zip(by_part(order, whole), sizes, strict=True):
        require_whole_passes(samples, size)


@settings(max_examples=60, deadline=None)
@given(order=mixtures(), data=st.data())
def test_counts_are_the_draws_before_a_place(order, data):
    place = data.draw(st.integers(0, 16 * order.block - 1))
    wanted = tuple(len(samples) for samples in by_part(order, run(order, place)))
    assert order.counts(*divmod(place, order.num_picks)) == wanted


@settings(max_examples=60, deadline=None)
@given(order=mixtures(), data=st.data())
def test_a_run_resumed_with_other_weights_loses_and_repeats_nothing(order, data):
    sizes = tuple(part.num_samples for part in order._parts)
    saved = data.draw(st.integers(0, 8 * order.block))
    history = order.history(saved)
    one = st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes))
    other = make(
        sizes, ((0, data.draw(one)),), order.block, order.num_picks, order._passes[0]._key[1], order._seed is not None
    )
    resumed = other.with_history(history, saved)
    assert resumed.tag == order.tag
    whole = run(resumed, 16 * order.block)
    assert np.array_equal(whole[:saved], run(order, saved)), "the past stays"
    edge = -(-saved // order.block) * order.block
    assert np.array_equal(whole[:edge], run(order, edge)), "and so does the block that was begun"
    for samples, size in zip(by_part(order, whole), sizes, strict=True):
        require_whole_passes(samples, size)
    assert resumed._schedule.segments[-1].quotas == other._schedule.segments[0].quotas
    later = data.draw(st.integers(saved, 12 * order.block))
    again = other.with_history(resumed.history(later), later)
    assert np.array_equal(run(again, 16 * order.block), whole), "the history of a resumed run holds both"


@settings(max_examples=60, deadline=None)
@given(order=mixtures(), place=st.integers(0, 2000))
def test_resuming_with_the_same_weights_changes_nothing(order, place):
    resumed = order.with_history(order.history(place), place)
    assert np.array_equal(run(resumed, 16 * order.block), run(order, 16 * order.block))


def test_a_change_in_the_config_that_lies_ahead_stays_and_one_in_the_past_does_not_count():
    saved = make(schedule=((0, (0.7, 0.3)),)).history(35)
    assert saved == "0:7,3"
    config = make(schedule=((0, (0.5, 0.5)), (20, (0.2, 0.8)), (60, (0.9, 0.1))))
    resumed = config.with_history(saved, 35)
    assert resumed.history(1000) == "0:7,3;40:2,8;60:9,1"
    assert config.with_history("", 0).history(1000) == "0:5,5;20:2,8;60:9,1"
    assert config.history(20) == "0:5,5"
    assert config.history(21) == "0:5,5;20:2,8"


def test_a_run_may_be_resumed_from_one_place_after_another():
    config = make(schedule=((0, (0.5, 0.5)),))
    later = config.with_history("0:7,3;40:2,8", 60)
    assert later.history(1000) == "0:7,3;40:2,8;60:5,5"
    assert later.with_history("0:7,3", 20).history(1000) == "0:7,3;20:5,5"
    assert later.with_history("", 0).history(1000) == "0:5,5"


def test_weights_change_at_the_next_block():
    order = make(schedule=((0, (0.7, 0.3)), (31, (0.2, 0.8))))
    assert order.history(1000) == "0:7,3;40:2,8"
    assert order.counts(0, 50) == (30, 20)


@pytest.mark.parametrize(
    ("history", "position"),
    [
        ("0:7,3;35:2,8", 60), ("0:7,3;40:2,9", 60), ("0:7,3;40:2,8", 40), ("0:7,3;40:2,8;40:3,7", 60), ("10:7,3", 60),
        ("0:7,2,1", 60), ("0:7", 60), ("x", 60), ("", 60), ("0:7,3;", 60), ("0:-7,17", 60), ("0:7,3", 0),
    ],
)  # fmt: skip
def test_a_damaged_history_is_refused(history, position):
    with pytest.raises(ResumeError, match="edited or damaged"):
        make().with_history(history, position)


def test_values_are_pinned():
    """If they have to change, the tag must change with them."""
    order = make((70_000, 300, 5000), ((0, (5, 3, 2)), (40, (1, 1, 8))), block=20, num_picks=100)
    assert order.epoch(0).at(36, 46).tolist() == [19446, 70068, 72063, 30790, 12646, 71645, 72099, 71913, 70261, 73006]
    assert order.epoch(10**9).at(0, 6).tolist() == [72234, 72330, 48521, 75019, 75208, 71354]
    drawn = make((70_000, 300), drawn=(0,))
    assert drawn.epoch(3).at(0, 8).tolist() == [59676, 70139, 49468, 23014, 70285, 62944, 26419, 29068]


def test_the_tag_names_everything_but_the_weights():
    order = make((60, 25), drawn=(1,))
    assert order.tag == "mixture mix1 parts=p0=60,p1=25 drawn block=10 picks=80 seed=42"
    assert make(schedule=((0, (0.5, 0.5)),)).tag == make().tag
    assert make(shuffle=False).tag == "mixture mix1 parts=p0=60,p1=25 block=10 picks=80 sequential"


def test_without_shuffling_parts_are_interleaved_evenly_and_in_storage_order():
    order = make((60, 25), shuffle=False)
    assert order.epoch(0).at(0, 10).tolist() == [0, 60, 1, 2, 3, 61, 4, 5, 62, 6]
    assert order.epoch(0).at(10, 20).tolist() == [7, 63, 8, 9, 10, 64, 11, 12, 65, 13]
    first, second = by_part(order, run(order, 160))
    assert first.tolist() == [k % 60 for k in range(112)]
    assert second.tolist() == [k % 25 for k in range(48)]


def test_parts_go_on_where_they_were_from_epoch_to_epoch():
    order = make((100, 25), num_picks=10)  # 7 of 100 an epoch
    seen = np.concatenate([order.epoch(epoch).at(0, 10) for epoch in range(14)])
    assert len(np.unique(seen[seen < 100])) == 98


def test_a_drawn_part_repeats_samples_and_ignores_passes():
    order = make((50, 25), drawn=(0,), block=100, num_picks=1000)
    drawn, other = by_part(order, run(order, 1000))
    assert len(drawn) == 700
    assert len(np.unique(drawn[:50])) < 50
    assert set(drawn.tolist()) == set(range(50))
    require_whole_passes(other, 25)


def test_blocks_are_dealt_differently_and_places_fairly():
    order = make((10**6, 10**6, 10**6), ((0, (0.6, 0.3, 0.1)),), block=100, num_picks=100 * 20_000)
    parts = (order.epoch(0).at(0, 100 * 20_000) // 10**6).reshape(20_000, 100)
    assert len(np.unique(parts[:2000], axis=0)) > 1000
    for part, share in enumerate((0.6, 0.3, 0.1)):
        at_place = (parts == part).mean(axis=0)
        assert np.abs(at_place - share).max() < 5 * np.sqrt(share * (1 - share) / 20_000)


def test_passes_and_seeds_have_orders_of_their_own():
    order = make((2000, 2000), ((0, (1, 1)),), block=100, num_picks=4000)
    first, second = by_part(order, run(order, 8000))
    other = by_part(
        make((2000, 2000), ((0, (1, 1)),), block=100, num_picks=4000, seed=43),
        run(make((2000, 2000), ((0, (1, 1)),), 100, 4000, 43), 4000),
    )[0]
    orders = [first[:2000], first[2000:], second[:2000], second[2000:], other]
    for place, one in enumerate(orders):
        for another in orders[place + 1 :]:
            assert abs(np.corrcoef(one, another)[0, 1]) < 5 / np.sqrt(2000)


def test_a_place_far_into_the_run_is_reached_at_once():
    order = make((10**12, 10**9), block=1000, num_picks=10**6)
    last = order.epoch(2**62 // 10**6 - 1)
    assert last.at(10**6 - 4, 10**6).tolist() == last.pick(np.arange(10**6 - 4, 10**6)).tolist()
    with pytest.raises(ValueError, match="epoch must be in"):
        order.epoch(2**62 // 10**6)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_part_that_is_exhausted_is_an_error_at_its_place(shuffle):
    order = make((60, 25), max_epochs={1: 2}, shuffle=shuffle)  # 50 draws at 3 a block: in block 16
    place, part = order.runs_out()
    assert (place // 10, part) == (16, 1)
    assert len(by_part(order, run(order, place))[1]) == 50
    wanted = (
        rf"part 'p1' is exhausted after {place} samples of the run \(epoch 2, position {place - 160}\): max_epochs=2"
    )
    with pytest.raises(SourceError, match=wanted):
        order.at(np.array([place]))
    with pytest.raises(SourceError, match=wanted):
        order.check_epochs(3)
    order.check_epochs(2)
    with pytest.raises(SourceError, match=wanted):
        order.epoch(2).at(0, 80)


def test_a_part_that_leaves_in_time_is_not_exhausted():
    order = make((60, 25), ((0, (0.7, 0.3)), (160, (1, 0))), max_epochs={1: 2})
    assert order.runs_out() is None
    order.check_epochs(10**6)
    back = make((60, 25), ((0, (0.7, 0.3)), (160, (1, 0)), (1000, (0.9, 0.1))), max_epochs={1: 2})
    place, part = back.runs_out()
    assert (place // 10, part) == (102, 1)


def test_a_part_that_ends_with_a_block_runs_out_in_the_next():
    order = make((60, 30), max_epochs={1: 1})
    place, part = order.runs_out()
    assert (place // 10, part) == (10, 1)
    run(order, place)


def test_samples_have_no_position():
    with pytest.raises(LoaderError, match="several positions"):
        make().epoch(0).where(np.arange(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_picks": 85}, r"source\.epoch_samples: must be a multiple of the block of 10, got 85; use 80 or 90"),
        ({"num_picks": 0}, "use 10 or 10"),
        ({"block": 0}, r"source\.block: must be from 1 to 65536 with 2 parts, got 0"),
        ({"block": 10**6, "num_picks": 10**6}, "from 1 to 65536"),
        ({"sizes": (60, 0)}, r"source\.parts\.p1: a part needs"),
        ({"sizes": ()}, "at least one part"),
        ({"seed": -1}, r"sampling\.seed"),
        ({"schedule": ((0, (0.99, 0.01)),)}, "'p1' has weight 1/100 .*; a block of 100 would do"),
        ({"schedule": ((0, (0.5, 0.5)), (40, (0.99, 0.01)))}, "from position 40 on"),
        ({"schedule": ((0, (0, 0)),)}, "not all 0"),
        ({"schedule": ((0, (1, -1)),)}, "at least 0"),
        ({"schedule": ((5, (1, 1)),)}, "entry 0 of the weights begins at 5"),
        ({"schedule": ((0, (1, 1)), (11, (1, 2)), (20, (1, 3)))}, "entry 2 of the weights begins at 20"),
        ({"schedule": ((0, (1, 1, 1)),)}, "3 weights"),
        ({"schedule": ()}, "needs weights"),
        ({"drawn": (1,), "max_epochs": {1: 2}}, r"p1\.max_epochs: has no meaning for a part that is drawn"),
        ({"max_epochs": {0: 0}}, "at least 1, got 0"),
        ({"drawn": (0,), "shuffle": False}, r"sampling\.shuffle: false asks for storage order, but the part 'p0'"),
    ],
)  # fmt: skip
def test_what_no_mixture_can_be_made_of_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_a_mixture_of_very_many_parts_says_which_block_fits():
    with pytest.raises(ConfigError, match="from 1 to 8192 with 1024 parts"):
        make((5,) * 1024, ((0, (1,) * 1024),), block=2**14, num_picks=2**14)


def test_an_empty_request_gives_nothing_and_a_range_outside_the_epoch_is_refused():
    assert make().epoch(1).at(80, 80).tolist() == []
    with pytest.raises(ValueError, match="epoch of 80 picks"):
        make().epoch(0).at(0, 81)


def test_exact_weights_give_exact_quotas():
    order = make((100,) * 10, ((0, (0.1,) * 10),), block=1000, num_picks=1000)
    assert order.counts(0, 0) == (0,) * 10
    assert order.counts(1, 0) == (100,) * 10
    assert Fraction(1, 10) == exact(0.1)
