"""The digest: additive over parts, and changed by every kind of fault."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.keyed.digest import Digest, row_hashes


def hashes(rows, positions=None, samples=None, epoch=0):
    n = len(rows)
    index = np.arange(n, dtype=np.int64)
    return row_hashes(
        [rows],
        epoch=epoch,
        positions=index if positions is None else positions,
        samples=index if samples is None else samples,
        repeats=np.zeros(n, dtype=np.int64),
    )


def digest(found):
    result = Digest()
    result.add(found)
    return result.hex()


@pytest.fixture
def rows():
    return np.random.default_rng(0).integers(0, 60_000, (64, 33), dtype=np.uint16)


@settings(max_examples=50, deadline=None)
@given(cut=st.integers(0, 64), order=st.permutations(range(64)))
def test_parts_in_any_order_add_up(cut, order):
    found = hashes(np.arange(64 * 5, dtype=np.uint16).reshape(64, 5))
    first, second = Digest(), Digest()
    first.add(found[list(order[:cut])])
    second.add(found[list(order[cut:])])
    first.merge(second)
    assert first.hex() == digest(found)
    assert first.num_rows == 64


def test_a_digest_continues_from_its_text(rows):
    found = hashes(rows)
    begun = Digest()
    begun.add(found[:20])
    continued = Digest.from_hex(begun.hex(), begun.num_rows)
    continued.add(found[20:])
    assert continued.hex() == digest(found)


@pytest.mark.parametrize("width", [1, 3, 4, 8, 33])
def test_any_changed_byte_changes_it(width):
    rows = np.random.default_rng(width).integers(0, 255, (6, width), dtype=np.uint8)
    whole = digest(hashes(rows))
    for row in range(6):
        for column in range(width):
            damaged = rows.copy()
            damaged[row, column] ^= 1
            assert digest(hashes(damaged)) != whole


def test_lost_doubled_swapped_and_misplaced_rows_change_it(rows):
    found = hashes(rows)
    whole = digest(found)
    swapped = rows.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    index = np.arange(64)
    faults = [
        digest(found[1:]),
        digest(np.concatenate([found, found[:1]])),
        digest(hashes(swapped)),
        digest(hashes(rows, positions=index + 1)),
        digest(hashes(rows, samples=index[::-1].copy())),
        digest(hashes(rows, epoch=1)),
    ]
    assert whole not in faults
    assert len(set(faults)) == len(faults)


def test_words_that_change_places_within_a_row_change_it():
    rows = np.array([[1, 2, 3, 4]], dtype=np.uint64)
    assert digest(hashes(rows)) != digest(hashes(rows[:, ::-1].copy()))
