"""Random erasing: one rectangle, of the right size, for the right share of the rows, and nothing else touched.

White box: the rectangles that are drawn are asked for, where pictures tell them only in part.
"""

import numpy as np
import pytest
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ConfigError, TransformError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.image_erase import RandomErasing


def keys(num_rows):
    sample = np.arange(num_rows)
    return PickKeys(sample, np.zeros_like(sample), 0, 42, 3)


def ran(transform, images):
    row_keys = keys(len(images))
    return transform(Batch(("image",), (images.clone(),), pick_keys=row_keys), row_keys)["image"]


def erased(num_rows=2000, shape=(2, 30, 24), **arguments):
    """Return where an image of ones was erased, bool ``(B, H, W)``, after checking that all channels agree."""
    found = ran(RandomErasing(value=0.0, **arguments), torch.ones((num_rows, *shape)))
    assert set(found.unique().tolist()) <= {0.0, 1.0}
    assert (found == found[:, :1]).all()
    return (found[:, 0] == 0).numpy()


def sides(mask):
    """Return height and width of the bounding box of each row's mask."""
    return mask.any(axis=2).sum(axis=1), mask.any(axis=1).sum(axis=1)


def test_what_is_erased_is_one_full_rectangle():
    mask = erased(probability=1.0)
    high, wide = sides(mask)
    assert (high * wide == mask.sum(axis=(1, 2))).all()
    for axis in (1, 2):
        lines = mask.any(axis=3 - axis).astype(np.int8)
        assert (np.abs(np.diff(lines, axis=1, prepend=0, append=0)).sum(axis=1) == 2).all(), "one run of lines"


def test_what_is_not_erased_stays_bit_by_bit():
    for dtype, value in ((torch.uint8, 7), (torch.float32, -0.25)):
        images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (200, 3, 9, 14))).to(dtype)
        mask = erased(200, (3, 9, 14), probability=0.7)
        found = ran(RandomErasing(0.7, value=value), images)
        assert found.dtype == dtype
        wanted = torch.where(torch.from_numpy(mask)[:, None], torch.tensor(value, dtype=dtype), images)
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_the_share_of_rows_is_the_probability(probability):
    share = erased(probability=probability).any(axis=(1, 2)).mean()
    assert abs(share - probability) <= 5 * (probability * (1 - probability) / 2000) ** 0.5


def test_areas_and_aspects_are_in_range():
    found, (top, left, bottom, right) = RandomErasing(1.0)._boxes(keys(1000), 400, 300)
    high, wide = (bottom - top)[found], (right - left)[found]
    assert min(top.min(), left.min()) >= 0
    assert bottom.max() <= 400
    assert right.max() <= 300
    area, aspect = high * wide / 120_000, high / wide
    assert 0.0196 < area.min() < 0.025
    assert 0.30 < area.max() < 0.334
    assert 0.29 < aspect.min() < 0.33
    assert 3.0 < aspect.max() < 3.42


def test_the_aspect_is_height_over_width():
    high, wide = sides(erased(probability=1.0, scale=(0.1, 0.1), ratio=(3.0, 3.0)))
    assert (high > 2.5 * wide).all()


def test_places_are_uniform():
    mask = erased(num_rows=10_000, shape=(1, 12, 12), probability=1.0, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    places = [mask.any(axis=3 - axis).argmax(axis=1) for axis in (1, 2)]
    assert abs(np.corrcoef(*places)[0, 1]) < 5 / 10_000**0.5
    for place in places:
        starts = np.bincount(place, minlength=7)
        assert len(starts) == 7
        assert ((starts - 10_000 / 7) ** 2 / (10_000 / 7)).sum() < 25


def test_an_image_into_which_no_try_fits_stays():
    assert not erased(num_rows=200, shape=(3, 1, 30), probability=1.0).any()
    assert not erased(num_rows=200, probability=1.0, scale=(1.0, 1.0)).any()
    assert not erased(num_rows=200, shape=(1, 4, 4), probability=1.0, scale=(0.0, 1e-3)).any()


def test_a_rectangle_that_rounds_to_nothing_is_another_try():
    assert erased(num_rows=500, shape=(1, 4, 4), probability=1.0, scale=(0.0, 0.3)).any(axis=(1, 2)).all()


def test_probability_leaves_the_rectangles_as_they_are():
    half, all_rows = erased(probability=0.5), erased(probability=1.0)
    chosen = half.any(axis=(1, 2))
    assert np.array_equal(half[chosen], all_rows[chosen])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"probability": 1.5}, r"random_erasing.probability: must be in 0 .. 1, got 1.5"),
        ({"value": float("nan")}, r"random_erasing.value: must be a finite number, got nan"),
        ({"scale": (0.5,)}, r"random_erasing.scale: must be two numbers in 0 .. 1, .*got \(0.5,\)"),
        ({"ratio": (2.0, 0.5)}, r"random_erasing.ratio: must be two numbers"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        RandomErasing(**arguments)


@pytest.mark.parametrize("value", [0.5, -1, 256])
def test_a_value_that_bytes_cannot_hold_is_refused_for_bytes_only(value):
    message = rf"random_erasing: value {value} is no uint8, .*whole number 0 to 255, or put to_float before"
    transform = RandomErasing(value=value)
    with pytest.raises(TransformError, match=message):
        transform.output(SampleSpec.of(image=("uint8", (3, 8, 8))))
    with pytest.raises(TransformError, match=message):
        ran(transform, torch.zeros((2, 3, 8, 8), dtype=torch.uint8))
    assert transform.output(SampleSpec.of(image=("float32", (3, 8, 8)))).names == ("image",)


def test_what_a_row_becomes_is_pinned():
    # Changing these numbers changes the stream of everyone's run: only with a new tag.
    found, boxes = RandomErasing()._boxes(keys(6), 32, 40)
    assert found.tolist() == [False, False, True, True, False, False]
    assert boxes[:, found].T.tolist() == [[2, 18, 21, 32], [3, 25, 29, 33]]
