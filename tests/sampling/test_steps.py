"""Steps: every rank has as many, and together they are the epoch exactly once."""

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import ConfigError
from flodl_pipe.sampling.steps import Steps

RULES = st.sampled_from([True, False, "pad"])


def world(n, batch, rule, ranks):
    return [Steps(n, batch, rule, rank=rank, world_size=ranks) for rank in range(ranks)]


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 300), batch=st.integers(1, 64), rule=RULES, ranks=st.integers(1, 9), data=st.data())
def test_ranks_cover_the_epoch_once_in_equal_numbers_of_steps(n, batch, rule, ranks, data):
    batch = max(batch, ranks)
    if rule is True and n < batch:
        return
    position = data.draw(st.integers(0, n))
    steps = world(n, batch, rule, ranks)
    assert len({part.num_steps(position) for part in steps}) == 1
    valid, at = [], position
    for index in range(steps[0].num_steps(position)):
        parts = [part.step(index, position) for part in steps]
        for part in parts:
            assert part.num_rows >= 1
            assert part.num_rows <= steps[0].max_rows
            valid += range(part.start, part.start + part.num_valid)
            mask = part.valid()
            assert (mask is None) == (part.num_valid == part.num_rows)
            if mask is not None:
                assert mask.sum() == part.num_valid
        # Weights average to one over ranks: the mean over ranks is the mean over the global batch.
        assert sum(part.weight for part in parts) == pytest.approx(ranks)
        assert len({part.next_position for part in parts}) == 1
        at = parts[0].next_position
    expected = n - (n - position) % batch if rule is True else n
    assert sorted(valid) == list(range(position, expected))
    assert at == expected if steps[0].num_steps(position) else True


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 200), batch=st.integers(8, 40), ranks=st.integers(1, 8))
def test_padding_keeps_every_step_of_one_size(n, batch, ranks):
    sizes = {
        tuple(part.step(index).num_rows for part in world(n, batch, "pad", ranks))
        for index in range(Steps(n, batch, "pad").num_steps())
    }
    assert len(sizes) == 1


def test_a_rank_without_rows_in_a_short_step_takes_one_of_weight_zero():
    last = [part.step(1) for part in world(10, 8, False, 4)]
    assert [(part.num_rows, part.num_valid, part.weight) for part in last] == [
        (1, 1, 2.0),
        (1, 1, 2.0),
        (1, 0, 0.0),
        (1, 0, 0.0),
    ]


def test_an_epoch_without_a_batch_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"(?s)global batch of 8 .* epoch of 3 samples.*drop_last=false"):
        Steps(3, 8, True)
    assert Steps(3, 8, False).num_steps() == 1


def test_a_global_batch_below_the_world_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"global batch of 3 is smaller than the 4 ranks"):
        Steps(100, 3, True, rank=0, world_size=4)


@settings(max_examples=80, deadline=None)
@given(
    num_picks=st.integers(1, 200),
    global_batch=st.integers(2, 64),
    drop_last=st.sampled_from([True, False, "pad"]),
    ratios=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    unit=st.sampled_from([1, 2]),
    position=st.integers(0, 200),
)
@example(num_picks=43, global_batch=11, drop_last=False, ratios=[6, 6, 2], unit=1, position=0)
@example(num_picks=60, global_batch=6, drop_last=False, ratios=[1, 1], unit=2, position=7)
def test_unequal_shares_join_to_the_same_epoch(num_picks, global_batch, drop_last, ratios, unit, position):
    world = len(ratios)
    assume(global_batch >= world * unit and (drop_last is not True or num_picks >= global_batch))
    whole = Steps(num_picks, global_batch, drop_last)
    ranks = [
        Steps(num_picks, global_batch, drop_last, rank=rank, world_size=world, ratios=ratios, unit=unit)
        for rank in range(world)
    ]
    position = min(position, num_picks)
    assert {steps.num_steps(position) for steps in ranks} == {whole.num_steps(position)}
    for index in range(whole.num_steps(position)):
        parts = [steps.step(index, position) for steps in ranks]
        counted = [p for part in parts for p in range(part.start, part.start + part.num_valid)]
        want = whole.step(index, position)
        assert counted == list(range(want.start, want.start + want.num_valid))
        assert all(part.next_position == want.next_position for part in parts)
        assert all(part.num_rows <= steps.max_rows for part, steps in zip(parts, ranks, strict=True))
        # The mean over ranks of weighted means is the mean over the global batch.
        shares = [part.weight / world * want.num_valid for part in parts]
        assert np.allclose(shares, [part.num_valid for part in parts])
        if unit == 2:
            assert all((part.start - want.start) % 2 == 0 for part in parts if part.num_valid)


def test_pairs_need_two_rows_a_rank():
    with pytest.raises(ConfigError, match="smaller than the 3 ranks, and each rank needs at least 2 rows"):
        Steps(100, 5, True, world_size=3, unit=2)
