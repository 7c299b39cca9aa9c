"""Collation by a function: what it is called with, what it may return, and what is refused."""

import dataclasses
import functools
import types
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.errors import TransformError
from flodl_pipe.sampling.collate import make_collate

IDS = Ragged.of([np.array([1, 2]), np.array([], dtype=np.int64), np.array([3])])


def given(rows):
    """Return the samples that a function is called with."""
    seen = []

    def keep(samples):
        seen.extend(samples)
        return torch.zeros(len(samples))

    make_collate(keep)(rows)
    return seen


def made(answer, num_rows=2):
    """Collate two samples by a function that returns ``answer``."""
    names, tensors = make_collate(lambda samples: answer)({"0": np.zeros(num_rows)})
    return dict(zip(names, tensors, strict=True))


def test_samples_are_what_the_dataset_returned():
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    for sample, row in zip(given({"0": x}), x, strict=True):
        assert torch.equal(sample, torch.from_numpy(row))
    for sample, row in zip(given({"0": x, "1": np.arange(3)}), range(3), strict=True):
        assert isinstance(sample, tuple)
        assert torch.equal(sample[0], torch.from_numpy(x[row]))
        assert (sample[1].dim(), sample[1].item()) == (0, row)
    samples = given({"ids": IDS, "label": np.arange(3)})
    assert [{name: value.tolist() for name, value in sample.items()} for sample in samples] == [
        {"ids": [1, 2], "label": 0},
        {"ids": [], "label": 1},
        {"ids": [3], "label": 2},
    ]
    assert [list(sample) for sample in given({"1": np.arange(2), "0": np.arange(2)})] == [["1", "0"]] * 2


def test_what_a_function_does_to_samples_stays_with_it():
    rows = {"x": np.zeros((2, 3)), "ids": Ragged.of([np.array([1, 2]), np.array([3])])}

    def spoil(samples):
        for sample in samples:
            sample["x"].fill_(1)
            sample["ids"].fill_(9)
        return torch.stack([sample["x"] for sample in samples])

    (tensor,) = make_collate(spoil)(rows)[1]
    assert tensor.tolist() == [[1, 1, 1]] * 2
    assert not rows["x"].any()
    assert rows["ids"].values.tolist() == [1, 2, 3]


def test_torchs_default_collate_is_a_function_like_any_other():
    x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(3)
    for names in (("0",), ("0", "1"), ("image", "label")):
        rows = dict(zip(names, (x, y), strict=False))
        found, tensors = make_collate(default_collate)(rows)
        assert found == names
        for tensor, values in zip(tensors, rows.values(), strict=True):
            assert torch.equal(tensor, torch.from_numpy(values))


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


@dataclasses.dataclass
class Made:
    a: torch.Tensor
    b: torch.Tensor


ONE, TWO = torch.zeros(2), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (ONE, ["0"]),
        (np.zeros(2), ["0"]),
        ((ONE, TWO), ["0", "1"]),
        ([ONE, TWO], ["0", "1"]),
        (Pair(ONE, TWO), ["a", "b"]),
        (Made(ONE, TWO), ["a", "b"]),
        ({"x": ONE, "y": np.ones((2, 3))}, ["x", "y"]),
        (types.MappingProxyType({"x": ONE}), ["x"]),
    ],
)
def test_tensors_tuples_and_mappings_become_fields(answer, names):
    assert list(made(answer)) == names


def test_arrays_and_tensors_keep_their_dtype():
    found = made({"a": np.zeros(2, np.uint8), "b": np.zeros(2), "c": torch.zeros(2, dtype=torch.bfloat16)})
    assert [tensor.dtype for tensor in found.values()] == [torch.uint8, torch.float64, torch.bfloat16]


def test_nested_tensors_have_as_many_rows_as_samples():
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    assert made({"x": nested})["x"].is_nested
    with pytest.raises(TransformError, match="returned 2 rows as field 'x' for 3 samples"):
        made({"x": nested}, num_rows=3)


def test_fields_that_share_memory_are_taken_apart():
    whole = torch.arange(6).reshape(2, 3)
    array = np.broadcast_to(np.float32(1), (2, 3))
    found = made({"a": whole, "b": whole, "c": whole[:, 1:], "d": torch.ones(1).expand(2), "e": array})
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values()}) == 5
    found["b"].fill_(9)
    found["d"][0] = 5
    found["e"][0] = 5
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["c"].tolist() == [[1, 2], [4, 5]]
    assert found["d"].tolist() == [5, 1]
    assert found["e"].tolist() == [[5] * 3, [1] * 3]


def pack(samples):
    return torch.cat(samples)[None]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, r"returned None; is a return statement missing\? It must return a tensor, a tuple or a dict of tensors"),
        ((), "returned tuple without fields"),
        ({}, "returned dict without fields"),
        (3, "returned int; return a tensor, a tuple or a dict"),
        ("abc", "returned str"),
        ({"x": [1, 2]}, "returned, as field 'x', list; return a tensor"),
        ({"x": ["a", "b"]}, "field 'x', list"),
        ({"x": np.array(["a", "b"])}, r"field 'x', an array of <U1: .*convert it"),
        ({"x": {"y": ONE}}, "field 'x', dict"),
        ({3: ONE}, "a mapping with the key 3; keys name the fields"),
        ((ONE, torch.zeros(3)), "returned 3 rows as field '1' for 2 samples; a batch has one row for every sample"),
        ({"x": torch.tensor(3)}, "returned a single number as field 'x'"),
        (torch.zeros(2, device="meta"), "a tensor on meta; .* keep them on the CPU"),
        (torch.zeros(2, requires_grad=True), "requires grad.*detach it"),
    ],
)
def test_what_is_no_batch_of_these_samples_is_refused(answer, text):
    with pytest.raises(TransformError, match=text) as caught:
        made(answer)
    assert "tests.sampling.test_collate_user.made.<locals>.<lambda>" in str(caught.value)


def test_functions_objects_and_partials_are_named():
    class Joins:
        def __call__(self, samples):
            return None

    for function, name in ((pack, "pack"), (functools.partial(pack), "pack"), (Joins(), "Joins")):
        assert make_collate(function).tag.endswith(f"{name})")
    with pytest.raises(TransformError, match=r"Joins returned None"):
        make_collate(Joins())({"x": np.zeros(2)})
    with pytest.raises(TransformError, match=r"pack returned 1 rows as field '0' for 3 samples"):
        make_collate(pack)({"0": IDS})


def test_a_functions_own_error_comes_as_it_is_with_a_note():
    def broken(samples):
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own") as caught:
        make_collate(broken)({"x": np.zeros(3)})
    assert "broken with 3 samples" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match="equal size"):
        make_collate(default_collate)({"0": IDS})
