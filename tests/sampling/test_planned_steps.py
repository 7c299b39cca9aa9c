"""Under any plan, a step of all ranks is the step of one; sizes follow the plan; bounds hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import ConfigError
from flodl_pipe.sampling.batch_sampler import BatchSamplerOrder, BatchSteps
from flodl_pipe.sampling.planned_steps import PlannedSteps, of_this_pass, planned
from flodl_pipe.sampling.share_plan import AutoShares
from flodl_pipe.sampling.steps import Steps


def draw_shares(data, plan):
    weights = data.draw(st.lists(st.integers(1, 30), min_size=len(plan.most), max_size=len(plan.most)))
    return plan.like(weights)


def base_of(data, rank, ranks, unit, shape):
    if shape is not None:
        order = BatchSamplerOrder(shape, 1000, seed=1)
        return BatchSteps(order, rank, ranks, unit=unit)
    n, batch = data.draw(st.integers(1, 90)), data.draw(st.integers(ranks * unit, 40))
    rule = data.draw(st.sampled_from([True, False, "pad"]))
    if rule is True:
        n = max(n, batch)
    return Steps(n, batch, rule, rank=rank, world_size=ranks, unit=unit)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), ranks=st.integers(1, 6), unit=st.integers(1, 2), from_lists=st.booleans())
def test_ranks_share_every_step_whatever_the_plan(data, ranks, unit, from_lists):
    shape = None
    if from_lists:
        sizes = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=8))
        sizes[data.draw(st.integers(0, len(sizes) - 1))] = max(*sizes, ranks * unit)
        shape = [list(range(size)) for size in sizes]
    base = base_of(data, 0, ranks, unit, shape)
    first = planned(base, AutoShares(data.draw(st.integers(2, 5))), None, unit)
    plan = first.plan
    for _ in range(data.draw(st.integers(0, 3))):
        plan.advance()
    passing = of_this_pass(first)
    assert isinstance(passing, PlannedSteps)
    parts = [passing.of_rank(rank) for rank in range(ranks)]
    for index in range(first.num_steps()):
        if data.draw(st.booleans()):
            plan.announce(plan.horizon, draw_shares(data, plan))
        assert passing.horizon() == index + plan.lead_steps
        cut, whole = [part.step(index) for part in parts], base.step(index)
        at = base.of_rank(0).step(index).start
        rows = []
        for part, step in zip(parts, cut, strict=True):
            assert 1 <= step.num_rows <= part.max_rows
            if step.num_valid or first.drop_last is not False:
                assert step.start == at + len(rows)
                rows += range(step.start, step.stop)
        full = first.drop_last is not False or whole.next_position - at == first.global_batch
        assert len(rows) == (first.global_batch if full else whole.next_position - at)
        if full:
            assert tuple(step.num_rows for step in cut) == plan.now
        assert sum(step.num_valid for step in cut if step.weight) == whole.next_position - at
        assert sum(step.weight for step in cut) == pytest.approx(ranks)
        assert {step.next_position for step in cut} == {whole.next_position}
        plan.advance()


def test_a_short_last_step_is_cut_in_the_plans_proportions():
    steps = planned(Steps(30, 20, False, rank=1, world_size=2), AutoShares(2), (3, 1), 1)
    assert steps.plan.now == (15, 5)
    assert [(step.start, step.stop, step.weight) for step in map(steps.step, range(2))] == [
        (15, 20, 0.5),
        (28, 30, 0.4),
    ]


def test_outside_of_a_pass_shares_are_those_of_now():
    steps = planned(Steps(100, 10, False, world_size=2), AutoShares(2), None, 1)
    steps.plan.announce(2, (8, 2))
    assert steps.step(9).num_rows == steps.batch_rows == 5
    steps.plan.advance()
    steps.plan.advance()
    assert steps.of_epoch(7).of_rank(1).step(9).num_rows == 2


def test_a_pass_is_cut_from_the_tick_at_which_it_begins():
    steps = planned(Steps(100, 10, False, world_size=2), AutoShares(3), None, 1)
    steps.plan.advance()
    begun = steps.begun()
    steps.plan.announce(4, (7, 3))
    assert [begun.step(index).num_rows for index in range(3)] == [5, 5, 5]
    with pytest.raises(ValueError, match="not settled"):
        begun.step(3)
    steps.plan.advance()
    assert begun.step(3).num_rows == 7


def test_another_global_batch_has_a_plan_of_its_own_and_its_own_bound():
    steps = planned(Steps(100, 10, False, world_size=2), AutoShares(3, max_rows=8), None, 1)
    assert steps.with_global_batch(12).plan.now == (6, 6)
    assert steps.with_global_batch(12).max_rows == 8
    with pytest.raises(ConfigError, match="8 rows are fewer than the first share of rank 0, 10"):
        steps.with_global_batch(20)
