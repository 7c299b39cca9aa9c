"""Skipping on real ranks: one ledger, one limit and one stream for all of them, as one process would have."""

import json
import os

import numpy as np
import pytest
from torch import distributed

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.cluster.world import World
from flodl_pipe.errors import SourceError
from flodl_pipe.loader.loader import Loader
from tests.cluster.ranks import results
from tests.loader.waiting import HANG_S

N, BATCH = 22, 6
BAD = (2, 8, 11, 17)
WAYS = ({"mode": "streaming"}, {"mode": "streaming", "sample_cache": False, "readers": 0}, {"mode": "resident"})


class Numbers:
    """Samples that are their own numbers; notes what was tried."""

    def __init__(self, bad=BAD):
        self.bad = frozenset(bad)
        self.tried = []

    def __len__(self):
        return N

    def __getitem__(self, index):
        self.tried.append(index)
        if index in self.bad:
            raise OSError(f"record {index} is torn")
        return {"x": np.full(3, index, dtype=np.int64)}


def context():
    rank = distributed.get_rank()
    return RunContext(rank, distributed.get_world_size(), world=World.join("one", rank, HANG_S))


def loader_of(source, **options):
    how = {"global_batch_size": BATCH, "seed": 5, "drop_last": False, "on_error": "skip", "check_purity": False}
    return Loader(source, **{**how, "mode": "streaming", "device": "cpu", **options})


def rows_of(batch):
    """Return each row of a batch: its sample, whether it counts, and its value where it does."""
    valid = [True] * len(batch.pick_keys.sample) if batch.valid is None else batch.valid.tolist()
    values = batch["x"][:, 0].tolist()
    samples = batch.pick_keys.sample.tolist()
    return [
        (sample, is_valid, value if is_valid else -1)
        for sample, is_valid, value in zip(samples, valid, values, strict=True)
    ]


def epoch_of(loader, epoch):
    return [rows_of(batch) for batch in loader.epoch(epoch)]


def joined(by_rank):
    """Return what all ranks have got, step by step, as one process would get it."""
    return [[row for rank in step for row in rank] for step in zip(*by_rank, strict=True)]


def error_of(call):
    try:
        call()
    except SourceError as error:
        return str(error)
    return None


def listed(state):
    return [sample for sample, _ in json.loads(state["skipped"] or "[]")]


def skipped_in(steps):
    return {sample for step in steps for sample, valid, _ in step if not valid}


def two_epochs(max_skipped, ways, bad_by_rank):
    found = []
    for way in ways:
        source = Numbers(bad_by_rank[distributed.get_rank()])
        with loader_of(source, context=context(), max_skipped=max_skipped, **way) as loader:
            first = epoch_of(loader, 0)
            distributed.barrier()
            tried = len(source.tried)
            batches = list(loader.epoch(1))
            own = [sample for sample in source.tried[tried:] if sample in BAD]
            found.append((first, loader.state_dict(), loader.skipped, list(map(rows_of, batches)), own))
            found[-1] += (listed(batches[0].cursor),)
            distributed.barrier()
    return found


def alone(epoch, bad=BAD):
    with loader_of(Numbers(bad), max_skipped=10) as loader:
        return epoch_of(loader, epoch)


@pytest.fixture(scope="module")
def shared():
    return list(zip(*results(two_epochs, 2, 10, WAYS, (BAD, BAD)), strict=True))


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_all_ranks_list_what_any_has_skipped(shared, way):
    met = [skipped_in(first) for first, *_ in shared[way]]
    assert all(met)
    assert met[0] | met[1] == set(BAD)
    for _, state, skipped, _, _, cursor in shared[way]:
        assert listed(state) == list(BAD)
        assert skipped == tuple((sample, f"OSError: record {sample} is torn") for sample in BAD)
        assert cursor == list(BAD)
    assert shared[way][0][1] == shared[way][1][1]


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_ranks_give_the_stream_of_one_process(shared, way):
    assert joined([first for first, *_ in shared[way]]) == alone(0)
    assert joined([second for _, _, _, second, *_ in shared[way]]) == alone(1)


@pytest.mark.parametrize("way", [0, 1])  # a resident set tries all, and is given up
def test_what_one_rank_has_skipped_no_rank_tries_again(shared, way):
    moved = [skipped_in(second) for _, _, _, second, *_ in shared[way]]
    before = [skipped_in(first) for first, *_ in shared[way]]
    assert moved != before
    assert [own for *_, own, _ in shared[way]] == [[], []]


@pytest.mark.full
def test_a_sample_that_one_rank_alone_cannot_read_is_skipped_by_whoever_gets_it_later():
    bad = (2, 17)
    for way in zip(*results(two_epochs, 2, 10, WAYS, ((), bad)), strict=True):
        (first, state, skipped, second, *_), (other_first, other_state, other_skipped, other_second, *_) = way
        assert (skipped_in(first), skipped_in(other_first)) == (set(), set(bad))
        assert skipped_in(second)
        assert joined([second, other_second]) == alone(1, bad)
        assert (state, skipped) == (other_state, other_skipped)


def beyond_the_limit():
    with loader_of(Numbers(), context=context(), max_skipped=3) as loader:
        said = [error_of(lambda: epoch_of(loader, 0))]
        distributed.barrier()
        said.append(error_of(loader.state_dict))
        said.append(error_of(lambda: epoch_of(loader, 1)))
        return said, loader.state_dict(), [sample for sample, _ in loader.skipped]


def test_one_limit_counts_for_all_ranks():
    with loader_of(Numbers(), max_skipped=3) as loader, pytest.raises(SourceError) as caught:
        epoch_of(loader, 0)
    begin = str(caught.value).partition(";")[0]
    assert begin == "4 samples could not be read, and source.max_skipped is 3"
    found = results(beyond_the_limit, 2)
    assert any(said[0] for said, *_ in found)
    for (first, saved, next_pass), state, skipped in found:
        # Who was told by its pass may save; who was not is told when it saves, and both when they begin another.
        assert (first is None) == (saved is not None)
        for said in filter(None, (first, saved, next_pass)):
            assert said.startswith(begin)
        assert next_pass is not None
        assert listed(state) == skipped
        assert len(skipped) == 3
        assert set(skipped) < set(BAD)
    assert found[0][1:] == found[1][1:]


def continue_from_two_states(global_batch):
    rank = distributed.get_rank()
    with (
        loader_of(Numbers(()), context=context(), max_skipped=3) as loader,
        loader_of(Numbers((19,)), context=context(), max_skipped=3) as other,
    ):
        state = {**loader.state_dict(), "global_batch": global_batch}
        state["skipped"] = json.dumps([[1, "of all"], [(7, 9)[rank], "of one"]])
        loader.load_state_dict(state)
        distributed.barrier()
        invalid = [sample for step in epoch_of(loader, 0) for sample, valid, _ in step if not valid]
        epoch_of(other, 0)
        distributed.barrier()
        return loader.skipped, loader.global_batch_size, invalid, other.skipped


@pytest.mark.full
@pytest.mark.parametrize("global_batch", [BATCH, 8])
def test_states_that_list_different_samples_become_one_ledger(global_batch):
    found = results(continue_from_two_states, 2, global_batch)
    for skipped, size, _, others in found:
        assert skipped == ((1, "of all"), (7, "of one"), (9, "of one"))
        assert size == global_batch
        assert others == ((19, "OSError: record 19 is torn"),)
    assert sorted(sample for _, _, invalid, _ in found for sample in invalid) == [1, 7, 9]


def only_where_it_is_asked_for(asked):
    world = context().world
    world.bulletin = asked.append
    with loader_of(Numbers(()), context=context(), on_error="raise") as loader:
        epoch_of(loader, 0)
    return asked


@pytest.mark.full
def test_nothing_is_shared_where_faults_are_errors():
    assert results(only_where_it_is_asked_for, 2, []) == [[], []]


def in_a_child():
    # Nothing is read by another thread: a child that is forked while one writes a warning waits for stderr forever.
    with loader_of(Numbers(), context=context(), max_skipped=10, sample_cache=False, readers=0) as loader:
        batches = iter(loader.epoch(0))
        next(batches)
        distributed.barrier()
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            try:
                own = sorted(sample for step in epoch_of(loader, 0) for sample, valid, _ in step if not valid)
                os.write(writes, json.dumps([own, listed(loader.state_dict())]).encode())
            finally:
                os._exit(0)
        os.close(writes)
        with os.fdopen(reads) as told:
            said = told.read()
        os.waitpid(child, 0)
        own = sorted(sample for step in epoch_of(loader, 0) for sample, valid, _ in step if not valid)
        distributed.barrier()
        return json.loads(said), own, listed(loader.state_dict())


@pytest.mark.full
def test_a_forked_child_skips_by_itself():
    for (child_skips, child_lists), own, every in results(in_a_child, 2):
        assert child_skips == own
        assert set(own) <= set(child_lists)
        assert every == list(BAD)
