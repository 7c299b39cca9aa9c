"""Every order in a loader: what comes, on any ranks, resumed anywhere; and what excludes what."""

import json
import multiprocessing
import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

from flodl_pipe import Loader
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ConfigError, ResumeError, StagingError
from tests.loader.sources import Numbers, ids
from tests.loader.waiting import HANG_S

N = 83
LENGTHS = np.random.default_rng(3).integers(1, 40, N)
WEIGHTS = np.arange(N) % 7


def sampler():
    return RandomSampler(range(N), generator=torch.Generator().manual_seed(7))


ORDERS = {
    "uniform": {},
    "augmented": {"augment": 2},
    "sequential": {"shuffle": False},
    "lanes": {"order": "lanes"},
    "lanes of several rows, augmented": {"order": "lanes", "num_lanes": 6, "augment": 2},
    "blocked": {"order": "blocked", "block_samples": 24},
    "blocked, augmented": {"order": "blocked", "block_samples": 24, "augment": 2},
    "bucketed": {"order": "bucketed", "lengths": LENGTHS, "pool_batches": 3},
    "weighted": {"order": "weighted", "weights": WEIGHTS, "num_draws": 100},
    "sampler": {"sampler": True},
    "batch sampler": {"batch_sampler": True},
}


def build(name, **options):
    given = {"batch_size": 12, "drop_last": False, **ORDERS[name], **options}
    if given.pop("sampler", None):
        given["sampler"] = sampler()
    if given.pop("batch_sampler", None):
        del given["drop_last"], given["batch_size"]
        given["batch_sampler"] = BatchSampler(sampler(), 12, drop_last=False)
    return Loader(Numbers(N), **given)


def rows(loader, epochs=(0, 1)):
    return [
        [(e, *pick) for pick in zip(batch.pick_keys.sample.tolist(), batch.pick_keys.repeat.tolist(), strict=True)]
        for e in epochs
        for batch in loader.epoch(e)
    ]


@pytest.fixture(scope="module")
def whole():
    found = {}
    for name in ORDERS:
        with build(name) as loader:
            found[name] = rows(loader)
    return found


@pytest.mark.parametrize("name", ORDERS)
def test_what_comes_is_what_the_order_promises(name, whole):
    for epoch in (0, 1):
        counts = np.bincount([s for step in whole[name] for e, s, _ in step if e == epoch], minlength=N)
        if name == "weighted":
            assert counts.sum() == 100
            assert not counts[WEIGHTS == 0].any()
        else:
            assert set(counts) == {2 if "augmented" in name else 1}
    picks = [pick for step in whole[name] for pick in step]
    assert len(picks) == len(set(picks))  # no two rows of an epoch draw the same numbers
    assert name == "sequential" or whole[name][0] != whole[name][len(whole[name]) // 2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(data=st.data())
def test_any_ranks_any_shares_any_kill_points_give_the_same_rows(whole, data):
    """The whole promise at once: cut, shared and broken off anywhere, the rows of a step are those of one process."""
    name = data.draw(st.sampled_from(sorted(ORDERS)))
    kills = data.draw(st.lists(st.integers(0, 9), max_size=3))
    state, done = None, []
    for kill in [*kills, None]:
        world = data.draw(st.integers(1, 4))
        ratios = tuple(data.draw(st.lists(st.integers(1, 5), min_size=world, max_size=world)))
        options = {
            "readers": data.draw(st.sampled_from([0, 1, 3])),
            "mode": data.draw(st.sampled_from(["resident", "streaming"])),
        }
        if name != "batch sampler":
            options |= {"global_batch_size": 12}
        loaders = [build(name, context=RunContext(rank, world, ratios=ratios), **options) for rank in range(world)]
        parts = []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(state))
            parts.append(take(loader, kill))
        steps = [sum(step, []) for step in zip(*parts, strict=True)]
        done += steps
        states = {json.dumps(loader.state_dict()) for loader in loaders}
        for loader in loaders:
            loader.close()
        assert len(states) == 1
        (state,) = states
    assert done == whole[name]


def take(loader, count):
    """Take some batches from where the loader stands up to epoch 1's end; return the counted rows of each."""
    found, epoch = [], loader.state_dict()["epoch"]
    while epoch < 2 and count != 0:
        for batch in loader.epoch(epoch):
            keys = batch.pick_keys
            valid = [True] * batch.size if batch.valid is None else batch.valid.tolist()
            picks = zip(keys.sample.tolist(), keys.repeat.tolist(), valid, strict=True)
            found.append([(epoch, s, r) for s, r, v in picks if v])
            if len(found) == count:
                return found
        epoch += 1
    return found


def test_a_count_of_nothing_takes_nothing():
    with build("uniform") as loader:
        state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 0)


def test_bucketed_batches_stay_when_the_global_batch_is_scaled(whole, caplog):
    with build("bucketed") as loader:
        iterator = iter(loader.epoch(0))
        next(iterator), next(iterator)
        state = loader.state_dict()
    with build("bucketed", batch_size=6, global_batch_on_resume="scale") as loader:
        loader.load_state_dict(state)
        assert loader.global_batch_size == 6
        rest = rows(loader, [0])
        assert "global batch of 6 instead of the saved 12" in caplog.text
        assert loader.state_dict()["order"] == state["order"]
    assert sum(rest, []) == sum(whole["bucketed"][2:7], [])
    assert [len(step) for step in rest] == [6] * 9 + [5]
    with build("bucketed", batch_size=6) as loader:
        loader.load_state_dict(state)
        assert loader.global_batch_size == 12
        assert rows(loader, [0]) == whole["bucketed"][2:7]


def test_the_first_epoch_is_the_samplers_own_and_it_is_not_advanced():
    generator = torch.Generator().manual_seed(7)
    before = generator.get_state()
    want = list(RandomSampler(range(N), generator=torch.Generator().manual_seed(7)))
    with Loader(Numbers(N), batch_size=10, drop_last=False, sampler=RandomSampler(range(N), generator=generator)) as it:
        assert sum(ids(it.epoch(0)), []) == want
        assert sum(ids(it.epoch(1)), []) != want
    assert torch.equal(generator.get_state(), before)


def test_a_batch_sampler_says_the_batches_of_all_ranks():
    batches = [[3, 1, 4], [15], [9, 2, 6, 5, 35]]
    with Loader(Numbers(N), batch_sampler=batches) as loader:
        assert ids(loader.epoch(0)) == batches
        assert (len(loader), loader.global_batch_size) == (3, 5)
    ranks = []
    for rank in range(2):
        with Loader(Numbers(N), batch_sampler=batches, context=RunContext(rank, 2)) as loader:
            found = [(batch["id"].tolist(), batch.weight) for batch in loader.epoch(0)]
            ranks.append(found)
    assert [len(part) for part in ranks] == [3, 3]
    for batch, (first, weight), (second, other) in zip(batches, *ranks, strict=True):
        counted = [s for part, w in ((first, weight), (second, other)) if w for s in part]
        assert counted == batch
    means = [np.mean(batch) for batch in batches]
    got = [(np.mean(a) * w + np.mean(b) * v) / 2 for (a, w), (b, v) in zip(*ranks, strict=True)]
    np.testing.assert_allclose(got, means)


def test_torchs_distributed_sampler_gets_its_epochs():
    with Loader(Numbers(N), batch_size=8, sampler=DistributedSampler(range(N), 1, 0, seed=3)) as loader:
        first, second = ids(loader.epoch(0)), ids(loader.epoch(1))
    want = DistributedSampler(range(N), 1, 0, seed=3)
    want.set_epoch(1)
    assert sum(second, []) == list(want)[: len(second) * 8]
    assert first != second


def test_weights_made_of_labels_balance_the_classes():
    class Labelled(Numbers):
        def deliver(self, stored, out):
            np.copyto(out["id"], stored["id"])
            np.copyto(out["label"], stored["id"] % 10 == 0)

    source = Labelled(1000)
    source.delivered = type(source.delivered).of(id=("int64", ()), label=("int64", ()))
    with Loader(source, batch_size=500, order="weighted", weights="inverse_frequency", num_draws=20_000) as loader:
        labels = torch.cat([batch["label"] for batch in loader.epoch(0)]).float()
    assert 0.45 <= labels.mean() <= 0.55
    torchs = WeightedRandomSampler([1 / 100 if i % 10 == 0 else 1 / 900 for i in range(1000)], 20_000)
    assert abs(np.mean([i % 10 == 0 for i in torchs]) - float(labels.mean())) < 0.03


@pytest.mark.parametrize(
    ("options", "key", "text"),
    [
        (
            {"sampler": SequentialSampler(range(N)), "augment": 2},
            "sampling.augment",
            "decides how often a sample comes",
        ),
        ({"sampler": SequentialSampler(range(N)), "shuffle": True}, "sampling.shuffle", "decides the order"),
        ({"sampler": SequentialSampler(range(N)), "order": "blocked"}, "sampling.order", "decides the order"),
        ({"sampler": [0, N]}, "sampling.sampler", f"{N}"),
        ({"sampler": [0, -1]}, "sampling.sampler", "-1"),
        ({"sampler": [0, 1.5]}, "sampling.sampler", "1.5"),
        ({"order": "weighted"}, "sampling.weights", "must be set"),
        ({"order": "weighted", "weights": np.zeros(N)}, "sampling.weights", "0"),
        ({"order": "weighted", "weights": np.ones(N - 1)}, "sampling.weights", f"{N - 1}"),
        ({"weights": np.ones(N)}, "sampling.weights", "an array was given, which means nothing with order=uniform"),
        ({"weights": "w.npy", "order": "weighted"}, "sampling.weights", "in Python give the array itself"),
        ({"lengths": np.ones(N)}, "sampling.lengths", "set order='bucketed'"),
        ({"order": "bucketed"}, "sampling.lengths", "does not say how long"),
        ({"order": "bucketed", "lengths": np.ones(5, dtype=int)}, "sampling.lengths", "5"),
        ({"augment": 0}, "sampling.augment", "at least 1"),
    ],
)
def test_what_does_not_fit_is_refused_at_build(options, key, text):
    with pytest.raises(ConfigError) as caught:
        Loader(Numbers(N), batch_size=4, **options)
    assert [problem.key for problem in caught.value.problems] == [key]
    assert text in str(caught.value)


def test_a_batch_sampler_excludes_what_it_decides():
    with pytest.raises(ConfigError) as caught:
        Loader(Numbers(N), batch_sampler=[[1]], batch_size=4, drop_last=True, shuffle=False)
    assert {problem.key for problem in caught.value.problems} == {
        "loader.batch_size",
        "sampling.drop_last",
        "sampling.shuffle",
    }
    with pytest.raises(ConfigError, match=r"loader.batch_size: must be given"):
        Loader(Numbers(N))


def test_another_order_is_refused_with_both_sides():
    with build("bucketed") as loader:
        state = loader.state_dict()
    with (
        build("blocked") as loader,
        pytest.raises(ResumeError, match=r"order saved: bucketed(.|\n)*order now: .*blocked"),
    ):
        loader.load_state_dict(state)
    with Loader(Numbers(N), batch_size=12, sampler=list(range(N))) as loader:
        state = loader.state_dict()
    with (
        Loader(Numbers(N), batch_size=12, sampler=list(reversed(range(N)))) as loader,
        pytest.raises(ResumeError, match="order saved: sampler"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize("epoch", [-1, 2**64, 1.5, "0"])
def test_what_is_no_epoch_is_refused(epoch):
    with build("uniform") as loader, pytest.raises(ValueError, match="epochs are"):
        loader.epoch(epoch)


def test_samples_pass_through_without_a_batch_axis():
    with Loader(Numbers(5), batch_size=None, shuffle=False) as loader:
        found = [(batch["id"].shape, batch["id"].item(), batch["values"].shape, batch.size) for batch in loader]
    assert found == [((), i, (3,), 1) for i in range(5)]


class Uneven:
    """Batches whose sizes change places from epoch to epoch."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 7

    def __iter__(self):
        sizes = np.roll([5, 12, 1, 9, 12, 3, 8], self.epoch)
        samples = np.random.default_rng(self.epoch).permutation(50)
        return iter([part.tolist() for part in np.split(samples, np.cumsum(sizes)[:-1])])


@pytest.mark.parametrize("stop", range(15))
def test_a_batch_sampler_of_uneven_batches_resumes_at_any_step(stop):
    with Loader(Numbers(50), batch_sampler=Uneven()) as loader:
        whole = ids(loader.epoch(0)) + ids(loader.epoch(1)) + ids(loader.epoch(2))
    with Loader(Numbers(50), batch_sampler=Uneven()) as loader:
        epoch, left = divmod(stop, 7)
        iterator = loader.epoch(epoch)
        for _ in range(left):
            next(iterator)
        state = loader.state_dict()
    with Loader(Numbers(50), batch_sampler=Uneven(), readers=0) as loader:
        loader.load_state_dict(state)
        rest = [step for e in range(epoch, 3) for step in ids(loader.epoch(e))]
    assert rest == whole[stop:]


class FromGlobals:
    """An order drawn from Python's own random numbers."""

    def __len__(self):
        return 64

    def __iter__(self):
        left = list(range(64))
        while left:
            yield left.pop(random.randrange(len(left)))


def test_a_sampler_that_draws_from_global_states_is_read_while_the_loop_does_not_draw():
    orders, drawn = [], []
    for readers in (0, 1, 2):
        random.seed(3)
        with Loader(Numbers(64), batch_size=4, sampler=FromGlobals(), readers=readers) as loader:
            orders.append([])
            for epoch in range(4):
                for batch in loader.epoch(epoch):
                    orders[-1] += batch["id"].tolist()
                    drawn.append(random.random())
    assert orders[0] == orders[1] == orders[2]
    random.seed(3)
    alone = [random.random() for _ in range(64)]
    assert drawn == alone * 3


def test_a_forked_child_reads_such_a_sampler():
    with Loader(Numbers(64), batch_size=4, sampler=FromGlobals(), readers=1) as loader:
        want = ids(loader.epoch(1))
        iterator = iter(loader.epoch(0))
        next(iterator)
        context = multiprocessing.get_context("fork")
        answers = context.Queue()
        child = context.Process(target=lambda: answers.put(ids(loader.epoch(1))))
        child.start()
        assert answers.get(timeout=HANG_S) == want
        child.join(HANG_S)


def test_weights_count_as_memory():
    with Loader(Numbers(N), batch_size=4) as loader:
        before = dict(loader.granted()).get("source", 0)
    with Loader(Numbers(N), batch_size=4, order="weighted", weights=np.ones(N)) as loader:
        assert dict(loader.granted())["source"] >= before + 8 * N


@pytest.mark.parametrize(("num_samples", "batch", "ratios"), [(43, 11, (6, 6, 2)), (60, 7, (1, 1)), (61, 6, (5, 1, 1))])
@pytest.mark.parametrize("scaled", [None, 5, 6, 8])
def test_no_rank_loses_a_row_of_a_short_step(num_samples, batch, ratios, scaled):
    """Shares by largest remainder are not steady: a rank's part of a short step may be the larger one."""
    whole, parts, state = [], [[] for _ in ratios], None
    with Loader(Numbers(num_samples), global_batch_size=batch, drop_last=False) as loader:
        whole = sum(ids(loader.epoch(0)), [])
        if scaled:
            next(iter(loader.epoch(0)))
            state, whole = loader.state_dict(), whole[batch:]
    for rank, part in enumerate(parts):
        options = {"global_batch_size": scaled or batch, "global_batch_on_resume": "scale", "drop_last": False}
        context = RunContext(rank, len(ratios), ratios=ratios)
        with Loader(Numbers(num_samples), context=context, **options) as loader:
            if state:
                loader.load_state_dict(state)
            for step in loader.epoch(0):
                part.append(step["id"][slice(None) if step.valid is None else step.valid].tolist())
    assert sum((sum(step, []) for step in zip(*parts, strict=True)), []) == whole


def test_a_state_that_cannot_be_continued_leaves_the_loader_as_it_was():
    with Loader(Numbers(N), batch_size=12, drop_last="pad") as loader:
        state = {**loader.state_dict(), "global_batch": 10**12}
        with pytest.raises(StagingError):
            loader.load_state_dict(state)
        assert len(ids(loader.epoch(0))) == 7
    with build("batch sampler") as loader:
        state = {**loader.state_dict(), "position": 5}
        with pytest.raises(ResumeError, match="position 5"):
            loader.load_state_dict(state)
