"""Padding: what rows are filled with, which masks come along, and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import ConfigError, TransformError
from flodl_pipe.sampling.collate import make_collate


def ragged(*rows, dtype="int64", inner=()):
    return Ragged.of([np.asarray(row, dtype=dtype).reshape(-1, *inner) for row in rows])


def spec_of(rows):
    return SampleSpec(
        tuple(
            Field(name, values.values.dtype.name, values.values.shape[1:], True)
            if isinstance(values, Ragged)
            else Field(name, values.dtype.name, values.shape[1:])
            for name, values in rows.items()
        )
    )


def padded(rows, **options):
    """Collate, and hold the result to what was said beforehand."""
    collate = make_collate("pad", **options)
    collate.check(spec_of(rows))
    names, tensors = collate(rows)
    output = collate.output(spec_of(rows))
    assert output.names == names
    for field, tensor in zip(output, tensors, strict=True):
        assert str(tensor.dtype) == f"torch.{field.dtype}"
        assert tuple(tensor.shape[1 + field.is_ragged :]) == field.shape
    return dict(zip(names, tensors, strict=True))


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-128, 127), max_size=20), min_size=1, max_size=8),
    dtype=st.sampled_from(["int8", "int32", "int64", "float32", "float64"]),
    width=st.sampled_from([(), (3,), (2, 2)]),
    multiple=st.integers(1, 9),
    pad_id=st.integers(-5, 5),
)
def test_the_rows_come_back_by_their_masks(rows, dtype, width, multiple, pad_id):
    arrays = [np.repeat(np.array(row, dtype), int(np.prod(width))).reshape(-1, *width) for row in rows]
    found = padded({"x": Ragged.of(arrays)}, pad_multiple=multiple, pad_id=pad_id)
    values, mask = found["x"].numpy(), found["attention_mask"].numpy()
    longest = max(map(len, rows))
    assert values.shape == (len(rows), -(-longest // multiple) * multiple, *width)
    assert mask.shape == values.shape[:2]
    assert mask.dtype == np.int64
    assert (np.diff(mask, axis=1) <= 0).all()
    for row, array in enumerate(arrays):
        np.testing.assert_array_equal(values[row][mask[row] == 1], array)
    assert (values[mask == 0] == (pad_id if dtype.startswith("int") else 0)).all()


def test_each_kind_of_field_is_filled_with_its_own():
    rows = {
        "input_ids": ragged([1, 2, 3], [4]),
        "score": ragged([1, 2, 3], [4], dtype="float32"),
        "seen": ragged([1, 1, 1], [1], dtype="bool"),
        "labels": ragged([1, 2, 3], [4], dtype="int16"),
        "group": np.array([7, 8]),
    }
    found = padded(rows, pad_id=9, pad_multiple=1)
    assert found["input_ids"].tolist() == [[1, 2, 3], [4, 9, 9]]
    assert found["score"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert found["seen"].tolist() == [[True, True, True], [True, False, False]]
    assert found["labels"].tolist() == [[1, 2, 3], [4, -100, -100]]
    assert found["group"].tolist() == [7, 8]
    assert found["labels"].dtype == torch.int16


@pytest.mark.parametrize(
    ("names", "masks"),
    [
        (["ids"], {"attention_mask": "ids"}),
        (["labels"], {"attention_mask": "labels"}),
        (["labels", "ids"], {"attention_mask": "ids"}),
        (["kinds", "input_ids", "labels"], {"attention_mask": "input_ids", "kinds_mask": "kinds"}),
        (["a", "b", "c"], {"attention_mask": "a", "b_mask": "b", "c_mask": "c"}),
        (["labels", "target"], {"attention_mask": "labels"}),
    ],
)
def test_which_masks_a_batch_has_follows_from_its_fields_alone(names, masks):
    lengths = [(2, 1), (1, 3), (4, 2)]
    rows = {name: ragged(*(np.ones(n) for n in lengths[place])) for place, name in enumerate(names)}
    found = padded(rows, pad_multiple=1)
    assert set(found) - set(names) == set(masks)
    for mask, name in masks.items():
        assert found[mask].sum(1).tolist() == rows[name].lengths.tolist()
        assert found[mask].shape == found[name].shape
    equal = padded({name: ragged([1, 1], [1]) for name in names})
    assert list(equal) == list(found)


def test_a_label_field_of_floats_has_a_mask_because_its_filling_could_be_a_target():
    found = padded({"ids": ragged([1], [2]), "target": ragged([0.5, 1], [2], dtype="float32")}, pad_multiple=1)
    assert found["target"].tolist() == [[0.5, 1], [2, 0]]
    assert found["target_mask"].tolist() == [[1, 1], [1, 0]]


def test_a_mask_that_the_sample_has_is_kept_and_filled_with_zero():
    rows = {"input_ids": ragged([1, 2], [3]), "attention_mask": ragged([1, 0], [1]), "labels": ragged([1, 2], [3])}
    found = padded(rows, pad_id=5, pad_multiple=1)
    assert list(found) == list(rows)
    assert found["attention_mask"].tolist() == [[1, 0], [1, 0]]
    own = {"ids": ragged([1, 2], [3]), "x": ragged([1, 2], [3]), "x_mask": ragged([1, 0], [1])}
    found = padded(own, pad_id=5, pad_multiple=1)
    assert list(found) == ["ids", "x", "x_mask", "attention_mask"]
    assert found["x_mask"].tolist() == [[1, 0], [1, 0]]


def test_every_batch_has_the_length_set():
    found = padded({"ids": ragged([1, 2], [])}, pad_length=5)
    assert found["ids"].tolist() == [[1, 2, 0, 0, 0], [0] * 5]
    spec = make_collate("pad", pad_length=5).output(spec_of({"ids": ragged([1])}))
    assert [str(field) for field in spec] == ["ids int64 (5,)", "attention_mask int64 (5,)"]


def test_a_longer_row_is_an_error_and_never_cut():
    text = r"field 'ids': row 1 of the batch has length 6, but loader.pad_length is 5, .* never cut; raise it"
    with pytest.raises(TransformError, match=text):
        padded({"ids": ragged([1], range(6), range(9))}, pad_length=5)


def test_lengths_are_rounded_up_and_reckoned_with_so():
    assert padded({"ids": ragged([1], [1, 2, 3])})["ids"].shape == (2, 8)
    assert padded({"ids": ragged([1], range(8))})["ids"].shape == (2, 8)
    assert padded({"ids": ragged([1], range(9))})["ids"].shape == (2, 16)
    spec = SampleSpec((Field("ids", "int64", (), True, expected_length=9),))
    assert [field.row_bytes for field in make_collate("pad").output(spec)] == [128, 128]


def test_samples_without_ragged_fields_are_stacked():
    found = padded({"x": np.arange(6).reshape(2, 3)})
    assert list(found) == ["x"]
    assert found["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_labels_are_made_of_the_ids_when_asked():
    found = padded({"ids": ragged([1, 2], [3], dtype="uint16")}, labels_from="ids", pad_id=3, pad_multiple=1)
    assert list(found) == ["ids", "attention_mask", "labels"]
    assert found["labels"].tolist() == [[1, 2], [3, -100]]
    assert (found["ids"].dtype, found["labels"].dtype) == (torch.uint16, torch.int64)
    fixed = padded({"ids": np.array([[1, 2]], np.int32)}, labels_from="ids")
    assert fixed["labels"].tolist() == [[1, 2]]
    assert fixed["labels"].untyped_storage().data_ptr() != fixed["ids"].untyped_storage().data_ptr()


IDS = Field("ids", "int64", (), True)


@pytest.mark.parametrize(
    ("fields", "options", "text"),
    [
        (
            [Field("ids", "uint16", (), True)],
            {"pad_id": -1},
            "loader.pad_id: is -1, which field 'ids' of uint16 cannot",
        ),
        ([Field("ids", "uint8", (), True)], {"pad_id": 256}, "loader.pad_id: is 256"),
        ([IDS, Field("labels", "uint8", (), True)], {}, "fills labels with -100, and field 'labels' is uint8, which"),
        (
            [IDS, Field("attention_mask", "int64", (8,))],
            {},
            r"makes a field 'attention_mask', .* attention_mask int64 \(8,\)",
        ),
        ([IDS, Field("labels", "int64", (), True)], {"labels_from": "ids"}, "makes a field 'labels'"),
        ([IDS], {"labels_from": "id"}, "loader.labels_from: is 'id', but the fields are ids"),
        ([Field("x", "float32", (), True)], {"labels_from": "x"}, "loader.labels_from: is 'x', which holds float32"),
    ],
)
def test_fields_that_cannot_be_padded_are_refused_at_build(fields, options, text):
    with pytest.raises(ConfigError, match=text):
        make_collate("pad", **options).check(SampleSpec(tuple(fields)))
