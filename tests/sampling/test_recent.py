"""What was computed last is kept, and nothing else; positions are dealt to their pieces."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.sampling.recent import Recent, by_number


def test_the_last_few_pieces_are_made_once():
    made = []

    def make(number):
        made.append(number)
        return f"piece {number}"

    recent = Recent[str]()
    asked = [1, 1, 2, 3, 4, 1, 5, 2, 1]
    assert [recent.get(number, make) for number in asked] == [f"piece {number}" for number in asked]
    assert made == [1, 2, 3, 4, 5, 1]


def test_a_piece_that_could_not_be_made_is_not_kept():
    recent = Recent[int]()
    with pytest.raises(ZeroDivisionError):
        recent.get(0, lambda number: 1 // number)
    assert recent.get(0, lambda number: number + 7) == 7


@settings(deadline=None)
@given(numbers=st.lists(st.integers(-1, 5), max_size=30))
def test_each_number_comes_once_with_all_its_places(numbers):
    given_numbers = np.array(numbers, dtype=np.int64)
    found = [(number, np.arange(len(numbers))[here].tolist()) for number, here in by_number(given_numbers)]
    assert found == [
        (number, [place for place, other in enumerate(numbers) if other == number]) for number in sorted(set(numbers))
    ]
