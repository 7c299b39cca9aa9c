"""Collation by name: what stack, pad and ragged make, what they refuse, and that their tensors are nobody else's.

White box: torch's own walk over trees is called, as its tools do, by the name that it has within torch.
"""

import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch.utils.data import DataLoader, default_collate

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import ConfigError, TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.sampling.collate import Collate, make_collate, pass_through
from flodl_pipe.sampling.collate_pad import PadCollate

RAGGED = SampleSpec((Field("ids", "int64", (), True), Field("label", "int64")))


def ragged(*rows, dtype="int64"):
    return Ragged.of([np.asarray(row, dtype=dtype) for row in rows])


def collated(how, rows, **options):
    names, tensors = make_collate(how, **options)(rows)
    assert len(names) == len(tensors) == len(set(names))
    return dict(zip(names, tensors, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    rows=npst.arrays(
        dtype=st.sampled_from(["bool", "uint8", "int16", "int64", "float32", "float64", "complex64"]),
        shape=npst.array_shapes(min_dims=1, max_dims=4, max_side=5),
        elements={"allow_nan": False},
    )
)
def test_stack_equals_torchs_default_collate(rows):
    wanted = default_collate([torch.from_numpy(row) if row.ndim else row for row in map(np.array, rows)])
    found = collated("stack", {"x": rows})["x"]
    assert found.dtype == wanted.dtype
    assert torch.equal(found, wanted)


def test_tensors_share_memory_with_nothing():
    fixed, ids = np.zeros((2, 3)), ragged([1, 2], [3])
    for how in ("stack", "pad", "ragged"):
        rows = {"x": fixed, "y": fixed} if how == "stack" else {"x": fixed, "ids": ids, "kinds": ids}
        tensors = [t.values() if t.is_nested else t for t in collated(how, rows).values()]
        assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)
        for tensor in tensors:
            tensor.fill_(9)
        assert not fixed.any()
        assert ids.values.tolist() == [1, 2, 3]


def test_strided_rows_are_stacked():
    rows = np.arange(24).reshape(2, 3, 4)[:, ::2, 1:]
    found = collated("stack", {"x": rows})["x"]
    assert found.is_contiguous()
    np.testing.assert_array_equal(found, rows)


def test_a_ragged_field_under_stack_is_refused_at_build_with_the_remedy():
    with pytest.raises(
        ConfigError, match=r"loader.collate: is 'stack'.*field 'ids' is ragged: ids int64 \(\*\); .*=pad"
    ):
        make_collate("stack").check(RAGGED)
    make_collate("stack").check(SampleSpec.of(x=("int64", (3,))))


def test_ragged_rows_under_stack_are_refused_with_field_both_shapes_and_remedy():
    text = r"field 'ids' .*row 0 of the batch has shape \(2, 3\) and row 2 has shape \(1, 3\).*loader.collate=pad"
    with pytest.raises(TransformError, match=text):
        make_collate("stack")({"ids": ragged(np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((1, 3)))})
    with pytest.raises(TransformError, match=r"field 'ids' is ragged.*loader.collate=pad"):
        make_collate("stack")({"ids": ragged([1], [2])})


def test_ragged_makes_jagged_nested_tensors_and_stacks_the_rest():
    rows = {"ids": ragged([1, 2], [], [3, 4, 5]), "label": np.arange(3), "x": ragged(*np.zeros((3, 2, 4)))}
    found = collated("ragged", rows)
    assert list(found) == ["ids", "label", "x"]
    assert [row.tolist() for row in found["ids"].unbind()] == [[1, 2], [], [3, 4, 5]]
    assert found["ids"].layout is torch.jagged
    assert found["ids"].dtype == torch.int64
    assert found["label"].tolist() == [0, 1, 2]
    assert [tuple(row.shape) for row in found["x"].unbind()] == [(2, 4)] * 3
    make_collate("ragged").check(RAGGED)
    assert make_collate("ragged").output(RAGGED) == RAGGED


def test_nested_fields_of_equal_lengths_can_be_added():
    found = collated("ragged", {"ids": ragged([1, 2], [3]), "kinds": ragged([5, 5], [6]), "other": ragged([1], [2, 3])})
    assert (found["ids"] + found["kinds"]).values().tolist() == [6, 7, 9]
    with pytest.raises(RuntimeError):
        found["ids"] + found["other"]


def test_gradients_flow_to_and_through_nested_tensors():
    found = collated("ragged", {"ids": ragged([1, 2], [3])})
    embedding = torch.nn.Embedding(5, 4)
    out = embedding(found["ids"])
    out.values().sum().backward()
    assert embedding.weight.grad.sum(1).tolist() == [0, 4, 4, 4, 0]


def test_a_batch_holds_nested_tensors():
    names, tensors = make_collate("ragged")({"ids": ragged([1, 2], [3]), "label": np.arange(2)})
    index = np.arange(2, dtype=np.int64)
    batch = Batch(names, tensors, pick_keys=PickKeys(index, index, 0, 0))
    assert "ids" in repr(batch)
    doubled = torch.utils._pytree.tree_map(lambda tensor: tensor * 2, batch)
    assert [row.tolist() for row in doubled["ids"].unbind()] == [[2, 4], [6]]
    moved = batch.to("meta")
    assert moved["ids"].device.type == "meta"
    assert moved["ids"].is_nested
    again = pickle.loads(pickle.dumps(batch["ids"]))
    assert [row.tolist() for row in again.unbind()] == [[1, 2], [3]]


@pytest.mark.parametrize("how", ["stack", "pad", "ragged"])
def test_a_collation_pickles_and_says_what_it_is(how):
    collate = make_collate(how)
    assert isinstance(collate, Collate)
    assert pickle.loads(pickle.dumps(collate)).tag == collate.tag
    assert collate.tag.startswith(how)


def test_a_collate_object_is_taken_as_it_is():
    collate = PadCollate(multiple=1)
    assert make_collate(collate) is collate


@pytest.mark.parametrize(
    ("how", "options", "text"),
    [
        ("pat", {}, "loader.collate: must be 'stack', 'pad', 'ragged' or a function of the list of samples, got 'pat'"),
        (3, {}, "loader.collate: must be .* got 3"),
        (PadCollate, {}, r"is the class PadCollate, not an object of it; give PadCollate\(...\)"),
        ("stack", {"pad_id": 5}, "loader.pad_id: is 5, which only collate: pad looks at, and collate is 'stack'"),
        (default_collate, {"pad_length": 5}, "loader.pad_length: is 5, .* collate is a collate function"),
        ("pad", {"pad_id": 0.5}, "loader.pad_id: must be an integer, got 0.5"),
        ("pad", {"pad_multiple": 0}, "loader.pad_multiple: must be an integer of at least 1, got 0"),
        ("pad", {"pad_length": True}, "loader.pad_length: must be an integer of at least 1, or null, got True"),
    ],
)
def test_what_is_no_collation_is_refused(how, options, text):
    with pytest.raises(ConfigError, match=text):
        make_collate(how, **options)


def test_one_sample_passes_through_without_a_batch_axis():
    names, tensors = pass_through({"x": np.ones((1, 2, 3), np.uint8), "y": np.array([7]), "ids": ragged([4, 5, 6])})
    assert names == ("x", "y", "ids")
    assert [(tuple(t.shape), t.dtype) for t in tensors] == [
        ((2, 3), torch.uint8),
        ((), torch.int64),
        ((3,), torch.int64),
    ]
    assert tensors[2].tolist() == [4, 5, 6]
    ids = ragged([1, 2])
    pass_through({"ids": ids})[1][0].fill_(9)
    assert ids.values.tolist() == [1, 2]
    with pytest.raises(ValueError, match=re.escape("rows of [2]")):
        pass_through({"x": np.zeros(2)})


def pad_collate(seqs, pad_id=0):
    """Fence 1 of the PyTorch data notes, row by row."""
    lengths = torch.tensor([len(s) for s in seqs])
    longest = int(lengths.max())
    input_ids = torch.full((len(seqs), longest), pad_id, dtype=torch.long)
    for row, s in enumerate(seqs):
        input_ids[row, : len(s)] = s
    attention_mask = (torch.arange(longest)[None, :] < lengths[:, None]).long()
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


class TestFence1:
    """Stacking, its dtypes, its error, and padding: torch's own beside ours."""

    def test_tensors_and_labels_stack(self):
        samples = [(torch.randn(3), i % 2) for i in range(4)]
        rows = {"0": torch.stack([x for x, _ in samples]).numpy(), "1": np.array([y for _, y in samples])}
        for how in ("stack", default_collate):
            x, y = collated(how, rows).values()
            wanted_x, wanted_y = default_collate(samples)
            assert torch.equal(x, wanted_x)
            assert torch.equal(y, wanted_y)
            assert (x.shape, y.shape, y.dtype) == ((4, 3), (4,), torch.int64)

    def test_python_floats_are_float64(self):
        assert default_collate([0.5, 1.5]).dtype == torch.float64
        assert collated("stack", {"0": np.array([0.5, 1.5])})["0"].dtype == torch.float64

    def test_rows_of_different_lengths_do_not_stack(self):
        seqs = [torch.randint(1, 50, (n,)) for n in (5, 2, 7, 3)]
        with pytest.raises(RuntimeError, match="equal size"):
            default_collate(seqs)
        with pytest.raises(TransformError, match=r"\(5,\) and row 1 has shape \(2,\)"):
            make_collate("stack")({"0": ragged(*seqs)})

    def test_padding_is_the_same(self):
        seqs = [torch.randint(1, 50, (n,)) for n in (5, 2, 7, 3)]
        wanted = next(iter(DataLoader(seqs, batch_size=4, collate_fn=pad_collate)))
        rows = {"input_ids": ragged(*seqs)}
        for found in (
            collated("pad", rows, pad_multiple=1, labels_from="input_ids"),
            dict(zip(*PadCollate(multiple=1, labels_from="input_ids")(rows), strict=True)),
            collated(pad_collate, {"0": rows["input_ids"]}),
        ):
            assert list(found) == list(wanted)
            for name, tensor in wanted.items():
                assert found[name].dtype == tensor.dtype
                assert torch.equal(found[name], tensor), name
            assert found["input_ids"].shape == (4, 7)
            assert found["attention_mask"].sum(1).tolist() == [5, 2, 7, 3]
            assert (found["labels"][found["attention_mask"] == 0] == -100).all()
            assert torch.equal(found["input_ids"][1, :2], seqs[1])
            assert (found["input_ids"][1, 2:] == 0).all()
