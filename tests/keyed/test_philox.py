"""Philox4x32-10 against the known answers of its authors' Random123 library (kat_vectors)."""

import numpy as np
import pytest

from flodl_pipe.keyed.philox import philox4x32

ANSWERS = [
    (0, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (2**64 - 1, (2**64 - 1, 2**64 - 1), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        0x299F31D0A4093822,
        (0x85A308D3243F6A88, 0x0370734413198A2E),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("key", "counter", "words"), ANSWERS)
def test_known_answers(key, counter, words):
    found = philox4x32(np.array([key], dtype=np.uint64), np.array([counter], dtype=np.uint64))
    assert tuple(found[:, 0].tolist()) == words


def test_rows_are_independent_of_each_other():
    keys = np.array([1, 2, 3], dtype=np.uint64)
    counter = np.array([5, 0], dtype=np.uint64)
    together = philox4x32(keys, counter)
    alone = [philox4x32(keys[place : place + 1], counter)[:, 0] for place in range(3)]
    assert np.array_equal(together, np.stack(alone, axis=1))
