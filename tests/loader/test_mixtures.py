"""Loaders of mixtures: what a cursor remembers of the weights, through resumes, forks and batches that were kept."""

import json
import os
from fractions import Fraction

import pytest

from flodl_pipe.errors import ResumeError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.mixture import Mixture
from flodl_pipe.sources.ordering import Weights
from tests.loader.sources import Numbers


def mixed(a, b):
    parts = {"a": Numbers(400), "b": Numbers(300)}
    return Mixture(parts, (Weights(0, (Fraction(a), Fraction(b))),), block=10)


def loader(a, b):
    return Loader(mixed(a, b), batch_size=10, readers=0)


def samples(batches, count):
    return [next(batches).pick_keys.sample.tolist() for _ in range(count)]


@pytest.fixture
def resumed():
    """A loader that was saved under weights 8:2 after 30 steps, and goes on under 2:8."""
    with loader(8, 2) as first:
        batches = iter(first)
        samples(batches, 30)
        state = json.loads(json.dumps(first.state_dict()))
    again = loader(2, 8)
    again.load_state_dict(state)
    yield again
    again.close()


def test_the_parts_are_counted_over_the_whole_run(resumed):
    assert resumed.parts() == (("a", 400, 240), ("b", 300, 60))
    samples(iter(resumed), 10)
    assert resumed.parts() == (("a", 400, 260), ("b", 300, 140))


def test_a_forked_child_goes_on_under_the_same_history(resumed):
    assert resumed.state_dict()["mixture"] == "0:8,2"
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, json.dumps([samples(iter(resumed), 5), resumed.state_dict()["mixture"]]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        found = told.read()
    os.waitpid(child, 0)
    wanted = samples(iter(resumed), 5)
    assert json.loads(found) == [wanted, resumed.state_dict()["mixture"]]
    assert resumed.state_dict()["mixture"] == "0:8,2;300:2,8"


def test_a_kept_batch_keeps_its_cursor(resumed):
    with loader(2, 8) as fresh:
        batch = next(iter(fresh))
        before = batch.cursor
    first = next(iter(resumed))
    kept = first.cursor
    with loader(8, 2) as other:
        resumed.load_state_dict(next(iter(other)).cursor)
    assert (first.cursor, batch.cursor) == (kept, before)


def test_a_history_where_none_belongs_is_refused():
    with Loader(Numbers(40), batch_size=4) as one:
        state = next(iter(one)).cursor
        for key in ("mixture", "streams"):
            with pytest.raises(ResumeError, match="which this source is not"):
                one.load_state_dict({**state, key: "0:1,2"})
