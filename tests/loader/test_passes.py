"""The iteration rules, one by one, without any data: an epoch has 10 positions and steps of 4 (short last one)."""

import pytest

from flodl_pipe.loader.identity import Spot
from flodl_pipe.loader.passes import Passes


def is_end(spot):
    return spot.position >= 10


@pytest.fixture
def passes():
    return Passes()


def run(passes, *positions, ended):
    start = passes.following(is_end)
    passes.begin(start)
    for position in positions:
        passes.step_done(Spot(start.epoch, position))
    if ended:
        passes.end()
    return start[:2]


def test_epochs_follow_each_other(passes):
    assert [run(passes, 4, 8, 10, ended=True) for _ in range(3)] == [(0, 0), (1, 0), (2, 0)]
    assert passes.spot[:2] == (2, 10)


def test_a_broken_pass_starts_over(passes):
    run(passes, 4, ended=False)
    assert passes.spot[:2] == (0, 4)
    assert run(passes, ended=False) == (0, 0)
    assert passes.spot.position == 0


def test_a_loaded_place_is_continued_once(passes):
    passes.load(Spot(3, 4))
    assert passes.spot[:2] == (3, 4)
    assert run(passes, 8, ended=False) == (3, 4)
    assert run(passes, ended=False) == (3, 0)


def test_a_pass_that_handed_out_nothing_keeps_a_loaded_place(passes):
    passes.load(Spot(3, 4))
    assert run(passes, ended=False) == (3, 4)
    assert run(passes, ended=False) == (3, 4)


def test_a_loaded_end_leads_on_unless_its_epoch_is_named(passes):
    passes.load(Spot(3, 10))
    assert passes.following(is_end)[:2] == (4, 0)
    assert passes.name_epoch(3)
    assert passes.following(is_end)[:2] == (3, 10)


def test_another_epoch_drops_a_loaded_place(passes):
    passes.load(Spot(3, 4))
    assert not passes.name_epoch(1)
    assert passes.following(is_end)[:2] == (1, 0)


def test_a_negative_epoch_is_refused(passes):
    with pytest.raises(ValueError, match="got -2"):
        passes.name_epoch(-2)
