"""How long requests are made again, and at what intervals, by a clock of the test's own."""

import asyncio

import pytest

from flodl_pipe.storage.remote_errors import StoreError
from flodl_pipe.storage.remote_patience import Patience, RemotePolicy
from tests.storage.waiting import Waiting

POLICY = RemotePolicy(patience_s=10.0, opening_patience_s=3.0, first_backoff_s=0.1, longest_backoff_s=0.4)


@pytest.fixture
def time(monkeypatch):
    return Waiting(monkeypatch)


def insist(attempt, *, known=True, policy=POLICY):
    return asyncio.run(Patience(policy).insist(attempt, lambda: known))


class Failing:
    """A request that fails so many times, each after some seconds."""

    def __init__(self, time, times, *, takes_s=0.0, retryable=True):
        self.time, self.times, self.takes_s, self.retryable, self.tries = time, times, takes_s, retryable, 0

    async def __call__(self):
        self.tries += 1
        self.time.now_s += self.takes_s
        if self.tries <= self.times:
            raise StoreError("the server is away", retryable=self.retryable)
        return "an answer"


def test_waits_are_about_twice_as_long_each_time_up_to_the_longest(time):
    assert insist(Failing(time, 6)) == "an answer"
    for wait, mean in zip(time.waits, [0.1, 0.2, 0.4, 0.4, 0.4, 0.4], strict=True):
        assert 0.5 * mean <= wait <= 1.5 * mean
    assert len(set(time.waits)) == 6


def test_an_answer_at_the_first_try_takes_no_time(time):
    assert insist(Failing(time, 0)) == "an answer"
    assert time.waits == []


@pytest.mark.parametrize(("known", "patience_s"), [(True, 10.0), (False, 3.0)])
def test_it_is_given_up_when_the_time_is_up_and_not_before(time, known, patience_s):
    """One that has never answered is waited for a shorter time."""
    failing = Failing(time, 1_000)
    with pytest.raises(StoreError, match=rf"is away; given up after (\d+) tries in {patience_s:.0f}\.\d+ s"):
        insist(failing, known=known)
    assert time.now_s == pytest.approx(1000.0 + patience_s + 0.001)
    assert failing.tries == len(time.waits) + 1 > patience_s / 0.6


def test_time_is_counted_from_the_first_failure_where_the_server_is_known(time):
    """A try that takes long leaves as much time for others as one that fails at once."""
    with pytest.raises(StoreError, match=r"given up after \d+ tries"):
        insist(Failing(time, 1_000, takes_s=4.0))
    assert time.now_s >= 1000.0 + 4.0 + POLICY.patience_s
    time.now_s = 1000.0
    with pytest.raises(StoreError, match="given up after 1 try"):
        insist(Failing(time, 1_000, takes_s=4.0), known=False)
    assert time.now_s == 1004.0


def test_what_does_not_pass_is_not_tried_again(time):
    failing = Failing(time, 1, retryable=False)
    with pytest.raises(StoreError, match=r"the server is away$"):
        insist(failing)
    assert (failing.tries, time.waits) == (1, [])


def test_a_server_that_is_started_again_is_waited_for_and_a_wrong_address_is_not_for_long():
    assert RemotePolicy().patience_s >= 20
    assert RemotePolicy().opening_patience_s <= 5
