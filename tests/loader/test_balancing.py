"""Shares that follow speeds: the stream stays what it is, whatever the shares and whenever they change."""

import contextlib
import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.cluster.clock import StepClock
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.loader import SimulatedConfig
from flodl_pipe.errors import ClusterError, ConfigError
from flodl_pipe.loader.balancing import Balancing
from flodl_pipe.loader.identity import Spot
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sampling.share_plan import AutoShares, SharePlan
from tests.loader.balanced import MadeUp, contexts, loaders, valid_ids
from tests.loader.device_cases import Fields
from tests.loader.sources import Numbers
from tests.loader.streams import Lanes


def steps_of(parts, epochs, *, stop_after=None):
    """Return the ids of every step over all ranks, and the last state of each rank."""
    steps, sizes = [], []
    for epoch in epochs:
        for batches in zip(*(part.epoch(epoch) for part in parts), strict=True):
            steps.append([number for batch in batches for number in valid_ids(batch)])
            sizes.append(tuple(len(batch["id"]) for batch in batches))
            cursors = {json.dumps(batch.cursor, sort_keys=True) for batch in batches}
            assert cursors == {json.dumps(part.state_dict(), sort_keys=True) for part in parts}
            if len(steps) == stop_after:
                return steps, sizes
    return steps, sizes


@settings(max_examples=15, deadline=None)
@given(data=st.data(), ranks=st.integers(2, 4), every=st.integers(2, 5), rule=st.sampled_from([True, False, "pad"]))
def test_the_joined_stream_is_that_of_one_process_also_over_resumes(data, ranks, every, rule):
    batch, n = data.draw(st.integers(8, 24)), data.draw(st.integers(30, 120))
    lists = None
    how = {"global_batch_size": batch, "batch_size": 4, "drop_last": rule}
    kind = data.draw(st.sampled_from(["uniform", "lanes", "lists"]))
    if kind == "lanes":
        how["order"] = "lanes"
    elif kind == "lists":
        lists = [list(range(at, min(at + size, n))) for at, size in zip(range(0, n, 9), [9, 5, 7, 8] * n, strict=False)]
        how = {"batch_sampler": lists}
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(Loader(Numbers(n), **how))
        truth = [[valid_ids(b) for b in alone.epoch(epoch)] for epoch in range(4)]
        flat = [step for epoch in truth for step in epoch]
        stop = data.draw(st.integers(1, len(flat) - 1))

        def make(ranks, seed):
            return [stack.enter_context(part) for part in loaders(lambda: Numbers(n), ranks, every, seed, **how)]

        first = make(ranks, data.draw(st.integers(0, 9)))
        steps, _ = steps_of(first, range(4), stop_after=stop)
        state = first[data.draw(st.integers(0, ranks - 1))].state_dict()
        # Another number of ranks goes on, or the same one.
        second = make(data.draw(st.integers(2, 4)), data.draw(st.integers(0, 9)))
        for part in second:
            part.load_state_dict(state)
        rest, _ = steps_of(second, range(state["epoch"], 4))
        assert steps + rest == flat


def test_sizes_change_every_so_many_steps_and_never_between():
    with contextlib.ExitStack() as stack:
        parts = [
            stack.enter_context(part) for part in loaders(lambda: Numbers(400), 3, 4, batch_size=8, drop_last=True)
        ]
        _, sizes = steps_of(parts, range(2))
        changed = [at for at in range(1, len(sizes)) if sizes[at] != sizes[at - 1]]
        assert changed
        assert all(at % 4 == 0 and at >= 8 for at in changed)
        assert parts[1].batch_size == 8
        for part in parts:
            ticks = [int(values[0]) for values, _ in part.context.world.exchanges]
            assert ticks == list(range(4, len(sizes) + 1, 4))


@pytest.mark.parametrize("prefetch", ["auto", 200])
@pytest.mark.parametrize("readers", [0, 1, 3])
def test_steps_in_flight_are_no_more_than_announcements_reach(readers, prefetch, caplog):
    """A reader that went further would be refused by the plan, and the loop would hear of it."""
    with contextlib.ExitStack() as stack:
        how = {"batch_size": 4, "prefetch": prefetch, "readers": readers}
        parts = [stack.enter_context(part) for part in loaders(lambda: Numbers(2000), 2, 5, **how)]
        assert all(part.plan.depth <= 5 for part in parts)
        assert ("prefetch=200: 5 steps are read ahead at most" in caplog.text) == (prefetch == 200)
        steps, sizes = steps_of(parts, range(1))
        with Loader(Numbers(2000), batch_size=8) as alone:
            assert steps == [batch["id"].tolist() for batch in alone]
        assert len(set(sizes)) > 2


@pytest.mark.parametrize(
    ("mode", "every"),
    [
        ("streaming", 2),
        ("resident", 6),
        pytest.param("streaming", 6, marks=pytest.mark.full),
        pytest.param("resident", 2, marks=pytest.mark.full),
    ],
)
def test_a_device_is_not_fed_beyond_what_is_settled(mode, every):
    simulated = SimulatedConfig(memory_bytes=64 << 20)
    how = {"batch_size": 8, "device": "simulated", "simulated": simulated, "mode": mode, "drop_last": False}
    with contextlib.ExitStack() as stack:
        parts = [stack.enter_context(part) for part in loaders(lambda: Fields(300, 8), 2, every, **how)]
        steps, sizes = steps_of(parts, range(3))
        with Loader(Fields(300, 8), batch_size=16, drop_last=False) as alone:
            assert steps == [batch["id"].tolist() for epoch in range(3) for batch in alone.epoch(epoch)]
        assert len(set(sizes)) > 2


def test_pairs_stay_together():
    class Pairs:
        scope = "pair"

        def __call__(self, batch, keys):
            ids = batch["id"]
            assert (ids[0::2] % 2 == 0).all()
            assert (ids[1::2] == ids[0::2] + 1).all()
            return batch

    with contextlib.ExitStack() as stack:
        how = {"batch_size": 8, "shuffle": False, "transforms": Pairs()}
        parts = [stack.enter_context(part) for part in loaders(lambda: Numbers(400), 3, 3, **how)]
        _, sizes = steps_of(parts, range(1))
        assert len(set(sizes)) > 2


def test_a_pass_that_is_broken_off_and_passes_that_are_named_keep_all_ranks_in_step():
    with contextlib.ExitStack() as stack:
        parts = [stack.enter_context(part) for part in loaders(lambda: Numbers(90), 2, 3, batch_size=5)]
        alone = stack.enter_context(Loader(Numbers(90), batch_size=10))
        for epoch, stop in [(0, 4), (0, 9), (5, 7), (6, 1), (6, 9), (7, 9)]:
            steps, _ = steps_of(parts, [epoch], stop_after=stop)
            assert steps == [batch["id"].tolist() for batch in alone.epoch(epoch)][:stop]


def test_the_cursor_holds_the_shares_by_name_and_a_run_of_the_same_ranks_begins_with_them():
    hosts = ["b/0", "a/0"]
    with contextlib.ExitStack() as stack:
        parts = [
            stack.enter_context(part) for part in loaders(lambda: Numbers(400), 2, 3, 1, hosts=hosts, batch_size=10)
        ]
        assert parts[0].state_dict()["shares"] == "a/0=10 b/0=10"
        steps_of(parts, range(1), stop_after=7)
        state, shares = parts[1].state_dict(), parts[1].shares
        assert shares != (10, 10)
        assert state["shares"] == f"a/0={shares[1]} b/0={shares[0]}"
        # The rendezvous may number the same ranks otherwise.
        swapped = [
            stack.enter_context(part)
            for part in loaders(lambda: Numbers(400), 2, 3, 1, hosts=hosts[::-1], batch_size=10)
        ]
        for part in swapped:
            part.load_state_dict(state)
            assert part.shares == shares[::-1]
            assert part.state_dict() == state


def test_saved_shares_of_other_ranks_are_left_aside_aloud_and_fixed_runs_save_none(caplog):
    with contextlib.ExitStack() as stack:
        parts = [stack.enter_context(part) for part in loaders(lambda: Numbers(400), 2, 3, 1, batch_size=10)]
        steps_of(parts, range(1), stop_after=7)
        state = parts[0].state_dict()
        others = [
            stack.enter_context(part)
            for part in loaders(lambda: Numbers(400), 2, 3, 1, hosts=["x/0", "h/1"], batch_size=10)
        ]
        with caplog.at_level(logging.INFO, "flodl_pipe"):
            others[0].load_state_dict(state)
        assert others[0].shares == (10, 10)
        assert "are of other ranks than x/0, h/1, and are left aside" in caplog.text
        fixed = stack.enter_context(Loader(Numbers(400), batch_size=10, context=RunContext(0, 2)))
        fixed.load_state_dict(state)
        assert fixed.state_dict() == {**state, "shares": ""}


def test_a_saved_global_batch_is_kept_and_shares_with_it_in_proportion():
    with contextlib.ExitStack() as stack:
        parts = [stack.enter_context(part) for part in loaders(lambda: Numbers(400), 2, 3, 1, batch_size=20)]
        steps_of(parts, range(1), stop_after=7)
        state, shares = parts[0].state_dict(), parts[0].shares
        smaller = [stack.enter_context(part) for part in loaders(lambda: Numbers(400), 2, 3, 1, batch_size=10)]
        for part in smaller:
            part.load_state_dict(state)
            assert (part.global_batch_size, part.shares) == (40, shares)
        steps, _ = steps_of(smaller, [0])
        alone = stack.enter_context(Loader(Numbers(400), batch_size=40))
        assert steps == [batch["id"].tolist() for batch in alone][7:]


def test_where_nobody_tells_the_time_shares_stay_and_it_is_said_once(caplog):
    with contextlib.ExitStack() as stack:
        part = stack.enter_context(Loader(Numbers(400), batch_size=10, context=contexts(2, 3, None)[0]))
        with caplog.at_level(logging.WARNING, "flodl_pipe"):
            for _ in part:
                pass
        assert part.shares == (10, 10)
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1
        assert "h/0, h/1 did not say how long steps take" in said[0]
        assert "flodl_pipe.attach(" in said[0]


def test_compute_done_tells_the_time():
    context = contexts(2, 4, None)[0]
    with Loader(Numbers(400), batch_size=10, context=context) as part:
        for _ in part:
            part.compute_done()
    (tick, epoch, position, _, seconds, rows), what = context.world.exchanges[0]
    assert (tick, epoch, position, rows) == (4.0, 0.0, 80.0, 20.0)  # the first two compile and tune
    assert 0 < seconds < 10
    assert "after 4 steps (cluster.balance=auto)" in what


class Astray(MadeUp):
    """A world whose second rank has taken one batch more."""

    def gather_floats(self, values, what):
        return [tuple(values), (values[0], values[1], values[2] + 20, *values[3:])]


def test_ranks_that_stand_at_different_places_are_told_and_no_batch_is_lost():
    context = RunContext(0, 2, world=Astray(2), shares=AutoShares(3))
    with Loader(Numbers(400), batch_size=10, context=context) as part:
        iterator = iter(part)
        taken = [next(iterator) for _ in range(3)]
        with pytest.raises(
            ClusterError, match=r"(?s)different places.*h/0: 3 batches.*position 60.*h/1: .*position 80"
        ):
            next(iterator)
        assert part.state_dict() == taken[-1].cursor


def test_shares_that_ranks_worked_out_differently_are_found_before_a_step_is_cut_by_them():
    class Differs(MadeUp):
        def gather_floats(self, values, what):
            told = super().gather_floats(values, what)
            return [told[0], (*told[1][:3], told[1][3] + (values[0] == 6), *told[1][4:])]

    plan, world = SharePlan((10, 10), lead_steps=3, most=(19, 19)), Differs(2, seed=1)
    balancing = Balancing(plan, world, StepClock(lambda: None))
    for step in range(6):
        balancing.before_step(Spot(0, 20 * step))
        plan.advance()
    assert plan.at(5) == (10, 10) != plan.at(6)
    with pytest.raises(ClusterError, match="different places"):
        balancing.before_step(Spot(0, 120))


def test_ranks_that_do_not_talk_cannot_be_balanced():
    with pytest.raises(ClusterError, match="built with a context by hand"):
        Loader(Numbers(40), batch_size=4, context=RunContext(0, 2, shares=AutoShares(3)))
    with pytest.raises(ConfigError, match=r"cluster.max_rows: 3 rows are fewer than the first share"):
        Loader(Numbers(40), batch_size=4, context=contexts(2, 3, max_rows=3)[0])


def test_streams_are_refused():
    with pytest.raises(ConfigError, match=r"cluster.balance: auto is not for streams"):
        Loader(Lanes(3, 3), batch_size=1, context=contexts(2, 3)[0])


def test_where_a_sample_stands_is_told_by_the_shares_of_now():
    with contextlib.ExitStack() as stack:
        part = stack.enter_context(loaders(lambda: Numbers(400), 2, 3, 1, batch_size=10, shuffle=False)[0])
        assert part.where(13, 0) == (0, 1, 3)
        for _ in part:
            pass
        first, _ = part.shares
        assert first != 10
        assert part.where(13, 0) == ((0, 1, 13 - first) if first <= 13 else (0, 0, 13))
        assert part.what(2, 3).rank.tolist() == [0] * first + [1] * (20 - first)
