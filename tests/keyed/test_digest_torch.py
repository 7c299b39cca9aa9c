"""Row hashes on a device: those of the host, bit by bit.

White box: the bytes of rows that are hashed at once are made few.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.keyed import digest_torch
from flodl_pipe.keyed.digest import row_hashes, row_states
from flodl_pipe.keyed.digest_torch import content_words, row_hash_sums

WIDTHS = st.sampled_from([0, 1, 3, 7, 8, 9, 16, 31, 64, 250, 4096])


def identity(num_rows, seed):
    rng = np.random.default_rng(seed)
    return {
        "positions": rng.integers(0, 2**40, num_rows),
        "samples": rng.integers(0, 2**62, num_rows),
        "repeats": rng.integers(0, 3, num_rows),
    }


def states_of(who, epoch):
    return torch.from_numpy(row_states(epoch=epoch, **who).view(np.int64))


@settings(max_examples=80, deadline=None)
@given(
    num_rows=st.integers(0, 9),
    widths=st.lists(WIDTHS, min_size=1, max_size=3),
    offset=st.integers(0, 9),
    seed=st.integers(0, 2**32),
    masked=st.booleans(),
)
def test_sums_are_those_of_the_host(num_rows, widths, offset, seed, masked):
    rng = np.random.default_rng(seed)
    fields = [rng.integers(0, 256, (num_rows, width), dtype=np.uint8) for width in widths]
    who, epoch = identity(num_rows, seed), seed % 5
    valid = rng.random(num_rows) < 0.5 if masked else np.ones(num_rows, bool)
    hashes = row_hashes(fields, epoch=epoch, **who)[valid]

    def placed(field):
        """Return the field at some odd byte of a larger tensor."""
        memory = torch.zeros(field.size + offset, dtype=torch.uint8)
        memory[offset:] = torch.from_numpy(field.reshape(-1))
        return memory[offset:].view(field.shape)

    found = row_hash_sums(states_of(who, epoch), map(placed, fields), torch.from_numpy(valid) if masked else None)
    assert found.dtype == torch.int64
    assert found.numpy().view(np.uint64).tolist() == hashes.sum(axis=0, dtype=np.uint64).tolist()


def test_columns_of_a_wider_row_are_hashed_as_if_they_were_alone():
    rows = torch.from_numpy(np.random.default_rng(3).integers(0, 256, (5, 40), dtype=np.uint8))
    for first, last in [(0, 16), (8, 24), (3, 19), (0, 40), (1, 14)]:
        assert torch.equal(content_words(rows[:, first:last]), content_words(rows[:, first:last].clone()))


def test_many_rows_are_hashed_in_groups(monkeypatch):
    rows = np.random.default_rng(1).integers(0, 256, (23, 24), dtype=np.uint8)
    whole = content_words(torch.from_numpy(rows))
    monkeypatch.setattr(digest_torch, "_GROUP_BYTES", 5 * 24)
    assert torch.equal(content_words(torch.from_numpy(rows)), whole)


@pytest.mark.parametrize("byte", [0, 7, 8, 12])
def test_a_changed_byte_changes_the_sums(byte):
    rows = torch.zeros((3, 13), dtype=torch.uint8)
    who = states_of(identity(3, 0), 0)
    before = row_hash_sums(who, [rows])
    rows[1, byte] = 1
    assert not (row_hash_sums(who, [rows]) == before).any()


def test_the_states_handed_in_are_left_alone():
    who = states_of(identity(4, 0), 0)
    kept = who.clone()
    row_hash_sums(who, [torch.ones((4, 8), dtype=torch.uint8)])
    assert torch.equal(who, kept)
