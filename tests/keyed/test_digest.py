"""The digest: additive over parts, and changed by every kind of fault."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.batch.ragged import Ragged
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


def ragged_hashes(rows, dtype="uint16", positions=None, inner=()):
    """Hashes of one ragged field, given as lists."""
    values = [np.array(row, dtype=dtype).reshape(-1, *inner) for row in rows]
    n = len(rows)
    index = np.arange(n, dtype=np.int64)
    return row_hashes(
        [Ragged.of(values)],
        epoch=0,
        positions=index if positions is None else np.asarray(positions),
        samples=index,
        repeats=np.zeros(n, dtype=np.int64),
    )


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 255), max_size=40), min_size=1, max_size=12),
    dtype=st.sampled_from(["uint8", "uint16", "float32", "int64", "complex128", "bool"]),
)
def test_a_ragged_row_has_the_hash_of_the_same_bytes_alone_in_an_array(rows, dtype):
    found = ragged_hashes(rows, dtype)
    for row, values in enumerate(rows):
        index = np.array([row])
        if values:
            (wanted,) = hashes(np.array([values], dtype=dtype), positions=index, samples=index)
            assert found[row].tolist() == wanted.tolist()
    assert len(np.unique(found, axis=0)) == len(rows)


def test_rows_of_elements_with_axes_are_hashed_by_their_bytes():
    flat, shaped = ragged_hashes([[1, 2, 3, 4, 5, 6], [], [7, 8]]), ragged_hashes([range(1, 7), [], [7, 8]], inner=(2,))
    assert flat.tolist() == shaped.tolist()


def test_where_a_ragged_row_ends_counts_as_much_as_its_bytes():
    def same(*rows):
        return [tuple(ragged_hashes([row])[0].tolist()) for row in rows]

    assert len(set(same([], [0], [0, 0], [0, 0, 0], [0] * 4, [0] * 5, [1], [0, 1], [1, 0]))) == 9
    two = [Ragged.of([np.array(part, np.uint8)]) for part in ([1, 2], [3])]
    other = [Ragged.of([np.array(part, np.uint8)]) for part in ([1], [2, 3])]
    none = np.zeros(1, dtype=np.int64)
    first, second = (row_hashes(fields, epoch=0, positions=none, samples=none, repeats=none) for fields in (two, other))
    assert first.tolist() != second.tolist()


def test_any_changed_byte_of_a_ragged_row_changes_its_hash_alone():
    rows = [list(range(n)) for n in (5, 0, 1, 8, 3)]
    whole = ragged_hashes(rows, "uint8")
    for row, values in enumerate(rows):
        for place in range(len(values)):
            damaged = [list(row) for row in rows]
            damaged[row][place] ^= 1
            differs = (ragged_hashes(damaged, "uint8") != whole).any(axis=1)
            assert np.flatnonzero(differs).tolist() == [row]


def test_many_rows_are_hashed_as_few():
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 255, n, dtype=np.uint8) for n in (*rng.integers(0, 9000, 40), 200_000, 0, 0, 70_000, 0)]
    index = np.arange(len(rows), dtype=np.int64)
    whole = ragged_hashes(rows, "uint8")
    for row in index.tolist():
        one = index[row : row + 1]
        (alone,) = row_hashes([Ragged.of([rows[row]])], epoch=0, positions=one, samples=one, repeats=one * 0)
        assert alone.tolist() == whole[row].tolist()


def test_ragged_and_fixed_fields_are_hashed_together():
    label = np.arange(3, dtype=np.int64)
    ids = Ragged.of([np.array(row, dtype=np.int32) for row in ([1, 2], [], [3])])
    index = np.arange(3, dtype=np.int64)

    def of(*fields):
        return row_hashes(fields, epoch=0, positions=index, samples=index, repeats=index).tolist()

    assert of(label, ids) != of(ids, label)
    assert of(label, ids)[2] != of(label + 1, ids)[2]
    empty = Ragged(np.empty(0, np.int32), np.zeros(4, np.int64))
    assert len({tuple(row) for row in of(empty)}) == 3
