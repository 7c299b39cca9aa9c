"""The generator in torch gives the words of the NumPy one, bit by bit."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.keyed import absorb, keys_torch, philox, philox_torch
from flodl_pipe.keyed.pick_keys import PickKeys
from tests.support.programs import environment

# The known answers of Random123 (kat_vectors), as in test_philox.
ANSWERS = [
    (0, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (2**64 - 1, (2**64 - 1, 2**64 - 1), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        0x299F31D0A4093822,
        (0x85A308D3243F6A88, 0x0370734413198A2E),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
WORDS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def tensor(words, device="cpu"):
    return torch.from_numpy(np.array(words, dtype=np.uint64).view(np.int64)).to(device)


def array(found):
    return found.cpu().numpy().view(np.uint64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("key", "counter", "words"), ANSWERS)
def test_known_answers(key, counter, words, device):
    found = philox_torch.philox4x32(tensor([key], device), tensor([counter], device))
    assert found.dtype == torch.int64
    assert tuple(found[:, 0].tolist()) == words


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=20))
def test_words_equal_those_of_numpy(rows):
    key, low, high = (np.array(column, dtype=np.uint64) for column in zip(*rows, strict=True))
    counter = np.stack([low, high], axis=1)
    found = philox_torch.philox4x32(tensor(key), tensor(counter))
    assert np.array_equal(array(found), philox.philox4x32(key, counter))


def test_one_counter_serves_all_rows():
    key = np.arange(9, dtype=np.uint64)
    found = philox_torch.philox4x32(tensor(key), tensor([3, 0]))
    assert np.array_equal(array(found), philox.philox4x32(key, np.array([3, 0], dtype=np.uint64)))


@settings(max_examples=100, deadline=None)
@given(key=WORDS, rows=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=20))
def test_absorbing_equals_that_of_numpy(key, rows):
    own, words = (np.array(column, dtype=np.uint64) for column in zip(*rows, strict=True))
    common = philox_torch.absorb_words(key, tensor(words))
    assert np.array_equal(array(common), absorb.absorb_words(key, words))
    each = philox_torch.absorb_words(tensor(own), tensor(words))
    assert np.array_equal(array(each), absorb.absorb_words(own, words))


@settings(max_examples=60, deadline=None)
@given(
    sample=st.lists(st.integers(0, 2**62), min_size=0, max_size=20),
    repeat=st.integers(0, 2**62),
    epoch=WORDS,
    seed=WORDS,
    streams=st.tuples(WORDS, WORDS),
    count=st.integers(1, 13),
    high=st.integers(1, 2**32) | st.sampled_from([1, 2**31, 2**32 - 1, 2**32]),
)
def test_draws_equal_those_of_the_keys(sample, repeat, epoch, seed, streams, count, high):
    sample = np.array(sample, dtype=np.int64)
    keys = PickKeys(sample, np.full_like(sample, repeat), epoch, seed, streams[0])
    own = streams[1]
    assert np.array_equal(array(keys_torch.words(keys, count, "cpu", own)), keys.words(count, stream=own))
    uniform = keys_torch.uniform(keys, count, "cpu", own)
    assert uniform.dtype == torch.float32
    assert np.array_equal(uniform.numpy(), keys.uniform(count, stream=own))
    integers = keys_torch.integers(keys, high, count, "cpu", own)
    assert integers.dtype == torch.int64
    assert np.array_equal(integers.numpy(), keys.integers(high, count, stream=own))


@pytest.mark.parametrize("device", DEVICES)
def test_values_are_pinned(device):
    keys = PickKeys(np.array([0, 1, 5]), np.array([0, 0, 1]), 3, 42)
    assert keys_torch.words(keys, 2, device).tolist() == [
        [628052809, 1929739392],
        [3782851468, 3787362844],
        [3542699291, 341885515],
    ]
    assert keys_torch.integers(keys, 10, 4, device, 1).tolist() == [[3, 4, 8, 6], [8, 4, 8, 0], [5, 5, 6, 6]]


def test_keys_may_be_views_and_read_only():
    sample = np.arange(20)[::-2]
    sample.setflags(write=False)
    keys = PickKeys(sample, np.zeros_like(sample), 0, 1)
    assert np.array_equal(array(keys_torch.words(keys, 3, "cpu")), keys.words(3))


@pytest.mark.parametrize("high", [0, 2**32 + 1])
def test_a_range_that_32_bits_do_not_hold_is_refused(high):
    keys = PickKeys(np.array([1]), np.array([0]), 0, 1)
    with pytest.raises(ValueError, match=f"got {high}"):
        keys_torch.integers(keys, high, 1, "cpu")


def test_the_keys_themselves_do_not_load_torch():
    code = "import sys, flodl_pipe.keyed.pick_keys\nsys.exit('torch' in sys.modules)"
    # A Python of its own: what it has imported is the question.
    assert subprocess.run([sys.executable, "-c", code], env=environment(), timeout=120).returncode == 0
