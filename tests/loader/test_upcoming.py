"""The next epoch's order is made ahead, once, and only where it is the one that is asked for.

White box: what was made ahead is looked at before it is taken.
"""

import numpy as np
import pytest

from flodl_pipe.loader.loader import Loader
from flodl_pipe.loader.upcoming import Upcoming
from flodl_pipe.sampling.orders import UniformOrder
from flodl_pipe.sampling.steps import Steps
from tests.loader.sources import Numbers
from tests.loader.waiting import until


class Counted:
    """A uniform order that counts the epochs made."""

    def __init__(self, num_picks=100, last=1 << 60):
        self._order = UniformOrder(num_picks, 7)
        self.num_picks, self.num_repeats, self.tag, self.last = num_picks, 1, self._order.tag, last
        self.made = []

    def epoch(self, epoch):
        self.made.append(epoch)
        if epoch > self.last:
            raise ValueError(f"no epoch {epoch}")
        return self._order.epoch(epoch)


@pytest.fixture
def order():
    return Counted()


@pytest.fixture
def upcoming():
    return Upcoming(Steps(100, 10, True), group_steps=2)


def test_what_was_made_ahead_is_taken_once(upcoming, order):
    upcoming.prepare(order, 3)
    upcoming.prepare(order, 3)
    assert order.made == [3]
    first = upcoming.take(order, 3, 0)
    assert order.made == [3]
    assert upcoming.take(order, 3, 0) is not first
    assert order.made == [3, 3]
    np.testing.assert_array_equal(first.rows(0, 10).samples, order.epoch(3).at(0, 100))


@pytest.mark.parametrize(("epoch", "position"), [(4, 0), (3, 10), (2, 0)])
def test_another_place_is_made_afresh_and_nothing_is_kept(upcoming, order, epoch, position):
    upcoming.prepare(order, 3)
    ahead = upcoming.take(order, epoch, position)
    assert (ahead.epoch, ahead.position) == (epoch, position)
    assert order.made == [3, epoch]
    assert upcoming._made is None


def test_another_order_is_made_afresh(upcoming, order):
    upcoming.prepare(order, 3)
    other = Counted()
    upcoming.take(other, 3, 0)
    assert other.made == [3]


def test_what_is_wrong_with_the_next_epoch_is_said_to_the_loop_that_begins_it(upcoming):
    order = Counted(last=3)
    upcoming.prepare(order, 4)
    with pytest.raises(ValueError, match="no epoch 4"):
        upcoming.take(order, 4, 0)


@pytest.mark.parametrize("readers", [1, 2])
def test_readers_with_nothing_left_to_claim_make_the_next_order(readers):
    with Loader(Numbers(200), batch_size=4, readers=readers) as loader:
        for epoch in (0, 1):
            batches = loader.epoch(epoch)
            taken = [next(batches) for _ in range(49)]  # with the last one the pass would end
            until(lambda: loader._engine._upcoming._made is not None, "the next epoch's order")
            _, ahead = loader._engine._upcoming._made
            assert (ahead.epoch, ahead.position) == (epoch + 1, 0)
            assert len(taken + list(batches)) == 50


@pytest.mark.parametrize("options", [{"readers": 1, "prefetch": 4}, {"readers": 0}])
def test_a_pass_that_is_broken_off_makes_none(options):
    with Loader(Numbers(4000), batch_size=4, **options) as loader:
        for _ in loader.epoch(0):
            break
        assert loader._engine._upcoming._made is None
