"""What iter(), epoch() and set_epoch() do, in every order a training loop may call them."""

import gc
import json
import logging

import numpy as np
import pytest
import torch

from flodl_pipe.errors import LoaderError, SourceError
from flodl_pipe.loader.loader import Loader
from tests.loader.sources import Numbers, ids


@pytest.fixture
def loader():
    with Loader(Numbers(40), batch_size=4, seed=3) as loader:
        yield loader


@pytest.fixture
def epochs():
    with Loader(Numbers(40), batch_size=4, seed=3) as loader:
        return [ids(loader.epoch(epoch)) for epoch in range(4)]


def test_passes_follow_each_other_without_set_epoch(loader, epochs):
    assert [ids(loader), ids(loader), ids(loader)] == epochs[:3]


def test_epoch_n_can_be_asked_for_in_any_order(loader, epochs):
    assert [ids(loader.epoch(epoch)) for epoch in (2, 0, 2, 1)] == [epochs[epoch] for epoch in (2, 0, 2, 1)]
    assert ids(loader) == epochs[2]  # after epoch 1 the next one


def test_set_epoch_wins(loader, epochs):
    ids(loader)
    loader.set_epoch(0)
    assert ids(loader) == epochs[0]


def test_a_pass_that_was_broken_off_starts_over(loader, epochs):
    for _ in range(5):
        for _ in loader:
            break
    assert ids(loader) == epochs[0]
    assert ids(loader) == epochs[1]


def test_a_second_iterator_ends_the_first_aloud(loader, epochs, caplog):
    first = iter(loader)
    next(first)
    with caplog.at_level(logging.WARNING, logger="flodl_pipe"):
        second = iter(loader)
    assert "a second iterator" in caplog.text
    with pytest.raises(LoaderError, match="a second iterator over this loader ended this one"):
        next(first)
    assert ids(second) == epochs[0]


def test_an_exhausted_iterator_stays_exhausted(loader):
    iterator = iter(loader)
    ids(iterator)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


def test_an_iterator_keeps_its_loader(epochs):
    assert ids(Loader(Numbers(40), batch_size=4, seed=3)) == epochs[0]
    iterator = iter(Loader(Numbers(40), batch_size=4, seed=3))
    gc.collect()
    assert ids(iterator) == epochs[0]


def test_an_iterator_is_its_own_iterator(loader):
    iterator = iter(loader)
    assert iter(iterator) is iterator


@pytest.mark.parametrize("call", ["epoch", "set_epoch"])
@pytest.mark.parametrize(
    ("epoch", "says"),
    [(-1, "got -1"), (2**64, "got 18446744073709551616"), (1.5, "integers.* got 1.5"), ("1", "got '1'")],
)
def test_what_is_no_epoch_is_refused_and_changes_nothing(loader, epochs, call, epoch, says):
    before = loader.state_dict()
    with pytest.raises(ValueError, match=says):
        getattr(loader, call)(epoch)
    assert loader.state_dict() == before
    assert ids(loader) == epochs[0]


@pytest.mark.parametrize("epoch", [np.int64(2), torch.tensor(2), np.uint8(2)])
def test_any_kind_of_integer_is_an_epoch(loader, epochs, epoch):
    assert ids(loader.epoch(epoch)) == epochs[2]
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 2


def test_a_bool_is_saved_as_a_number(loader):
    loader.set_epoch(True)
    loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert type(loader.state_dict()["epoch"]) is int


@pytest.mark.parametrize("source", ["tokens", None, 3, Numbers])
def test_what_is_no_source_is_refused(source):
    with pytest.raises(LoaderError, match=r"what is taken|open files with|an object of it"):
        Loader(source, batch_size=2)


def test_a_dataset_is_adapted():
    dataset = torch.utils.data.TensorDataset(torch.arange(20).float().reshape(10, 2), torch.arange(10))
    with Loader(dataset, batch_size=4, drop_last=False) as loader:
        rows = [(x, y) for x, y in loader]
    assert sorted(torch.cat([y for _, y in rows]).tolist()) == list(range(10))
    assert all((x[:, 0] == 2 * y).all() for x, y in rows)


def test_a_source_that_changes_its_samples_is_refused_at_the_first_batch():
    class Impure(Numbers):
        def read_into(self, indices, rows, out):
            super().read_into(indices, rows, out)
            out["values"][rows] += np.uint8(self.reads)

    with (
        Loader(Impure(20), batch_size=4) as loader,
        pytest.raises(SourceError, match="is not the same when it is read again"),
    ):
        next(iter(loader))
    with Loader(Impure(20), batch_size=4, check_purity=False) as loader:
        assert len(list(loader)) == 5


def test_a_closed_loader_says_so(loader):
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    with pytest.raises(LoaderError, match="closed"):
        next(iterator)
    with pytest.raises(LoaderError, match="was closed; build a new one"):
        iter(loader)


def test_counts_are_what_iteration_gives(loader):
    assert len(loader) == loader.num_batches == len(ids(loader)) == 10
    assert (loader.num_samples, loader.batch_size, loader.global_batch_size) == (40, 4, 4)
    assert isinstance(loader.dataset, Numbers)
    assert loader.device.type == "cpu"
    assert not loader.pin_memory
    statistics = loader.statistics()
    assert (statistics.num_steps, statistics.num_samples) == (10, 40)
    assert statistics.stored_bytes == 40 * 11
    assert statistics.delivered_bytes == 40 * 20


def test_the_loader_describes_itself(loader):
    assert repr(loader) == "Loader(Numbers, 40 samples, batch 4, 10 batches an epoch, resident)"
    assert repr(loader) == "Loader(Numbers, 40 samples, batch 4, 10 batches an epoch, resident)"


def test_a_pass_whose_last_batch_was_taken_is_finished(loader, epochs, caplog):
    # As loops do that count their steps: they never ask for one more, and keep the iterator until the next.
    iterators = []
    for epoch in range(3):
        iterators.append(iter(loader))
        assert [next(iterators[-1])["id"].tolist() for _ in range(len(loader))] == epochs[epoch]
    assert "iterator" not in caplog.text
    assert [list(iterator) for iterator in iterators] == [[], [], []]
