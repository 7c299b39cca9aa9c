"""Basic transforms of pictures: what they compute, that it follows from the keys alone, and what they refuse."""

import random

import numpy as np
import pytest
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ConfigError, TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.image_basic import HorizontalFlip, Normalize, RandomCrop, ToFloat, VerticalFlip
from flodl_pipe.transforms.protocol import BundledTransform

SPEC = SampleSpec.of(image=("uint8", (3, 8, 6)), label=("int64", ()))
MEAN, STD = (0.5, 0.25, 0.125), (0.25, 0.5, 1.0)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
# Worked out by hand from tops 0 3 2 0 and lefts 2 1 2 2, the second row mirrored, the last two turned.
PINNED = [[[0, 0, 0], [2, 3, 4]], [[23, 22, 21], [0, 0, 0]], [[34, 35, 36], [30, 31, 32]], [[38, 39, 40], [0, 0, 0]]]
ALL = [ToFloat(), Normalize(MEAN, STD), RandomCrop(6, 2), HorizontalFlip(), VerticalFlip()]


def keys_of(num_rows, seed=42, stream=7):
    return PickKeys(np.arange(num_rows) * 3, np.zeros(num_rows, dtype=np.int64), 1, seed, stream)


def batch_of(num_rows, shape=(3, 8, 6), dtype=torch.uint8, device="cpu"):
    values = np.random.default_rng(0).integers(0, 256, (num_rows, *shape), dtype=np.uint8)
    image = torch.from_numpy(values).to(device, dtype)
    label = torch.arange(num_rows, device=device)
    return Batch(("image", "label"), (image, label), pick_keys=keys_of(num_rows), weight=0.5)


def test_to_float_multiplies_by_the_rounded_255th():
    image = batch_of(4)["image"].numpy()
    found = ToFloat()(batch_of(4), keys_of(4))["image"]
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy(), image.astype(np.float32) * np.float32(1 / 255))


def test_to_float_leaves_floats_as_they_are():
    batch = batch_of(4, dtype=torch.float32)
    assert torch.equal(ToFloat()(batch, keys_of(4))["image"], batch_of(4, dtype=torch.float32)["image"])


@pytest.mark.parametrize(("dtype", "unit"), [(torch.uint8, 255), (torch.float32, 1)])
def test_normalize_multiplies_and_then_adds(dtype, unit):
    means, stds = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
    image = batch_of(4)["image"].numpy().astype(np.float32)
    found = Normalize(means, stds)(batch_of(4, dtype=dtype), keys_of(4))["image"].numpy()
    assert found.dtype == np.float32
    for channel, (mean, std) in enumerate(zip(means, stds, strict=True)):
        scaled = image[:, channel] * np.float32(1 / (unit * std))
        assert np.array_equal(found[:, channel], scaled + np.float32(-mean / std))
        exact = (image[:, channel].astype(np.float64) / unit - mean) / std
        np.testing.assert_allclose(found[:, channel], exact, rtol=1e-5, atol=1e-5)


def test_one_mean_serves_all_channels():
    one = Normalize(0.5, 0.25)(batch_of(4), keys_of(4))["image"]
    each = Normalize([0.5] * 3, [0.25] * 3)(batch_of(4), keys_of(4))["image"]
    assert torch.equal(one, each)


@pytest.mark.parametrize(("mode", "pad_mode"), [("zero", "constant"), ("reflect", "reflect")])
@pytest.mark.parametrize(("size", "padding"), [(6, 0), ((4, 6), 0), ((8, 6), 4), ((3, 12), 3), ((16, 14), 4)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_crop_is_a_window_of_the_padded_picture(mode, pad_mode, size, padding, dtype):
    batch, keys = batch_of(60, dtype=dtype), keys_of(60)
    crop = RandomCrop(size, padding, mode)
    tops, lefts = crop.offsets(keys.words(2).T, 8, 6)
    padded = np.pad(batch["image"].numpy(), [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2], mode=pad_mode)
    found = crop(batch, keys)["image"].numpy()
    height, width = crop.size
    expected = [
        picture[:, top : top + height, left : left + width]
        for picture, top, left in zip(padded, tops, lefts, strict=True)
    ]
    assert found.dtype == padded.dtype
    assert np.array_equal(found, np.stack(expected))


def test_every_place_of_a_window_is_drawn_about_as_often():
    tops, lefts = RandomCrop((8, 6), 1).offsets(keys_of(9000).words(2).T, 8, 6)
    counts = np.bincount(tops * 3 + lefts, minlength=9)
    assert len(counts) == 9
    assert abs(((counts - 1000) ** 2 / 1000).sum() - 8) < 5 * (2 * 8) ** 0.5


@pytest.mark.parametrize(("flip", "axis"), [(HorizontalFlip, -1), (VerticalFlip, -2)])
def test_a_flip_mirrors_the_rows_whose_draw_is_below_the_probability(flip, axis):
    batch, keys = batch_of(200), keys_of(200)
    found = flip(0.3)(batch, keys)["image"].numpy()
    chosen = keys.uniform(1)[:, 0] < np.float32(0.3)
    assert 30 < chosen.sum() < 90
    image = batch["image"].numpy()
    assert np.array_equal(found[~chosen], image[~chosen])
    assert np.array_equal(found[chosen], np.flip(image[chosen], axis))


@pytest.mark.parametrize(("probability", "chosen"), [(0, False), (1, True)])
def test_a_flip_of_all_or_none(probability, chosen):
    batch = batch_of(50)
    found = HorizontalFlip(probability)(batch, keys_of(50))["image"]
    assert torch.equal(found, batch["image"].flip(-1) if chosen else batch["image"])


def test_a_draw_that_equals_the_probability_is_not_below_it():
    batch, keys = batch_of(20), keys_of(20)
    draws = keys.uniform(1)[:, 0]
    found = HorizontalFlip(float(draws[3]))(batch, keys)["image"]
    mirrored = (found != batch["image"]).flatten(1).any(1).numpy()
    assert np.array_equal(mirrored, draws < draws[3])


@pytest.mark.parametrize("transform", ALL, ids=lambda transform: transform.tag)
def test_a_row_is_changed_alike_in_any_batch(transform):
    whole = transform(batch_of(20), keys_of(20))["image"]
    for rows in (slice(0, 1), slice(7, 20), slice(5, 5)):
        part = Batch(("image",), (batch_of(20)["image"][rows],), pick_keys=keys_of(20).rows(rows))
        assert torch.equal(transform(part, keys_of(20).rows(rows))["image"], whole[rows])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("transform", ALL, ids=lambda transform: transform.tag)
def test_the_batch_stays_what_it_was_but_for_its_pictures(transform, device):
    batch = batch_of(5, device=device)
    changed = transform(batch, keys_of(5))
    assert changed.names == batch.names
    assert changed.pick_keys is batch.pick_keys
    assert changed.weight == 0.5
    assert torch.equal(changed["label"], batch["label"])
    assert changed["image"].device == batch["image"].device
    assert changed["image"].is_contiguous()


@pytest.mark.parametrize("transform", ALL, ids=lambda transform: transform.tag)
def test_the_spec_tells_what_comes_out(transform):
    assert isinstance(transform, BundledTransform)
    assert transform.scope == "row"
    spec = transform.output(SPEC)
    found = transform(batch_of(3), keys_of(3))
    image, label = spec.fields
    assert (image.dtype, image.shape) == (str(found["image"].dtype).removeprefix("torch."), found["image"].shape[1:])
    assert label == SPEC.fields[1]


@pytest.mark.parametrize("device", DEVICES)
def test_crops_and_flips_are_pinned(device):
    image = torch.arange(1, 49, dtype=torch.uint8, device=device).view(4, 1, 3, 4)
    batch = Batch(("image",), (image,), pick_keys=keys_of(4))
    for stream, transform in enumerate((RandomCrop((2, 3), 1), HorizontalFlip(), VerticalFlip())):
        batch = transform(batch, keys_of(4).of_stream(stream))
    assert batch["image"][:, 0].tolist() == PINNED


def test_global_random_states_are_left_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    for transform in ALL:
        transform(batch_of(9), keys_of(9))
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert before[2] == random.getstate()


def test_tags_hold_every_constant():
    assert [transform.tag for transform in ALL] == [
        "to_float(field=image)",
        "normalize(mean=(0.5, 0.25, 0.125), std=(0.25, 0.5, 1.0), field=image)",
        "random_crop(size=(6, 6), padding=2, mode=zero, field=image)",
        "horizontal_flip(probability=0.5, field=image)",
        "vertical_flip(probability=0.5, field=image)",
    ]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Normalize((0.5, 0.5), (0.1,)), r"mean \(0.5, 0.5\) and std \(0.1,\) differ in length"),
        (lambda: Normalize((0.5,), (0.0,)), r"normalize.std: must be positive.*got std \(0.0,\)"),
        (lambda: Normalize((0.5,), (-1,)), r"normalize.std: must be positive.*got std \(-1.0,\)"),
        (lambda: Normalize(0.5, 1e-40), "not vanish beside 1"),
        (lambda: Normalize(float("nan"), 1), "normalize.mean: must be a finite number, or one per channel, got nan"),
        (lambda: Normalize((), ()), r"normalize.mean: must be a finite number, or one per channel, got \(\)"),
        (
            lambda: RandomCrop(0),
            r"random_crop.size: must be a number of pixels, 1 to 65536, or \(height, width\), got 0",
        ),
        (lambda: RandomCrop((4, 4, 3)), r"random_crop.size: must be .*, got \(4, 4, 3\)"),
        (lambda: RandomCrop((4, 2.5)), r"random_crop.size: must be .*, got \(4, 2.5\)"),
        (lambda: RandomCrop(4, -1), "random_crop.padding: must be an integer of at least 0, got -1"),
        (lambda: RandomCrop(4, 1, "edge"), "random_crop.mode: must be zero or reflect, got 'edge'"),
        (lambda: HorizontalFlip(1.5), "horizontal_flip.probability: must be in 0 .. 1, got 1.5"),
        (lambda: VerticalFlip(float("nan")), "vertical_flip.probability: must be in 0 .. 1, got nan"),
    ],
)
def test_arguments_out_of_range_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize(
    ("transform", "shape", "message"),
    [
        (Normalize((0.5, 0.5), (1, 1)), (3, 8, 6), "mean for 2 channels .* but field 'image' has 3; give one per"),
        (
            RandomCrop(9),
            (3, 8, 6),
            r"cannot cut \(9, 9\) .* padding 0 its pictures are \(8, 6\); choose a smaller size",
        ),
        (RandomCrop((8, 11), 2), (3, 8, 6), r"padding 2 its pictures are \(12, 10\)"),
        (RandomCrop(4, 6, "reflect"), (3, 8, 6), r"cannot reflect 6 pixels .*\(8, 6\): padding must be smaller"),
        (ToFloat(), (8, 6), "image"),
        (HorizontalFlip(field="picture"), (3, 8, 6), "picture"),
    ],
)
def test_pictures_it_cannot_work_on_are_refused_beforehand_and_in_a_batch(transform, shape, message):
    with pytest.raises(TransformError, match=message):
        transform.output(SampleSpec.of(image=("uint8", shape)))
    with pytest.raises(TransformError, match=message):
        transform(batch_of(3, shape), keys_of(3))


@pytest.mark.parametrize(
    ("mean", "std"), [(125.3, 63.0), (0.5, 63.0), ((0.5, 0.4, 1.5), (0.2, 0.2, 0.2)), (-0.1, 1.0), (1.0, 1.01)]
)
def test_figures_of_bytes_are_refused_for_bytes_only(mean, std):
    transform = Normalize(mean, std)
    message = r"normalize: field 'image' is uint8 and scaled to 0 .. 1 first, .* mean is .*; divide figures .* by 255"
    with pytest.raises(TransformError, match=message):
        transform.output(SampleSpec.of(image=("uint8", (3, 8, 6))))
    with pytest.raises(TransformError, match=message):
        transform(batch_of(3), keys_of(3))
    assert transform.output(SampleSpec.of(image=("float32", (3, 8, 6)))).names == ("image",)
    assert transform(batch_of(3, dtype=torch.float32), keys_of(3))["image"].dtype == torch.float32


def test_figures_at_the_ends_of_the_unit_are_taken_for_bytes():
    Normalize(1, 1).output(SampleSpec.of(image=("uint8", (3, 8, 6))))
    Normalize(0, 1).output(SampleSpec.of(image=("uint8", (3, 8, 6))))


@pytest.mark.parametrize("transform", ALL, ids=lambda transform: transform.tag)
def test_other_dtypes_are_refused(transform):
    with pytest.raises(TransformError, match="float64"):
        transform.output(SampleSpec.of(image=("float64", (3, 8, 6))))
    with pytest.raises(TransformError, match="float64"):
        transform(batch_of(3, dtype=torch.float64), keys_of(3))
