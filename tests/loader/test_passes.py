"""The iteration rules, one by one, without any data: an epoch has 10 positions and steps of 4 (short last one)."""

import pytest

from flodl_pipe.loader.passes import Passes


def steps_left(position):
    return -(-(10 - position) // 4)


@pytest.fixture
def passes():
    return Passes()


def run(passes, *positions, ended):
    start = passes.following(steps_left)
    passes.begin(*start)
    for position in positions:
        passes.step_done(position)
    if ended:
        passes.end()
    return start


def test_epochs_follow_each_other(passes):
    assert [run(passes, 4, 8, 10, ended=True) for _ in range(3)] == [(0, 0), (1, 0), (2, 0)]
    assert (passes.epoch, passes.position) == (2, 10)


def test_a_broken_pass_starts_over(passes):
    run(passes, 4, ended=False)
    assert (passes.epoch, passes.position) == (0, 4)
    assert run(passes, ended=False) == (0, 0)
    assert passes.position == 0


def test_a_loaded_place_is_continued_once(passes):
    passes.load(3, 4)
    assert (passes.epoch, passes.position) == (3, 4)
    assert run(passes, 8, ended=False) == (3, 4)
    assert run(passes, ended=False) == (3, 0)


def test_a_pass_that_handed_out_nothing_keeps_a_loaded_place(passes):
    passes.load(3, 4)
    assert run(passes, ended=False) == (3, 4)
    assert run(passes, ended=False) == (3, 4)


def test_a_loaded_end_leads_on_unless_its_epoch_is_named(passes):
    passes.load(3, 10)
    assert passes.following(steps_left) == (4, 0)
    assert passes.name_epoch(3)
    assert passes.following(steps_left) == (3, 10)


def test_another_epoch_drops_a_loaded_place(passes):
    passes.load(3, 4)
    assert not passes.name_epoch(1)
    assert passes.following(steps_left) == (1, 0)


def test_a_negative_epoch_is_refused(passes):
    with pytest.raises(ValueError, match="got -2"):
        passes.name_epoch(-2)
