"""The purity check: what differs is found and explained, what is equal bit for bit is let through."""

import itertools
import re

import numpy as np
import pytest
import torch

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.adapters import adapt
from flodl_pipe.sources.purity import require_pure
from tests.loader.sources import Numbers


class Rows:
    def __init__(self, make, n=100):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.make(index)


def check(make, indices=(0, 40, 99)):
    require_pure(adapt(Rows(make)), np.array(indices, dtype=np.int64))


def test_a_pure_source_passes():
    check(lambda i: {"x": torch.full((2, 2), i), "y": i})
    require_pure(Numbers(10), np.arange(4))
    require_pure(adapt(np.arange(6)), np.array([3]))


def test_equal_bits_are_equal_whatever_they_stand_for():
    patterns = np.array([0x7FC00000, 0xFFC00001, 0x7F800001, 0x80000000, 0], dtype=np.uint32)
    check(lambda i: patterns.view(np.float32))
    check(lambda i: np.array([np.nan + 1j, np.inf], dtype=np.complex64))


@pytest.mark.parametrize("zero", [np.float32(-0.0), np.float32(0.0)])
def test_a_bit_that_differs_is_seen_where_the_values_are_equal(zero):
    calls = itertools.count()
    with pytest.raises(SourceError, match=r"the first was -?0.0 and then -?0.0"):
        check(lambda i: np.copysign(zero, 1 if next(calls) % 2 else -1), [0, 1, 2, 3])


def test_randomness_is_named_with_index_field_and_remedies():
    rng = np.random.default_rng(0)

    def make(index):
        image = np.zeros((3, 4), np.float32)
        if index == 40:
            image[1, 2] = rng.random()
        return {"label": index, "image": image}

    with pytest.raises(SourceError) as caught:
        check(make)
    text = str(caught.value)
    assert text.startswith("sample 40 is not the same when it is read again: 1 of 12 values of field 'image' differ")
    assert re.search(r"the first was 0\.\d+ and then 0\.\d+\.", text)
    for part in ("augmentation", "frozen", "resumed", "batch.pick_keys", "source.pure=false", "seeds every sample"):
        assert part in text
    assert "loader.check_purity=false" in text


def test_data_changed_in_place_is_found():
    data = np.zeros((100, 2))

    def make(index):
        data[index] += 1
        return data[index]

    with pytest.raises(SourceError, match="2 of 2 values"):
        check(make)


def test_state_that_hangs_on_the_order_of_reads_is_found():
    calls = itertools.count()
    # The same in both passes, if both went the same way.
    with pytest.raises(SourceError, match="sample 0 is not the same"):
        check(lambda i: next(calls) % 3 + (next(calls) > 1e9), [0, 40, 99])


def test_batch_datasets_are_checked_too():
    class Batches:
        def __len__(self):
            return 10

        def get_batch(self, indices):
            return np.random.default_rng().random(len(indices)).astype(np.float32)

    with pytest.raises(SourceError, match="field '0' differ"):
        require_pure(adapt(Batches()), np.arange(4))


def ragged(make):
    require_pure(adapt(Rows(make), ragged=["ids"]), np.array([0, 40, 99]))


def test_ragged_rows_are_held_to_their_lengths_and_bytes():
    ragged(lambda i: {"ids": np.arange(i % 7), "x": i})
    ragged(lambda i: {"ids": np.full((i % 7, 2), np.nan), "x": i})
    calls = itertools.count()

    def of_any_length(index):
        return {"ids": np.zeros(next(calls) if index == 40 else index % 7)}

    with pytest.raises(SourceError, match=r"sample 40 .* field 'ids' had length \d+ and then \d+\. A source must"):
        ragged(of_any_length)
    with pytest.raises(SourceError, match=r"sample 40 .* 1 of 5 values of field 'ids' differ, the first was \d+ and"):
        ragged(lambda i: {"ids": np.array([0] * (i % 7) if i != 40 else [0, 0, 0, 0, next(calls)], int)})
    with pytest.raises(SourceError, match=r"sample 40 .* 1 of 1 values of field 'x' differ"):
        ragged(lambda i: {"ids": np.arange(i % 7), "x": next(calls) if i == 40 else 0})
