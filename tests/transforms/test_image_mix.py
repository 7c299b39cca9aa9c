"""Mixup and cutmix: who is mixed with whom, by how much, and what the labels say of it; and the beta numbers.

White box: the boxes that Cutmix draws are asked for, where pictures tell them only in part.
"""

import math

import numpy as np
import pytest
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ConfigError, TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.beta import SymmetricBeta
from flodl_pipe.transforms.image_mix import Cutmix, Mixup

ALPHAS = [0.1, 0.2, 0.5, 1.0, 1.7, 4.0, 10.0]
EVERY = (np.arange(1 << 16, dtype=np.float64) * 2.0**-16).astype(np.float32)


def keys(num_rows):
    sample = np.arange(num_rows)
    return PickKeys(sample, np.zeros_like(sample), 0, 42, 3)


def ran(transform, images, labels):
    row_keys = keys(len(images))
    tensors = (torch.as_tensor(images).clone(), torch.as_tensor(labels).clone())
    return transform(Batch(("image", "label"), tensors, pick_keys=row_keys), row_keys)


def images(num_rows, dtype=np.float32, shape=(3, 9, 12)):
    pixels = np.random.default_rng(1).integers(0, 256, (num_rows, *shape))
    return pixels.astype(np.uint8) if dtype is np.uint8 else (pixels / 255).astype(np.float32)


def labels(num_rows, num_classes=10):
    return np.arange(num_rows) * 7 % num_classes


# Beta numbers


def mass(alpha, x):
    """Return the distribution function of Beta(alpha, alpha) by its continued fraction (DLMF 8.17.22)."""
    if x > 0.5:
        return 1.0 - mass(alpha, 1.0 - x)
    front = math.exp(math.lgamma(2 * alpha) - 2 * math.lgamma(alpha) + alpha * (math.log(x) + math.log1p(-x))) / alpha
    fraction = 1.0
    for m in reversed(range(1, 200)):
        even = m * (alpha - m) * x / ((alpha + 2 * m - 1) * (alpha + 2 * m))
        odd = -(alpha + m) * (2 * alpha + m) * x / ((alpha + 2 * m) * (alpha + 2 * m + 1))
        fraction = 1.0 + even / (1.0 + odd / fraction)
    first = -(2 * alpha) * x / (alpha + 1)
    return front / (1.0 + first / fraction)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_beta_numbers_are_the_quantiles_to_the_stated_accuracy(alpha):
    uniform = np.random.default_rng(0).integers(0, 1 << 24, 300)
    uniform[:5] = 0, 1, 100, (1 << 23) - 1, (1 << 24) - 1
    found = SymmetricBeta(alpha).of((uniform * 2.0**-24).astype(np.float32))
    for number, x in zip(uniform.tolist(), found.tolist(), strict=True):
        p = (number + 0.5) * 2.0**-24
        if x > 1e-5:
            assert mass(alpha, x - 1e-5) <= p
        if x < 1 - 1e-5:
            assert mass(alpha, x + 1e-5) >= p


@pytest.mark.parametrize("alpha", ALPHAS)
def test_beta_numbers_have_the_mean_and_variance_of_the_distribution(alpha):
    found = SymmetricBeta(alpha).of(EVERY)
    # The middle of each of 2**16 steps, up to the half of a 24-bit step: an integral by the midpoint rule.
    assert abs(found.mean() - 0.5) < 1e-4
    assert abs(found.var() - 1 / (4 * (2 * alpha + 1))) < 2e-4
    keyed = SymmetricBeta(alpha).of(keys(20_000).uniform(1))
    assert abs(keyed.mean() - 0.5) < 5 * (found.var() / 20_000) ** 0.5


@pytest.mark.parametrize("alpha", ALPHAS)
def test_beta_numbers_rise_with_the_uniform_and_mirror_at_one_half(alpha):
    every = (np.arange(1 << 20, dtype=np.float64) * 2.0**-20).astype(np.float32)
    found = SymmetricBeta(alpha).of(every)
    assert (np.diff(found) >= 0).all()
    assert 0 <= found.min() <= found.max() <= 1
    steps = np.arange(1 << 24, (1 << 24) - 5000, -1)
    mirrored = SymmetricBeta(alpha).of(((steps - 1) * 2.0**-24).astype(np.float32))
    assert np.array_equal(mirrored, 1.0 - SymmetricBeta(alpha).of((((1 << 24) - steps) * 2.0**-24).astype(np.float32)))


def test_beta_of_one_is_the_uniform_itself():
    np.testing.assert_allclose(SymmetricBeta(1.0).of(EVERY), EVERY.astype(np.float64) + 2.0**-25, atol=1e-12, rtol=0)


def test_beta_numbers_are_pinned():
    # Changing these numbers changes the stream of everyone's run: only with a new tag.
    uniform = np.array([0.0, 0.125, 0.5, 0.8125], dtype=np.float32)
    assert [x.hex() for x in SymmetricBeta(0.2).of(uniform).tolist()] == [
        "0x1.8c7d9e321fc38p-121",
        "0x1.8c4a9ce444576p-11",
        "0x1.0000032260bb9p-1",
        "0x1.fd1228ee323c0p-1",
    ]
    assert [x.hex() for x in SymmetricBeta(3.0).of(uniform).tolist()] == [
        "0x1.79844569601dcp-10",
        "0x1.13d7fb1538e42p-2",
        "0x1.000000888889cp-1",
        "0x1.5d41326fea60ap-1",
    ]


# Mixup


def test_mixup_mixes_each_row_with_its_partner_by_one_lambda():
    given = images(8)
    found = ran(Mixup(10, alpha=0.8), given, labels(8))
    own = SymmetricBeta(0.8).of(keys(8).uniform(1)[::2, 0])
    partner = [1, 0, 3, 2, 5, 4, 7, 6]
    part = np.repeat(own, 2)[:, None, None, None]
    np.testing.assert_allclose(found["image"].numpy(), given * part + given[partner] * (1 - part), atol=1e-6, rtol=0)
    eye = np.eye(10)
    part = part[:, :, 0, 0]
    wanted = eye[labels(8)] * part + eye[labels(8)[partner]] * (1 - part)
    np.testing.assert_allclose(found["label"].numpy(), wanted, atol=1e-6, rtol=0)
    assert found["label"].dtype == torch.float32


def test_lambda_comes_from_the_even_row_alone():
    given, hard = images(4), labels(4)
    one = ran(Mixup(10, alpha=1.0), given, hard)
    row_keys = keys(4)
    row_keys.sample[[1, 3]] += 1000
    batch = Batch(("image", "label"), (torch.tensor(given), torch.tensor(hard)), pick_keys=row_keys)
    assert torch.equal(Mixup(10, alpha=1.0)(batch, row_keys)["image"], one["image"])
    row_keys.sample[[0, 2]] += 1000
    assert not torch.equal(Mixup(10, alpha=1.0)(batch, row_keys)["image"], one["image"])


@pytest.mark.parametrize("kind", [Mixup, Cutmix])
@pytest.mark.parametrize("num_rows", [1, 5])
def test_a_last_row_without_partner_stays_and_has_a_soft_label(kind, num_rows):
    given, hard = images(num_rows), labels(num_rows)
    found = ran(kind(10, alpha=1.0), given, hard)
    assert np.array_equal(found["image"][-1].numpy(), given[-1])
    assert np.array_equal(found["label"][-1].numpy(), np.eye(10, dtype=np.float32)[hard[-1]])


@pytest.mark.parametrize("kind", [Mixup, Cutmix])
def test_labels_are_parts_that_sum_to_one(kind):
    found = ran(kind(10, alpha=0.5), images(600), labels(600))["label"]
    assert found.shape == (600, 10)
    assert found.min() >= 0
    torch.testing.assert_close(found.sum(1), torch.ones(600), rtol=0, atol=1e-6)


def test_partners_of_one_class_keep_their_label():
    found = ran(Mixup(10, alpha=0.5), images(6), np.array([3, 3, 0, 0, 9, 9]))["label"].numpy()
    np.testing.assert_allclose(found, np.eye(10)[[3, 3, 0, 0, 9, 9]], atol=1e-6, rtol=0)


# Cutmix


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_cutmix_swaps_one_rectangle_and_the_labels_follow_its_true_area(dtype):
    num_rows = 800
    # Partners are all zeros and all ones: what came from the partner can be read off.
    given = np.zeros((num_rows, 2, 9, 12), dtype=dtype)
    given[1::2] = 1
    found = ran(Cutmix(2, alpha=1.0), given, np.arange(num_rows) % 2)
    assert found["image"].dtype == torch.from_numpy(given).dtype
    pixels = found["image"].numpy()
    swapped = pixels[::2, 0] == 1
    assert np.array_equal(pixels[::2, 0], pixels[::2, 1])
    assert np.array_equal(pixels[1::2, 0] == 0, swapped), "both partners swap the same rectangle"
    high, wide = swapped.any(axis=2).sum(axis=1), swapped.any(axis=1).sum(axis=1)
    assert (high * wide == swapped.sum(axis=(1, 2))).all(), "a full rectangle"
    own = 1 - swapped.mean(axis=(1, 2))
    np.testing.assert_allclose(found["label"][::2].numpy(), np.stack([own, 1 - own], axis=1), atol=1e-7, rtol=0)
    np.testing.assert_allclose(found["label"][1::2].numpy(), np.stack([1 - own, own], axis=1), atol=1e-7, rtol=0)


def test_a_cutmix_box_has_the_images_aspect_and_the_area_of_the_papers_rule():
    num_pairs, height, width = 4000, 300, 500
    transform, pairs = Cutmix(10, alpha=1.0), keys(num_pairs)
    top, left, bottom, right = transform._boxes(pairs, height, width)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (bottom <= height).all()
    assert (right <= width).all()
    side = np.sqrt(1 - SymmetricBeta(1.0).of(pairs.uniform(1)[:, 0]))
    inside = (top > 0) & (bottom < height) & (left > 0) & (right < width)
    assert inside.any()
    assert (~inside).any()
    assert np.abs((bottom - top) - side * height)[inside].max() <= 0.5
    assert np.abs((right - left) - side * width)[inside].max() <= 0.5
    assert ((bottom - top) <= side * height + 0.5).all()
    centre = (left + right)[inside] / 2
    assert abs(centre.mean() - width / 2) < 5 * width / (12 * inside.sum()) ** 0.5


def test_cutmix_centres_are_uniform_over_the_pixels():
    # A box of one pixel is its centre; at the top and the left it may also be what is left of a larger one.
    top, left, bottom, right = Cutmix(10, alpha=0.1)._boxes(keys(60_000), 6, 6)
    single = (bottom - top == 1) & (right - left == 1) & (top > 0) & (left > 0)
    assert single.sum() > 1000
    assert abs(np.corrcoef(top[single], left[single])[0, 1]) < 5 / single.sum() ** 0.5
    for start in (top[single], left[single]):
        counts = np.bincount(start, minlength=6)[1:]
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 20


def test_cutmix_boxes_are_cut_off_on_all_sides_alike():
    top, left, bottom, right = Cutmix(10, alpha=1.0)._boxes(keys(20_000), 300, 300)
    cut_off = [(top == 0).sum(), (left == 0).sum(), (bottom == 300).sum(), (right == 300).sum()]
    assert max(cut_off) - min(cut_off) < 5 * 20_000**0.5


# Refusals


@pytest.mark.parametrize("kind", [Mixup, Cutmix])
@pytest.mark.parametrize("value", [-1, 10, 1 << 40])
def test_a_label_that_is_no_class_is_refused_with_value_row_and_sample(kind, value):
    hard = labels(7)
    hard[[5, 6]] = value
    message = rf"{kind.__name__.lower()}: field 'label' holds {value} in row 5 \(sample 5\), but labels are 0 .. 9; "
    with pytest.raises(TransformError, match=message):
        ran(kind(10, alpha=1.0), images(7), hard)


@pytest.mark.parametrize("kind", [Mixup, Cutmix])
@pytest.mark.parametrize(("dtype", "shape"), [("float32", (10,)), ("int32", ()), ("int64", (2,))])
def test_fields_that_are_no_labels_are_refused(kind, dtype, shape):
    message = r"field label .* is no label: one int64 for each row"
    with pytest.raises(TransformError, match=message):
        kind(10, alpha=1.0).output(SampleSpec.of(image=("float32", (3, 8, 8)), label=(dtype, shape)))
    with pytest.raises(TransformError, match=message):
        ran(kind(10, alpha=1.0), images(2), np.zeros((2, *shape), dtype=dtype))


def test_mixup_of_bytes_is_refused_with_the_remedy():
    message = r"mixup: field image uint8 \(3, 9, 12\) is uint8, and mixed pixels are no whole numbers; put to_float"
    with pytest.raises(TransformError, match=message):
        Mixup(10, alpha=1.0).output(SampleSpec.of(image=("uint8", (3, 9, 12)), label=("int64", ())))
    with pytest.raises(TransformError, match=message):
        ran(Mixup(10, alpha=1.0), images(2, np.uint8), labels(2))


@pytest.mark.parametrize("kind", [Mixup, Cutmix])
def test_arguments_out_of_range_are_refused(kind):
    name = kind.__name__.lower()
    for alpha in (0.0, 0.09, 10.5, -1.0, float("nan")):
        with pytest.raises(ConfigError, match=rf"{name}.alpha: must be in 0.1 .. 10, got {alpha}; leave {name} out"):
            kind(10, alpha=alpha)
    with pytest.raises(ConfigError, match=rf"{name}.num_classes: must be an integer of at least 1, got 0"):
        kind(0, alpha=1.0)
    with pytest.raises(ValueError, match=r"alpha must be in 0.1 .. 10, got 11"):
        SymmetricBeta(11)


@pytest.mark.parametrize("kind", [Mixup, Cutmix])
def test_they_are_pair_scoped_and_their_labels_become_soft_in_the_spec(kind):
    spec = SampleSpec.of(image=("float32", (3, 8, 8)), label=("int64", ()))
    assert kind(7, alpha=1.0).scope == "pair"
    assert kind(7, alpha=1.0).output(spec) == SampleSpec.of(image=("float32", (3, 8, 8)), label=("float32", (7,)))


def test_cutmix_boxes_are_pinned():
    # Changing these numbers changes the stream of everyone's run: only with a new tag.
    assert Cutmix(10, alpha=1.0)._boxes(keys(4), 32, 32).T.tolist() == [
        [0, 4, 11, 17],
        [19, 6, 29, 16],
        [0, 7, 21, 32],
        [2, 10, 30, 32],
    ]


@pytest.mark.parametrize("kind", [Mixup, Cutmix])
def test_alpha_is_one_unless_it_is_named(kind):
    assert kind(10).tag == kind(num_classes=10, alpha=1.0).tag
    with pytest.raises(TypeError):
        kind(1, 10)  # alpha came first once: two numbers may not change places in silence
