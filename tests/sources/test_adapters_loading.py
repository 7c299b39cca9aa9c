"""Users' datasets through a loader: resident and streaming, with and without readers, errors on the way."""

import threading

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from flodl_pipe.errors import ChangedError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.adapters import adapt


class Rows:
    """Sample ``i`` is ``{"x": [i, i], "y": i}``; notes who is inside."""

    def __init__(self, n=100, bad=None, error=KeyError):
        self.n, self.bad, self.error = n, bad, error
        self.inside, self.most = 0, 0
        self.lock = threading.Lock()

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            if index == self.bad:
                raise self.error("the user's own")
            return {"x": np.full(2, index, np.float32), "y": index}
        finally:
            with self.lock:
                self.inside -= 1


def labels(batches):
    found = []
    for batch in batches:
        assert torch.equal(batch["x"], batch["y"][:, None].expand(-1, 2).float())
        found += batch["y"].tolist()
    return found


@pytest.mark.parametrize("mode", ["streaming", "resident"])
@pytest.mark.parametrize("readers", [0, 2])
def test_every_sample_comes_once_an_epoch_in_the_same_order(mode, readers):
    dataset = Rows()
    with Loader(adapt(dataset), batch_size=8, mode=mode, readers=readers, drop_last=False) as loader:
        found = [labels(loader.epoch(epoch)) for epoch in (0, 1, 0)]
    assert sorted(found[0]) == sorted(found[1]) == list(range(100))
    assert found[0] != found[1]
    assert found[2] == found[0]
    assert dataset.most == 1
    with Loader(adapt(Rows(), thread_safe=True), batch_size=8, mode="streaming", drop_last=False) as loader:
        assert labels(loader.epoch(0)) == found[0]


def test_a_tensor_dataset_unpacks_as_with_torch():
    x, y = torch.randn(10, 3), torch.arange(10)
    with Loader(adapt(TensorDataset(x, y)), batch_size=4, shuffle=False, names=["input", "target"]) as loader:
        for number, (inputs, targets) in enumerate(loader):
            assert torch.equal(inputs, x[4 * number : 4 * number + 4])
            assert torch.equal(targets, y[4 * number : 4 * number + 4])
        assert loader.names == ("input", "target")


def test_complex_and_narrow_types_arrive_as_they_are():
    data = [{"c": torch.complex(torch.tensor(float(i)), torch.tensor(1.0)), "b": np.bool_(i % 2)} for i in range(6)]
    with Loader(adapt(data), batch_size=3, shuffle=False) as loader:
        batch = next(iter(loader))
    assert batch["c"].tolist() == [1j, 1 + 1j, 2 + 1j]
    assert batch["b"].tolist() == [False, True, False]


@pytest.mark.parametrize("readers", [0, 1])
@pytest.mark.parametrize("error", [KeyError, IndexError, RuntimeError])
def test_the_datasets_own_error_reaches_the_loop_with_its_traceback(readers, error):
    with Loader(adapt(Rows(bad=21, error=error)), batch_size=8, shuffle=False, readers=readers) as loader:
        found = []
        with pytest.raises(error, match="the user's own") as caught:
            for batch in loader:
                found += batch["y"].tolist()
    assert found == list(range(16))
    assert any("while reading sample 21 of" in note for note in caught.value.__notes__)
    assert any(
        entry.path.name == "test_adapters_loading.py" and entry.name == "__getitem__" for entry in caught.traceback
    )


def test_a_dataset_that_grows_between_epochs_is_an_error():
    dataset = Rows()
    with Loader(adapt(dataset), batch_size=8) as loader:
        labels(loader.epoch(0))
        dataset.n = 101
        with pytest.raises(ChangedError, match="was 100 when the loader was built and is 101 now"):
            loader.epoch(1)


def test_an_interrupted_pass_continues_and_another_dataset_is_refused():
    with Loader(adapt(Rows()), batch_size=8, drop_last=False) as loader:
        whole = labels(loader.epoch(0))
        part = loader.epoch(0)
        first = [label for _ in range(3) for label in next(part)["y"].tolist()]
        state = loader.state_dict()
    with Loader(adapt(Rows()), batch_size=8, drop_last=False) as loader:
        loader.load_state_dict(state)
        assert first + labels(loader) == whole
    with Loader(adapt(Rows(n=99)), batch_size=8, drop_last=False) as loader, pytest.raises(Exception, match="dataset"):
        loader.load_state_dict(state)
