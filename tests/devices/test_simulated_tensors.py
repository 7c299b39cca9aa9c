"""The bytes that strided tensors and arrays cover."""

import numpy as np
import pytest
import torch

from flodl_pipe.devices.simulated_tensors import array_spans, tensor_spans


def covered(array):
    """Return the addresses of an array's bytes, one by one."""
    size = array.itemsize
    places = np.array([array.__array_interface__["data"][0]])
    for step, count in zip(array.strides, array.shape, strict=True):
        places = (places[:, None] + step * np.arange(count)).ravel()
    return {int(place) + byte for place in places for byte in range(size)}


WHOLE = np.arange(6 * 5 * 8, dtype=np.int16).reshape(6, 5, 8)


@pytest.mark.parametrize(
    "array",
    [
        WHOLE,
        WHOLE[1:3],
        WHOLE[::2],
        WHOLE[::-2],
        WHOLE[:, 1:3, ::-3],
        WHOLE[4, ::-1],
        WHOLE.T,
        WHOLE[:, 2].T[::-1],
        WHOLE[:, :, :4],
        np.broadcast_to(WHOLE[0, 0], (7, 8)),
        np.lib.stride_tricks.sliding_window_view(WHOLE.ravel()[:20], 5),
        WHOLE[2, 2, 2:3],
        np.array(5, np.int16),
        WHOLE[:0],
    ],
)
def test_spans_cover_an_arrays_bytes_and_no_others(array):
    spans = array_spans(array)
    found = [byte for begin, end in spans for byte in range(begin, end)]
    assert set(found) == covered(array)
    assert len(found) == len(set(found))
    if array.size and all(step >= 0 for step in array.strides):
        steps = [step // array.itemsize for step in array.strides]
        tensor = torch.zeros(300, dtype=torch.int16).as_strided(array.shape, steps, 3)
        moved = [(begin - 106, end - 106) for begin, end in tensor_spans(tensor, 100)]
        assert moved == [(begin - spans[0][0], end - spans[0][0]) for begin, end in spans]


def test_of_very_many_pieces_the_whole_counts():
    array = np.zeros((2000, 4), np.uint8)[:, :2]
    begin = array.__array_interface__["data"][0]
    assert array_spans(array) == [(begin, begin + 7998)]
