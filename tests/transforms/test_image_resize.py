"""Random resized crop: rectangles by the rule, and the same pixels as a resampler written in the plainest way.

White box: the rectangles that are drawn are asked for, where pictures tell them only in part.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ConfigError, TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.image_resize import RandomResizedCrop

RNG = np.random.default_rng(4)


def keys(num_rows, epoch=0, seed=42):
    sample = np.arange(num_rows)
    return PickKeys(sample, np.zeros_like(sample), epoch, seed, 3)


def ran(transform, images):
    row_keys = keys(len(images))
    return transform(Batch(("image",), (torch.as_tensor(images).clone(),), pick_keys=row_keys), row_keys)["image"]


def boxes(transform, num_rows, height, width):
    return transform._boxes(keys(num_rows), height, width)


def plain_axis(start, length, size):
    """Return (lower, upper, weight) of each output pixel along an axis, in exact fractions."""
    for place in range(size):
        where = (place + Fraction(1, 2)) * Fraction(length, size) - Fraction(1, 2)
        where = min(max(where, Fraction(0)), Fraction(length - 1))
        lower = int(where)
        yield start + lower, start + min(lower + 1, length - 1), float(where - lower)


def plain(image, box, size):
    """Return one image's box resampled, in float64, pixel by pixel."""
    top, left, high, wide = (int(side) for side in box)
    out = np.empty((image.shape[0], *size))
    for y, (above, below, down) in enumerate(plain_axis(top, high, size[0])):
        for x, (before, behind, right) in enumerate(plain_axis(left, wide, size[1])):
            upper = image[:, above, before] * (1 - right) + image[:, above, behind] * right
            lower = image[:, below, before] * (1 - right) + image[:, below, behind] * right
            out[:, y, x] = upper * (1 - down) + lower * down
    return out


@pytest.mark.parametrize(("size", "shape"), [((7, 10), (3, 12, 9)), ((20, 3), (1, 8, 8)), ((1, 1), (2, 5, 6))])
def test_pixels_are_those_of_a_plain_resampler(size, shape):
    transform = RandomResizedCrop(size, scale=(0.1, 1.0))
    images = RNG.integers(0, 256, (40, *shape), dtype=np.uint8)
    sides = boxes(transform, 40, *shape[1:])
    wanted = np.stack([plain(image.astype(np.float64), sides[:, row], size) for row, image in enumerate(images)])
    of_floats = ran(transform, images.astype(np.float32) / np.float32(255))
    np.testing.assert_allclose(of_floats.numpy(), wanted / 255, atol=1e-6, rtol=0)
    of_bytes = ran(transform, images)
    assert of_bytes.dtype == torch.uint8
    off = np.abs(of_bytes.numpy() - wanted)
    assert off.max() < 0.5 + 0.13  # half a level of rounding, and the weights' steps
    assert off.mean() < 0.26


def test_pixels_are_those_of_torchs_own_resampling():
    transform = RandomResizedCrop((9, 11))
    images = torch.from_numpy(RNG.random((30, 3, 16, 20), dtype=np.float32))
    found = ran(transform, images)
    for row, (top, left, high, wide) in enumerate(boxes(transform, 30, 16, 20).T.tolist()):
        cut = images[row : row + 1, :, top : top + high, left : left + wide]
        wanted = torch.nn.functional.interpolate(cut, size=(9, 11), mode="bilinear", align_corners=False)
        torch.testing.assert_close(found[row : row + 1], wanted, rtol=0, atol=2e-6)


def test_a_crop_of_the_size_of_the_result_is_a_copy():
    images = RNG.integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
    whole = RandomResizedCrop(8, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    assert np.array_equal(ran(whole, images).numpy(), images)


def test_one_colour_stays_that_colour():
    for value in (0, 1, 127, 255):
        images = np.full((20, 3, 13, 11), value, dtype=np.uint8)
        assert (ran(RandomResizedCrop((17, 6)), images) == value).all()
        assert (ran(RandomResizedCrop((17, 6)), images.astype(np.float32)) == value).all()


def test_rectangles_lie_inside_and_have_areas_and_aspects_in_range():
    height, width, scale, ratio = 200, 300, (0.1, 0.6), (0.5, 2.0)
    top, left, high, wide = boxes(RandomResizedCrop(8, scale, ratio), 20_000, height, width)
    assert min(top.min(), left.min()) >= 0
    assert (top + high).max() <= height
    assert (left + wide).max() <= width
    area, aspect = high * wide / (height * width), wide / high
    # Sides are rounded to pixels.
    assert scale[0] * 0.98 < area.min() < scale[0] * 1.02
    assert area.max() < scale[1] * 1.01
    assert ratio[0] * 0.97 < aspect.min() < ratio[0] * 1.03
    assert ratio[1] * 0.97 < aspect.max() < ratio[1] * 1.03


def test_areas_are_uniform_and_aspects_log_uniform_where_every_try_fits():
    # At most a quarter of a square image and aspects of at most 2: no side is longer than the image.
    _, _, high, wide = boxes(RandomResizedCrop(8, (0.05, 0.25), (0.5, 2.0)), 20_000, 1000, 1000)
    area = (high * wide / 1e6 - 0.05) / 0.2
    aspect = np.log(wide / high) / np.log(4) + 0.5
    for values in (area, aspect):
        off = np.sort(values) - (np.arange(20_000) + 0.5) / 20_000
        assert np.abs(off).max() < 1.95 / 20_000**0.5  # Kolmogorov, one in a thousand
    assert abs(np.corrcoef(area, aspect)[0, 1]) < 5 / 20_000**0.5


def test_the_weights_of_bytes_are_the_nearest_of_their_steps():
    images = np.zeros((1, 1, 1, 2), dtype=np.uint8)
    images[..., 1] = 255
    found = ran(RandomResizedCrop((1, 999), (1.0, 1.0), (2.0, 2.0)), images)[0, 0, 0].numpy()
    wanted = [255 * weight + 255 * before for before, _, weight in plain_axis(0, 2, 999)]
    assert np.abs(found - wanted).max() <= 0.5 + 255 / 4096


def test_the_aspect_is_width_over_height():
    _, _, high, wide = boxes(RandomResizedCrop(8, (0.1, 0.1), (3.0, 3.0)), 100, 200, 200)
    assert set(zip(high.tolist(), wide.tolist(), strict=True)) == {(37, 110)}


def test_a_crop_may_be_as_high_or_as_wide_as_the_image():
    for shape, start in (((10, 20), 1), ((20, 10), 0)):
        found = boxes(RandomResizedCrop(8, (0.5, 0.5), (1.0, 1.0)), 500, *shape)
        assert (found[2:] == 10).all()
        assert (found[1 - start] == 0).all()
        assert set(found[start].tolist()) == set(range(11))


def test_places_are_uniform():
    top, left, high, wide = boxes(RandomResizedCrop(8, (0.25, 0.25), (1.0, 1.0)), 30_000, 20, 20)
    assert set(high.tolist()) == set(wide.tolist()) == {10}
    assert abs(np.corrcoef(top, left)[0, 1]) < 5 / 30_000**0.5
    for start in (top, left):
        counts = np.bincount(start, minlength=11)
        assert len(counts) == 11
        assert ((counts - 30_000 / 11) ** 2 / (30_000 / 11)).sum() < 30


@pytest.mark.parametrize(
    ("shape", "box"),
    [((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10)), ((1, 1), (0, 0, 1, 1))],
)
def test_where_no_try_fits_the_crop_is_the_largest_central_one_in_range(shape, box):
    # All of a long image with an aspect near 1 never fits.
    found = boxes(RandomResizedCrop(8, (1.0, 1.0)), 50, *shape)
    assert np.array_equal(found, np.tile(np.array(box)[:, None], 50))


def test_a_whole_image_in_range_is_taken_where_no_try_fits():
    found = boxes(RandomResizedCrop(8, (0.0, 1e-6)), 50, 30, 32)
    assert np.array_equal(found, np.tile(np.array((0, 0, 30, 32))[:, None], 50))


def test_the_spec_has_the_new_size():
    spec = SampleSpec.of(image=("uint8", (3, 32, 40)), label=("int64", ()))
    assert RandomResizedCrop(24).output(spec) == SampleSpec.of(image=("uint8", (3, 24, 24)), label=("int64", ()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, r"random_resized_crop.size: must be a number of pixels, 1 to 65536, .*got 0"),
        ({"size": (8, 8, 8)}, r"got \(8, 8, 8\)"),
        ({"size": 8, "scale": (0.5, 0.2)}, r"scale: must be two numbers in 0 .. 1, .*got \(0.5, 0.2\)"),
        ({"size": 8, "scale": (0.5, 1.2)}, r"got \(0.5, 1.2\)"),
        ({"size": 8, "scale": (0.0, 0.0)}, r"not both 0"),
        ({"size": 8, "ratio": (0.0, 2.0)}, r"ratio: must be two numbers in 0.001 .. 1000"),
        ({"size": 8, "ratio": (float("nan"), 2.0)}, r"got \(nan, 2.0\)"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        RandomResizedCrop(**arguments)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (("uint8", (3072,)), r"random_resized_crop: field image uint8 \(3072,\) holds no images; rows of one shape"),
        (("uint8", (3, 0, 8)), r"field image uint8 \(3, 0, 8\) holds no images"),
        (("int64", (3, 8, 8)), r"is int64, and images are uint8 or float32; put to_float before"),
    ],
)
def test_fields_that_are_no_images_are_refused(field, message):
    with pytest.raises(TransformError, match=message):
        RandomResizedCrop(8).output(SampleSpec.of(image=field))
    dtype, shape = field
    with pytest.raises(TransformError, match=message):
        ran(RandomResizedCrop(8), np.zeros((2, *shape), dtype=dtype))


def test_a_field_that_is_not_there_is_refused_with_those_that_are():
    message = r"random_resized_crop: there is no field 'photo' among image, label; say which of them"
    with pytest.raises(TransformError, match=message):
        RandomResizedCrop(8, field="photo").output(SampleSpec.of(image=("uint8", (3, 8, 8)), label=("int64", ())))


def test_what_a_row_becomes_is_pinned():
    # Changing these numbers changes the stream of everyone's run: only with a new tag.
    assert boxes(RandomResizedCrop(8), 4, 32, 40).tolist() == [
        [0, 1, 3, 6],
        [2, 1, 17, 17],
        [32, 31, 12, 20],
        [33, 37, 15, 18],
    ]
    images = np.arange(2 * 3 * 8 * 8, dtype=np.uint8).reshape(2, 3, 8, 8)
    assert ran(RandomResizedCrop(2), images).flatten().tolist() == [
        13,
        17,
        45,
        49,
        77,
        81,
        109,
        113,
        141,
        145,
        173,
        177,
        212,
        216,
        240,
        244,
        20,
        24,
        48,
        52,
        84,
        88,
        112,
        116,
    ]
