"""One pass over arrays gives what the transforms give in turn, bit by bit, and only where it can.

White box: the blocks that rows are taken in are made small.
"""

import itertools
import threading
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms import image_fused
from flodl_pipe.transforms.image_basic import HorizontalFlip, Normalize, RandomCrop, ToFloat, VerticalFlip
from flodl_pipe.transforms.image_fused import fuse

NORMALIZE = Normalize((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))
USUAL = [(11, RandomCrop(32, padding=4)), (22, HorizontalFlip()), (33, NORMALIZE)]


def keys_of(num_rows):
    return PickKeys(np.arange(num_rows, dtype=np.int64) * 7, np.arange(num_rows, dtype=np.int64) % 3, 2, 42)


def rows_of(num_rows, shape=(3, 32, 32), dtype="uint8"):
    values = np.random.default_rng(num_rows).integers(0, 256, (num_rows, *shape), dtype=np.uint8)
    image = values if dtype == "uint8" else (values / 100 - 1).astype(dtype)
    return {"image": image, "label": np.arange(num_rows)}


def spec_of(rows):
    return SampleSpec.of(**{name: (array.dtype.name, array.shape[1:]) for name, array in rows.items()})


def in_turn(transforms, rows, keys):
    batch = Batch(tuple(rows), tuple(torch.tensor(array) for array in rows.values()), pick_keys=keys)
    for stream, transform in transforms:
        batch = transform(batch, keys.of_stream(stream))
    return {name: tensor.numpy() for name, tensor in batch.items()}


def fused(transforms, rows, keys):
    one = fuse(transforms, spec_of(rows))
    assert one is not None
    kept = {name: array.copy() for name, array in rows.items()}
    for array in rows.values():
        array.setflags(write=False)
    out = {name: np.full_like(array, 99) for name, array in one.spec.empty(len(keys)).items()}
    one.apply(rows, one.draw(keys), out)
    assert all(rows[name].tobytes() == kept[name].tobytes() for name in rows)
    return out


def check(transforms, rows):
    keys = keys_of(len(rows["image"]))
    found, expected = fused(transforms, rows, keys), in_turn(transforms, rows, keys)
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].tobytes() == array.tobytes(), name


SUBSETS = [
    chosen
    for length in range(1, 6)
    for chosen in itertools.permutations(["float", "normalize", "crop", "horizontal", "vertical"], length)
]


@pytest.mark.parametrize(
    ("crop", "dtype"),
    [
        (((7, 8), 2, "zero"), "uint8"),
        (((10, 5), 2, "reflect"), "float32"),
        pytest.param(((7, 8), 2, "zero"), "float32", marks=pytest.mark.full),
        pytest.param(((10, 5), 2, "reflect"), "uint8", marks=pytest.mark.full),
        pytest.param(((5, 8), 0, "zero"), "uint8", marks=pytest.mark.full),
        pytest.param(((5, 8), 0, "zero"), "float32", marks=pytest.mark.full),
    ],
    ids=str,
)
def test_every_choice_and_order_equals_the_transforms_in_turn(crop, dtype):
    made = {
        "float": ToFloat(),
        "normalize": Normalize((0.3, 0.5), (0.1, 0.7)),
        "crop": RandomCrop(*crop),
        "horizontal": HorizontalFlip(),
        "vertical": VerticalFlip(0.4),
    }
    for chosen in SUBSETS:
        check([(place, made[kind]) for place, kind in enumerate(chosen)], rows_of(9, (2, 8, 9), dtype))


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_any_size_equals_the_transforms_in_turn(data):
    channels, height, width = data.draw(st.tuples(st.sampled_from([1, 3]), st.integers(1, 17), st.integers(1, 17)))
    mode = data.draw(st.sampled_from(["zero", "reflect"]))
    most = 5 if mode == "zero" else min(height, width, 6) - 1
    padding = data.draw(st.integers(0, most))
    size = tuple(data.draw(st.integers(1, length + 2 * padding)) for length in (height, width))
    made = [RandomCrop(size, padding, mode), HorizontalFlip(), VerticalFlip(), Normalize(0.4, 0.2), ToFloat()]
    kinds = data.draw(st.permutations(made))[: data.draw(st.integers(1, 5))]
    num_rows = data.draw(st.sampled_from([0, 1, 2, 13]))
    dtype = data.draw(st.sampled_from(["uint8", "float32"]))
    check(list(enumerate(kinds, 5)), rows_of(num_rows, (channels, height, width), dtype))


def test_lines_of_any_length_are_mirrored():
    for width in range(1, 18):
        check([(1, HorizontalFlip(0.7))], rows_of(11, (2, 3, width)))


@pytest.mark.parametrize(
    ("channels", "num_rows"), [(3, 0), (3, 1), (3, 84), (3, 85), (3, 86), (3, 512), (1, 1), (1, 512)]
)
def test_whole_and_broken_blocks(num_rows, channels):
    normalize = Normalize(0.13, 0.3) if channels == 1 else NORMALIZE
    check([*USUAL[:2], (33, normalize)], rows_of(num_rows, (channels, 32, 32)))


@pytest.mark.parametrize("block_bytes", [1, 1 << 14])
def test_blocks_do_not_show(block_bytes, monkeypatch):
    monkeypatch.setattr(image_fused, "_BLOCK_BYTES", block_bytes)
    check(USUAL, rows_of(23))


@pytest.mark.parametrize("mode", ["zero", "reflect"])
def test_large_pictures(mode):
    # Their factors are not repeated for every pixel, and a block is few rows.
    check([(1, RandomCrop(224, 8, mode)), (2, HorizontalFlip()), (3, NORMALIZE)], rows_of(4, (3, 230, 240)))


def test_pictures_that_are_not_finite_pass_as_in_torch():
    rows = rows_of(6, (3, 4, 4), "float32")
    rows["image"][:, 0, :2] = np.nan
    rows["image"][:, 1, :2] = np.inf
    rows["image"][:, 2, :2] = 3e38
    transforms = [(1, NORMALIZE), (2, HorizontalFlip())]
    found, expected = fused(transforms, rows, keys_of(6)), in_turn(transforms, rows, keys_of(6))
    assert np.array_equal(found["image"], expected["image"], equal_nan=True)


def test_each_transform_draws_from_its_own_stream():
    rows, keys = rows_of(40), keys_of(40)
    first = fused([(1, HorizontalFlip())], rows, keys)["image"]
    assert not np.array_equal(first, fused([(2, HorizontalFlip())], rows, keys)["image"])


def test_threads_do_not_disturb_each_other():
    rows, keys = rows_of(200), keys_of(200)
    one = fuse(USUAL, spec_of(rows))
    expected = in_turn(USUAL, rows, keys)["image"].tobytes()
    wrong = []

    def work():
        for _ in range(10):
            out = one.spec.empty(200)
            one.apply(rows, one.draw(keys), out)
            if out["image"].tobytes() != expected:
                wrong.append(threading.current_thread().name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("first", [0, 1])
def test_scratch_is_bounded_as_it_says(first, dtype):
    rows, keys = rows_of(1024, dtype=dtype), keys_of(1024)
    transforms = [(9, NORMALIZE), (11, RandomCrop(32, 4)), (22, HorizontalFlip(1)), (23, VerticalFlip())][first:]
    one = fuse(transforms, spec_of(rows))
    out = one.spec.empty(1024)
    tracemalloc.start()
    try:
        one.apply(rows, one.draw(keys), out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= one.scratch_bytes + 400 * 1024
    assert one.scratch_bytes < 16 << 20


class Other:
    scope, tag = "row", "other()"

    def output(self, spec):
        return spec

    def __call__(self, batch, keys):
        return batch


@pytest.mark.parametrize(
    "transforms",
    [
        [],
        [(1, RandomCrop(32)), (2, Other())],
        [(1, HorizontalFlip()), (2, HorizontalFlip())],
        [(1, HorizontalFlip()), (2, VerticalFlip(field="label"))],
    ],
    ids=["none", "another kind", "one kind twice", "two fields"],
)
def test_what_is_no_single_pass_is_none(transforms):
    assert fuse(transforms, spec_of(rows_of(1))) is None


def test_ragged_rows_are_no_single_pass():
    image, label = spec_of(rows_of(1)).fields
    assert fuse([(1, HorizontalFlip())], SampleSpec((image, replace(label, is_ragged=True)))) is None


def test_what_a_transform_refuses_is_refused():
    with pytest.raises(TransformError, match=r"cannot cut \(40, 40\)"):
        fuse([(1, HorizontalFlip()), (2, RandomCrop(40))], spec_of(rows_of(1)))
