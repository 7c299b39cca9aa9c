"""Colour jitter: factors in range, and the arithmetic of each step as a plain float64 reading of its definition."""

import numpy as np
import pytest
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ConfigError, TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.image_color import ColorJitter

IMAGES = np.random.default_rng(6).integers(0, 256, (60, 3, 9, 11), dtype=np.uint8)
AMOUNTS = (0.4, 0.7, 1.5)


def keys(num_rows):
    sample = np.arange(num_rows)
    return PickKeys(sample, np.zeros_like(sample), 0, 42, 3)


def ran(transform, images):
    row_keys = keys(len(images))
    return transform(Batch(("image",), (torch.as_tensor(images).clone(),), pick_keys=row_keys), row_keys)["image"]


def factors(num_rows, amounts):
    """Return the factors by the stated rule, ``(B, 3)``."""
    low, high = np.maximum(0.0, 1 - np.array(amounts)), 1 + np.array(amounts)
    return low + (high - low) * keys(num_rows).uniform(3)


def grey(pixels):
    return 0.299 * pixels[0] + 0.587 * pixels[1] + 0.114 * pixels[2]


def plain(images, amounts, most):
    """Return the jittered images in float64, row by row."""
    out = []
    for image, (brightness, contrast, saturation) in zip(images, factors(len(images), amounts), strict=True):
        pixels = image.astype(np.float64)
        if amounts[0]:
            pixels = np.clip(pixels * brightness, 0, most)
        if amounts[1]:
            mean = grey(pixels).mean()
            pixels = np.clip(mean + (pixels - mean) * contrast, 0, most)
        if amounts[2]:
            dull = grey(pixels)
            pixels = np.clip(dull + (pixels - dull) * saturation, 0, most)
        out.append(pixels)
    return np.stack(out)


@pytest.mark.parametrize("amounts", [AMOUNTS, (0.4, 0, 0), (0, 0.7, 0), (0, 0, 1.5), (0, 0, 0), (12.0, 30.0, 9.0)])
def test_pixels_follow_the_definition(amounts):
    of_bytes = ran(ColorJitter(*amounts), IMAGES)
    assert of_bytes.dtype == torch.uint8
    off = np.abs(of_bytes.numpy() - plain(IMAGES, amounts, 255.0))
    assert off.max() < 0.502
    scaled = IMAGES.astype(np.float32) / np.float32(255)
    of_floats = ran(ColorJitter(*amounts), scaled)
    assert of_floats.dtype == torch.float32
    # Contrast and saturation multiply what was rounded before them.
    tolerance = 1e-6 * (1 + amounts[1]) * (1 + amounts[2])
    np.testing.assert_allclose(of_floats.numpy(), plain(scaled, amounts, 1.0), atol=tolerance, rtol=0)


def test_factors_cover_their_range():
    grey_rows = torch.full((4000, 1, 1, 1), 0.25)
    found = ran(ColorJitter(brightness=0.5), grey_rows).flatten().numpy() / 0.25
    assert 0.5 <= found.min() < 0.502
    assert 1.498 < found.max() <= 1.5
    assert abs(found.mean() - 1.0) < 5 / (12 * 4000) ** 0.5
    wide = ran(ColorJitter(brightness=2.0), grey_rows).flatten().numpy() / 0.25
    assert 0.0 <= wide.min() < 0.01
    assert 2.98 < wide.max() <= 3.0


def test_the_three_draw_by_themselves():
    drawn = factors(5000, (0.5, 0.5, 0.5))
    assert np.abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 5 / 5000**0.5


def test_turning_one_off_leaves_the_others_numbers():
    both, alone = ran(ColorJitter(0.4), IMAGES), ran(ColorJitter(0.4, saturation=1e-9), IMAGES)
    assert torch.equal(both, alone)


def test_the_order_of_the_pixels_has_no_say_in_their_mean():
    pixels = torch.from_numpy(np.random.default_rng(2).random((8, 3, 64, 50), dtype=np.float32))
    order = torch.from_numpy(np.random.default_rng(3).permutation(64 * 50))
    moved = pixels.flatten(2)[:, :, order].view(pixels.shape)
    found = ran(ColorJitter(0.3, 0.9), pixels)
    assert torch.equal(ran(ColorJitter(0.3, 0.9), moved), found.flatten(2)[:, :, order].view(pixels.shape))


def test_no_amounts_change_nothing():
    for images in (IMAGES, IMAGES.astype(np.float32) / np.float32(255)):
        assert np.array_equal(ran(ColorJitter(), images).numpy(), images)


def test_grey_images_keep_their_grey_under_saturation():
    images = np.repeat(IMAGES[:, :1], 3, axis=1)
    assert np.array_equal(ran(ColorJitter(saturation=0.9), images).numpy(), images)


def test_one_channel_is_its_own_grey():
    single = IMAGES[:, :1]
    three = np.repeat(single, 3, axis=1)
    found = ran(ColorJitter(0.4, 0.4), single)
    # 0.299 + 0.587 + 0.114 is 1 only up to rounding.
    assert (found.int() - ran(ColorJitter(0.4, 0.4), three)[:, :1].int()).abs().max() <= 1


@pytest.mark.parametrize(
    ("amounts", "channels", "what"),
    [((0, 0, 0.1), 1, "saturation"), ((0, 0.1, 0), 2, "contrast"), ((0.1, 0.1, 0.1), 4, "saturation")],
)
def test_grey_of_other_than_three_channels_is_refused(amounts, channels, what):
    message = rf"color_jitter: {what} needs 3 channels, .* has {channels}; set {what} to 0"
    with pytest.raises(TransformError, match=message):
        ColorJitter(*amounts).output(SampleSpec.of(image=("uint8", (channels, 4, 4))))
    with pytest.raises(TransformError, match=message):
        ran(ColorJitter(*amounts), np.zeros((2, channels, 4, 4), dtype=np.uint8))


def test_brightness_takes_any_number_of_channels():
    assert ran(ColorJitter(0.5), np.ones((2, 5, 4, 4), dtype=np.uint8)).shape == (2, 5, 4, 4)


@pytest.mark.parametrize("amount", [-0.1, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_amounts_out_of_range_are_refused(name, amount):
    with pytest.raises(ConfigError, match=rf"color_jitter.{name}: must be at least 0 and finite, got {amount}"):
        ColorJitter(**{name: amount})


def test_what_a_row_becomes_is_pinned():
    # Changing these numbers changes the stream of everyone's run: only with a new tag.
    images = np.arange(3 * 3 * 2 * 2, dtype=np.uint8).reshape(3, 3, 2, 2) * 7
    assert ran(ColorJitter(0.4, 0.4, 0.4), images).flatten().tolist() == [
        0,
        0,
        0,
        10,
        36,
        48,
        59,
        71,
        96,
        108,
        120,
        131,
        97,
        107,
        118,
        128,
        149,
        160,
        171,
        181,
        202,
        213,
        223,
        234,
        114,
        119,
        124,
        129,
        128,
        133,
        137,
        142,
        141,
        146,
        151,
        156,
    ]
