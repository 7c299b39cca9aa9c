"""The arithmetic of random rectangles: log-uniform aspects to the stated accuracy, the first fit, even places.

White box: the aspects that boxes are made of are asked for.
"""

import numpy as np
import pytest

from flodl_pipe.transforms.image_boxes import BoxSizes, first_fit, place

UNIFORM = (np.arange(1 << 14) * 2.0**-14 + 2.0**-24).astype(np.float32)


@pytest.mark.parametrize("ratio", [(0.75, 4 / 3), (0.3, 3.3), (0.1, 2.0), (2.0, 2.0), (0.001, 1000.0)])
def test_aspects_are_the_quantiles_of_the_log_uniform_distribution(ratio):
    found = BoxSizes((0.0, 1.0), ratio)._aspect(UNIFORM.astype(np.float64))
    wanted = ratio[0] * (ratio[1] / ratio[0]) ** UNIFORM.astype(np.float64)
    step = np.log(ratio[1] / ratio[0]) / 1024
    # A straight line between the ends of a step is off by an eighth of its square.
    assert np.abs(found / wanted - 1).max() <= step**2 / 7.9 + 1e-12
    if ratio[1] / ratio[0] <= 12:
        assert np.abs(found / wanted - 1).max() < 1e-6
    assert ratio[0] <= found.min() <= found.max() <= ratio[1]


def test_sides_have_the_area_and_the_aspect_drawn():
    area, aspect = np.float32([[0.25, 0.75]]), np.float32([[0.0, 0.5]])
    first, second = BoxSizes((0.0, 1.0), (0.25, 4.0)).draw(np.concatenate([area, aspect], axis=1), 10_000)
    assert first.tolist() == [[25, 87]]
    assert second.tolist() == [[100, 87]]


def test_the_first_try_that_fits_is_taken():
    fits = np.array([[False, True, True], [True, True, True], [False, False, False]])
    sides = np.arange(9).reshape(3, 3)
    found, (one, other) = first_fit(fits, sides, sides * 10)
    assert found.tolist() == [True, True, False]
    assert one[:2].tolist() == [1, 3]
    assert other[:2].tolist() == [10, 30]


def test_places_span_the_room_and_nothing_else():
    words = np.array([0, 1 << 31, (1 << 32) - 1], dtype=np.uint64)
    assert place(words, np.array([5, 5, 5])).tolist() == [0, 3, 5]
    assert place(words, np.array([0, 0, 0])).tolist() == [0, 0, 0]
