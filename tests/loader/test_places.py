"""``where`` and ``what``: the order read in both directions, checked against what is delivered."""

import numpy as np
import pytest

from flodl_pipe import Loader
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import LoaderError
from tests.loader.sources import Numbers


@pytest.mark.parametrize("drop_last", [True, False, "pad"])
@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": False}, {"augment": 3}, {"order": "blocked", "block_samples": 16}, {"order": "bucketed"}],
    ids=str,
)
@pytest.mark.parametrize("ratios", [(1,), (3, 1, 2)])
def test_where_and_what_agree_with_what_is_delivered(drop_last, options, ratios):
    world = len(ratios)
    if options.get("order") == "bucketed":
        options = {**options, "lengths": np.arange(53) % 17, "pool_batches": 2}
    loaders = [
        Loader(
            Numbers(53),
            batch_size=12 // world,
            drop_last=drop_last,
            context=RunContext(rank, world, ratios=ratios),
            **options,
        )
        for rank in range(world)
    ]
    seen = set()
    for rank, loader in enumerate(loaders):
        for step, batch in enumerate(loader.epoch(2)):
            rows = loaders[0].what(2, step)
            mine = rows.rank == rank
            assert rows.sample[mine].tolist() == batch.pick_keys.sample.tolist()
            assert rows.repeat[mine].tolist() == batch.pick_keys.repeat.tolist()
            assert rows.row[mine].tolist() == list(range(batch.size))
            valid = np.ones(batch.size, dtype=bool) if batch.valid is None else batch.valid.numpy()
            assert rows.valid[mine].tolist() == valid.tolist()
            for row in np.flatnonzero(valid).tolist():
                sample, repeat = int(batch.pick_keys.sample[row]), int(batch.pick_keys.repeat[row])
                assert loader.where(sample, 2, repeat) == (step, rank, row)
                seen.add((sample, repeat))
    augment = options.get("augment", 1)
    left_out = [loaders[0].where(s, 2, r) for s in range(53) for r in range(augment) if (s, r) not in seen]
    assert left_out == [None] * (53 * augment - len(seen))
    assert bool(left_out) == (drop_last is True and 53 * augment % loaders[0].global_batch_size != 0)
    for loader in loaders:
        loader.close()


def test_nothing_is_read():
    source = Numbers(10**6)
    with Loader(source, batch_size=32) as loader:
        place = loader.where(123_456, 7)
        assert 123_456 in loader.what(7, place.step).sample
    assert source.reads == 0


@pytest.mark.parametrize(
    ("sample", "repeat", "text"), [(10, 0, "samples are 0 .. 9, got 10"), (3, 2, "repeats 0 .. 1")]
)
def test_what_is_not_there_is_refused(sample, repeat, text):
    with Loader(Numbers(10), batch_size=2, augment=2) as loader:
        with pytest.raises(IndexError, match=text):
            loader.where(sample, 0, repeat)
        with pytest.raises(IndexError, match=r"steps 0 \.\. 9, got 10"):
            loader.what(0, 10)


def test_draws_have_no_one_place():
    with Loader(Numbers(10), batch_size=2, order="weighted", weights=np.arange(10)) as loader:
        with pytest.raises(LoaderError, match="at several positions of an epoch or at none"):
            loader.where(3, 0)
        assert len(loader.what(0, 1).sample) == 2


@pytest.mark.parametrize("arguments", [(1.5, 0), ("a", 0), (True, 0), (5, -1), (5, 0, 0.5), (5, 2**64)])
def test_places_are_asked_for_by_integers(arguments):
    with Loader(Numbers(10), batch_size=2) as loader:
        with pytest.raises(ValueError, match=r"must be an integer|counted from 0"):
            loader.where(*arguments)
        with pytest.raises(ValueError, match=r"must be an integer|counted from 0"):
            loader.what(-1, 0)
        with pytest.raises(ValueError, match="must be an integer"):
            loader.what(0, 1.5)
        assert loader.where(np.int64(5), 0) == loader.where(5, 0)
