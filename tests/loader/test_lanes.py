"""The lanes order in a loader: own samples in tiers, more hits on more ranks, and one stream whatever the ranks."""

import contextlib
from fractions import Fraction

import numpy as np
import pytest

from flodl_pipe import Loader
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ConfigError, ResumeError
from flodl_pipe.loader.lane_order import num_own, own_lanes
from flodl_pipe.sampling.lanes import LanesOrder
from flodl_pipe.sampling.steps import Steps
from flodl_pipe.sources.mixture import Mixture
from flodl_pipe.sources.ordering import Weights
from tests.loader.device_cases import Fields, require_same, run, small_device, small_host
from tests.loader.inside import order_of, pool_of, wait_until_filled
from tests.loader.sources import Numbers
from tests.loader.streams import Lanes

N, G = 4096, 64


def build(rank=0, world=1, source=None, *, ratios=None, **options):
    context = RunContext(rank, world, ratios=ratios)
    given = {"global_batch_size": G, "order": "lanes", "device": "cpu", "mode": "streaming", **options}
    return Loader(source or Numbers(N, 1000), context=context, **given)


@contextlib.contextmanager
def host_for(num_rows, **options):
    """Leave room for so many rows in the RAM cache of a loader."""
    with build(**options) as loader:
        ring, row_bytes = dict(loader.granted())["ring"], loader.dataset.spec.row_bytes
    with small_host(2 * (ring + num_rows * (row_bytes + 1) + 1)):
        yield


def filled(loader):
    """Return a loader whose RAM cache has all that it may have, after a first epoch."""
    for _ in loader.epoch(0):
        pass
    assert wait_until_filled(loader)
    return loader


def ids(batch):
    """Return the samples of a batch that count."""
    samples = batch["id"].numpy().copy()
    return samples if batch.valid is None else samples[batch.valid.numpy()]


def num_held(loader):
    """Return the samples in the RAM cache: each takes its bytes and one in a table."""
    count = loader.tiers()[0]
    assert count.name == "RAM cache"
    return (count.held_bytes - 1) // (loader.dataset.spec.row_bytes + 1)


def found(loader, epochs=(1, 2)):
    """Return how many samples of some epochs the RAM cache had, and which samples were asked for."""
    before = loader.tiers()[0]
    samples = np.concatenate([ids(batch) for epoch in epochs for batch in loader.epoch(epoch)])
    after = loader.tiers()[0]
    assert after.num_rows - before.num_rows == len(samples)
    return after.num_hits - before.num_hits, samples


@pytest.mark.parametrize("world", [1, 2, 8])
def test_the_same_memory_finds_more_the_more_ranks_there_are(world):
    """Room for a twentieth of the set on each rank: min(1, W x 0.05) are found under lanes."""
    for rank in {0, world - 1}:
        options = {"rank": rank, "world": world, "prefetch": 4, "readers": 1}
        with host_for(N // 20, **options), filled(build(**options)) as loader:
            held = num_held(loader)
            assert N // 20 - 2 <= held <= N // 20  # a table of the ranks of samples takes the room of one or two
            num_hits, samples = found(loader)
            assert len(samples) == 2 * N // world
            assert num_hits == 2 * held  # each once an epoch


def test_in_another_order_a_rank_finds_what_it_happens_to_be_asked_for():
    options = {"rank": 7, "world": 8, "order": "uniform", "prefetch": 4, "readers": 1}
    with host_for(N // 20, **options), filled(build(**options)) as loader:
        num_hits, samples = found(loader)
        assert num_hits == (samples >= N - num_held(loader)).sum()  # those at the end of the set are kept
        assert num_hits < 0.1 * len(samples)


def test_own_samples_alone_are_all_that_is_kept_and_all_that_is_asked_for():
    with filled(build(5, 8)) as loader:
        assert num_held(loader) == N // 8
        num_hits, samples = found(loader)
        assert num_hits == len(samples) == 2 * N // 8
        assert loader.tiers()[0].filled_bytes <= N // 8 * loader.dataset.spec.row_bytes


@pytest.mark.parametrize("ratios", [None, (3, 2, 1), (Fraction(1, 2), 5, 1)])
@pytest.mark.parametrize("options", [{}, {"num_lanes": 16}, {"drop_last": False}, {"augment": 2, "num_lanes": 32}])
def test_the_stream_knows_nothing_of_ranks_and_shares(ratios, options):
    with build(source=Numbers(1003), **options) as loader:
        whole = [ids(batch) for epoch in (0, 1) for batch in loader.epoch(epoch)]
    parts = []
    for rank in range(3):
        with build(rank, 3, Numbers(1003), ratios=ratios, **options) as loader:
            parts.append([ids(batch) for epoch in (0, 1) for batch in loader.epoch(epoch)])
    for step, rows in enumerate(whole):
        assert np.concatenate([part[step] for part in parts]).tolist() == rows.tolist()


def test_a_rank_meets_the_same_samples_in_every_epoch():
    n = N + 37
    for rank in (0, 2):
        with build(rank, 3, Numbers(n), ratios=(3, 2, 1)) as loader:
            seen = [np.concatenate([ids(batch) for batch in loader.epoch(epoch)]) for epoch in range(5)]
            own = num_own(order_of(loader), loader.steps, n)
        # All of its own but what did not fill a step, a row of some lanes.
        assert all(own - len(rows) <= len(rows) / 64 + 1 for rows in seen)
        assert len(np.unique(np.concatenate(seen))) <= own


def test_a_device_holds_own_samples_only_and_is_resident_with_them():
    set_bytes = 331 * Fields(331).spec.row_bytes
    for drop_last in (True, False):
        options = {"order": "lanes", "global_batch_size": 32, "seed": 5, "drop_last": drop_last}
        context = RunContext(1, 4)
        with Loader(Fields(331), device="cpu", context=context, **options) as loader:
            wanted = run(loader, 4)
        with small_device(set_bytes) as (device, get):
            with Loader(Fields(331), context=context, mode="resident", **device, **options) as loader:
                require_same(run(loader, 4), wanted)
                assert loader.mode[0] == "resident"
                assert loader.is_loaded
                assert pool_of(loader).num_rows == num_own(order_of(loader), loader.steps, 331) < 90
            assert get().faults == []


def test_lanes_follow_shares_and_where_lanes_are_cut_apart_a_rank_owns_none():
    order = LanesOrder(N, 42, num_lanes=16, rows=4)

    def steps(ratios=None, global_batch=G, rank=1, full_unit=4):
        return Steps(N, global_batch, True, rank=rank, world_size=2, ratios=ratios, full_unit=full_unit)

    assert own_lanes(order, steps()) == (8, 8)
    assert own_lanes(order, steps((1, 3))) == (4, 12)
    assert own_lanes(order, steps((1, 3), global_batch=32)) is None
    assert own_lanes(order, steps((1, 2), full_unit=1)) is None
    assert num_own(order, steps((1, 3)), N) == N // 4 * 3
    assert num_own(order, steps((1, 3), global_batch=32), N) == N


@pytest.mark.parametrize("num_lanes", [None, 64])
def test_constants_of_the_first_start_are_kept_whatever_the_ranks_and_the_batch_are_then(num_lanes):
    """8 ranks of 8, then 2 ranks of 8: the global batch and the lanes are those of the first."""
    first = {"global_batch_size": None, "batch_size": 8, "num_lanes": num_lanes}
    with build(3, 8, Numbers(1003), **first) as loader:
        batches = iter(loader.epoch(0))
        for _ in range(5):
            next(batches)
        state = loader.state_dict()
    assert " lanes=64 rows=1 " in state["order"]
    with build(source=Numbers(1003)) as loader:
        whole = [ids(batch) for batch in loader.epoch(0)]
    parts = []
    for rank in range(2):
        with build(rank, 2, Numbers(1003), global_batch_size=None, batch_size=8) as loader:
            loader.load_state_dict(state)
            assert own_lanes(order_of(loader), loader.steps) == (32 * rank, 32)
            parts.append([ids(batch) for batch in loader.epoch(0)])
            assert loader.state_dict()["order"] == state["order"]
    assert [np.concatenate(rows).tolist() for rows in zip(*parts, strict=True)] == [row.tolist() for row in whole[5:]]


def test_another_global_batch_from_here_on_cuts_the_same_sequence():
    with build(source=Numbers(1003), num_lanes=16) as loader:
        batches = iter(loader.epoch(0))
        rows = [ids(next(batches)) for _ in range(3)]
        state = loader.state_dict()
        rest = [ids(batch) for batch in batches]
    scaled = {"global_batch_size": 24, "global_batch_on_resume": "scale", "drop_last": False}
    with build(source=Numbers(1003), **scaled) as loader:
        loader.load_state_dict(state)
        assert " lanes=16 rows=4 " in loader.state_dict()["order"]
        assert own_lanes(order_of(loader), loader.steps) is None
        found = np.concatenate([ids(batch) for batch in loader.epoch(0)])
    assert found[: len(np.concatenate(rest))].tolist() == np.concatenate(rest).tolist()
    assert sorted([*np.concatenate(rows), *found]) == list(range(1003))


def test_lanes_of_another_number_are_another_stream():
    with build(source=Numbers(1003), num_lanes=16) as loader:
        state = loader.state_dict()
    with build(source=Numbers(1003), num_lanes=32) as loader, pytest.raises(ResumeError) as caught:
        loader.load_state_dict(state)
    assert "lanes=16 rows=4" in str(caught.value)
    assert "lanes=32 rows=2" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "key", "text"),
    [
        ({"num_lanes": 48}, "sampling.num_lanes", "48 does not divide the global batch of 64.*set 32"),
        ({"num_lanes": 4, "world": 8}, "sampling.num_lanes", "4 lanes are fewer than the 8 ranks"),
        ({"source": Numbers(50), "drop_last": False}, "sampling.num_lanes", "null makes 64 lanes.*the 50 samples"),
        ({"source": Numbers(20), "num_lanes": 32, "drop_last": False}, "sampling.num_lanes", "32.*the 20 samples"),
        ({"num_lanes": 0}, "sampling.num_lanes", "at least 1"),
        ({"num_lanes": 8, "order": "uniform"}, "sampling.num_lanes", "no meaning with order=uniform; set order=lanes"),
        ({"shuffle": False}, "sampling.shuffle", "order=lanes is a shuffled one"),
        ({"sampler": [1, 2]}, "sampling.order", "decides the order"),
        (
            {
                "source": Mixture(
                    {"a": Fields(200), "b": Fields(131)}, (Weights(0, (Fraction(3), Fraction(1))),), block=10
                )
            },
            "sampling.order",
            "mixes its parts by weight",
        ),
        ({"source": Lanes(40, 75, 31, 60)}, "sampling.order", "needs samples by number"),
    ],
)
def test_what_does_not_fit_is_refused(options, key, text):
    with pytest.raises(ConfigError, match=f"(?s){text}") as caught:
        build(**options)
    assert [problem.key for problem in caught.value.problems] == [key]
