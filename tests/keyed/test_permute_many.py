"""Families of keyed bijections: exact, invertible, pinned, and as good as shuffles side by side."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.keyed.permute_many import ALGORITHM, MAX_MEMBERS, permutations

# Pinned: a run that resumes after an upgrade must meet the same order. If a value changes, so must ALGORITHM.
GOLDEN = [
    ((3, 4, 42), {"num_larger": 1}, [2, 0, 3, 4, 3, 0]),
    ((64, 1024, 42), {}, [109, 267, 617, 602, 293, 974]),
    ((64, 1025, 42, 7), {}, [460, 585, 880, 864, 354, 813]),
    ((100, 1000, 42), {"num_larger": 7, "step": 3}, [498, 376, 163, 695, 752, 486]),
    ((4, 10**12, 42), {}, [855429960731, 693368490560, 14785543528, 618963502648, 811398284446, 639728793067]),
]


@pytest.mark.parametrize(("key", "options", "first"), GOLDEN)
def test_values_are_pinned(key, options, first):
    assert ALGORITHM == "m1"
    six = np.arange(6)
    assert permutations(*key, **options).at(six % key[0], six % key[1]).tolist() == first


@st.composite
def families(draw):
    """Any sizes, also around where the exact shuffle ends."""
    num_items = draw(st.integers(1, 40))
    members = draw(st.integers(1, 60) | st.integers(65_536 // num_items - 2, 65_536 // num_items + 3))
    larger = draw(st.integers(0, members - 1))
    return members, num_items, larger, draw(st.integers(1, 5))


@settings(max_examples=40, deadline=None)
@given(sizes=families(), seed=st.integers(0, 2**64 - 1))
def test_every_member_has_each_of_its_items_once_and_the_inverse_finds_it(sizes, seed):
    num_members, num_items, num_larger, step = sizes
    family = permutations(num_members, num_items, seed, num_larger=num_larger, step=step)
    counts = np.full(num_members, num_items)
    counts[:num_larger] += step
    members = np.repeat(np.arange(num_members), counts)
    positions = np.arange(len(members)) - np.repeat(np.cumsum(counts) - counts, counts)
    items = family.at(members, positions)
    assert items.dtype == np.int64
    assert np.array_equal(items[np.lexsort((items, members))], positions)
    assert np.array_equal(family.inverse(members, items), positions)
    some = np.random.default_rng(0).permutation(len(members))[:50]
    assert np.array_equal(family.at(members[some], positions[some]), items[some])


@pytest.mark.parametrize(("members", "items"), [(MAX_MEMBERS, 1), (4, 2**60)])
def test_sizes_reach_2_to_the_62(members, items):
    if members > 10**6:
        with pytest.raises(ValueError, match=r"2\*\*31"):
            permutations(members + 1, items)
        return
    family = permutations(members, items, 9)
    some = np.arange(100) * (items // 100)
    for member in range(members):
        found = family.at(np.full(100, member), some)
        assert np.array_equal(family.inverse(np.full(100, member), found), some)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [((0, 5), {}), ((5, 0), {}), ((5, 5), {"num_larger": 5}), ((5, 5), {"step": 0}), ((4, 2**60 + 1), {})],
)
def test_sizes_out_of_range_are_refused(sizes, options):
    with pytest.raises(ValueError, match=r"permutations|members need"):
        permutations(*sizes, **options)


def rows_of(family, num_members, num_items):
    members = np.repeat(np.arange(num_members), num_items)
    return family.at(members, np.tile(np.arange(num_items), num_members)).reshape(num_members, num_items)


def off(counts):
    """Return by how many standard deviations counts are off from even ones."""
    expected = counts.sum() / counts.size
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    return (chi_squared - (counts.size - 1)) / math.sqrt(2 * (counts.size - 1))


@pytest.mark.parametrize("num_items", [2, 3, 5, 6, 7])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
def test_all_orders_of_a_few_items_are_as_likely(num_items, seed):
    num_members = 500_000 // num_items
    rows = rows_of(permutations(num_members, num_items, seed), num_members, num_items)
    codes = rows @ num_items ** np.arange(num_items)
    counts = np.zeros(math.factorial(num_items))
    found = np.unique(codes, return_counts=True)[1]
    counts[: len(found)] = found
    assert off(counts) < 5


@pytest.mark.parametrize("num_items", [9, 16, 33, 64, 500, 2000])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
def test_places_neighbours_and_members_side_by_side_are_like_shuffles(num_items, seed):
    num_members = 800_000 // num_items
    rows = rows_of(permutations(num_members, num_items, seed), num_members, num_items)
    if num_items <= 64:
        counts = np.zeros((num_items, num_items))
        np.add.at(counts, (np.tile(np.arange(num_items), num_members), rows.reshape(-1)), 1)
        expected, freedom = num_members / num_items, (num_items - 1) ** 2
        chi_squared = ((counts - expected) ** 2 / expected).sum() * (num_items - 1) / num_items
        assert abs(chi_squared - freedom) < 5 * math.sqrt(2 * freedom)
    neighbours = np.bincount(((rows[:, 1:] - rows[:, :-1]) % num_items).reshape(-1), minlength=num_items)
    assert neighbours[0] == 0
    assert off(neighbours[1:]) < 5
    side_by_side = np.bincount(((rows[1:] - rows[:-1]) % num_items).reshape(-1), minlength=num_items)
    assert off(side_by_side) < 5


def test_families_of_neighbouring_keys_have_nothing_in_common():
    families = [permutations(700, 100, *key) for key in ((1, 2), (1, 3), (2, 2), (2, 1), (1,), (1, 2, 0))]
    rows = [rows_of(family, 700, 100).reshape(-1) for family in families]
    for place, one in enumerate(rows):
        for other in rows[:place]:
            assert abs(int((one == other).sum()) - 700) < 5 * math.sqrt(700)
