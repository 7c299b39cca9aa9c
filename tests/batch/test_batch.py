"""What a training loop can do with a batch."""

import copy
import io
import json
import pickle

import numpy as np
import pytest
import torch
from torch.utils import _pytree

from flodl_pipe.batch.batch import Batch
from flodl_pipe.keyed.pick_keys import PickKeys


class Place:
    """Stands for what a loader puts into a batch: asked for the state only when somebody wants it."""

    def state(self):
        return {"epoch": 3, "position": 8}


@pytest.fixture
def batch():
    keys = PickKeys(np.array([7, 5, 9]), np.zeros(3, dtype=np.int64), epoch=1, seed=42)
    tensors = (torch.arange(6).reshape(3, 2), torch.tensor([0.5, 1.5, 2.5]))
    return Batch(("input", "target"), tensors, pick_keys=keys, weight=0.75, cursor=Place())


def test_it_unpacks_into_tensors_in_field_order(batch):
    x, y = batch
    assert x is batch["input"]
    assert y is batch["target"]


def test_iterating_gives_tensors_not_names(batch):
    assert [type(item) for item in batch] == [torch.Tensor, torch.Tensor]


def test_it_is_indexed_by_place_and_by_name(batch):
    assert batch[0] is batch["input"]
    assert batch[-1] is batch["target"]


def test_a_place_outside_is_an_index_error(batch):
    with pytest.raises(IndexError):
        batch[2]


def test_an_unknown_name_is_refused_with_the_known_ones(batch):
    with pytest.raises(KeyError, match="no field 'image'; this batch has input, target"):
        batch["image"]


def test_it_passes_as_keyword_arguments(batch):
    def model(*, target, **rest):
        return rest["input"], target

    assert model(**batch) == (batch[0], batch[1])
    assert dict(batch.items()).keys() == {"input", "target"}


def test_names_keys_values_and_items_agree(batch):
    assert batch.names == batch.keys() == ("input", "target")
    assert [value is batch[name] for (name, _), value in zip(batch.items(), batch.values(), strict=True)] == [True] * 2


def test_it_counts_fields_and_rows(batch):
    assert len(batch) == 2
    assert batch.size == 3


def test_it_knows_which_fields_it_has(batch):
    assert batch.has("target")
    assert "target" in batch
    assert not batch.has("image")
    assert "image" not in batch


def test_a_field_is_got_or_its_default(batch):
    assert batch.get("target") is batch["target"]
    assert batch.get("label") is None
    assert batch.get("label", 3) == 3


def test_other_fields_come_with_what_belongs_to_the_rows(batch):
    other = batch.with_fields(("a",), (torch.zeros(3),))
    assert other.names == ("a",)
    assert (other.pick_keys, other.weight, other.cursor) == (batch.pick_keys, batch.weight, batch.cursor)
    with pytest.raises(ValueError, match="a name of its own"):
        batch.with_fields(("a", "a"), (torch.zeros(3), torch.ones(3)))


def test_it_shows_its_fields(batch):
    assert repr(batch) == "Batch(input: int64 (3, 2), target: float32 (3,))"


def test_the_cursor_is_a_plain_dict_or_none(batch):
    assert json.loads(json.dumps(batch.cursor)) == {"epoch": 3, "position": 8}
    assert Batch(batch.names, batch.values(), pick_keys=batch.pick_keys).cursor is None


def test_moving_it_takes_everything_along(batch):
    batch.valid = torch.tensor([True, True, False])
    moved = batch.to("meta")
    assert [tensor.device.type for tensor in (*moved, moved.valid)] == ["meta"] * 3
    assert (moved.names, moved.size, moved.weight, moved.cursor) == (batch.names, 3, 0.75, batch.cursor)
    assert batch[0].device.type == "cpu"


def test_tree_functions_map_over_its_tensors(batch):
    doubled = _pytree.tree_map(lambda tensor: tensor * 2, {"batch": batch})["batch"]
    assert isinstance(doubled, Batch)
    assert doubled["target"].tolist() == [1.0, 3.0, 5.0]
    assert (doubled.names, doubled.weight, doubled.cursor) == (batch.names, batch.weight, batch.cursor)
    assert doubled.pick_keys is batch.pick_keys


def test_a_batch_made_by_hand_survives_pickling_and_torch_save(batch):
    bare = Batch(batch.names, batch.values(), pick_keys=batch.pick_keys, weight=0.5, valid=torch.tensor([True] * 3))
    file = io.BytesIO()
    torch.save(bare, file)
    file.seek(0)
    for again in (pickle.loads(pickle.dumps(bare)), torch.load(file, weights_only=False)):
        assert again.names == bare.names
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(again, bare, strict=True))
        assert (again.weight, again.valid.tolist(), again.pick_keys.sample.tolist()) == (0.5, [True] * 3, [7, 5, 9])


def test_its_tensors_may_be_changed_in_place(batch):
    batch["target"].add_(1)
    assert batch[1].tolist() == [1.5, 2.5, 3.5]


class Counting:
    """An origin that counts what it is asked for."""

    def __init__(self):
        self.made = []

    def pick_keys(self, place):
        self.made.append(("keys", place))
        return PickKeys(np.arange(2) + place, np.zeros(2, dtype=np.int64), 3, 42)

    def cursor(self, place):
        self.made.append(("cursor", place))
        return Place()


def delivered(origin):
    return Batch.of_origin(("x",), [(torch.ones(2),), (torch.zeros(2),)], origin, 0.5)


def test_keys_and_cursor_of_an_origin_are_made_once_and_when_asked_for():
    origin = Counting()
    _, batch = delivered(origin)
    assert (batch.weight, batch.valid, batch.names) == (0.5, None, ("x",))
    assert origin.made == []
    assert batch.size == 2
    assert batch.pick_keys is batch.pick_keys
    assert batch.pick_keys.sample.tolist() == [1, 2]
    assert batch.cursor == batch.cursor == Place().state()
    assert origin.made == [("keys", 1), ("cursor", 1)]


@pytest.mark.parametrize(
    "again",
    [
        lambda batch: pickle.loads(pickle.dumps(batch)),
        copy.copy,
        copy.deepcopy,
        lambda batch: batch.to("cpu"),
        lambda batch: batch.with_fields(("y",), (torch.ones(2),)),
        lambda batch: _pytree.tree_map(torch.clone, batch),
    ],
)
def test_a_batch_of_an_origin_takes_keys_and_cursor_along(again):
    batch = again(delivered(Counting())[1])
    assert batch.pick_keys.sample.tolist() == [1, 2]
    assert batch.cursor == Place().state()
    assert batch.weight == 0.5
