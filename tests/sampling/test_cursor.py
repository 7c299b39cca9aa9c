"""The cursor: a plain dict with fixed keys, refused when it is not ours or belongs elsewhere."""

import json

import pytest

from flodl_pipe.errors import ResumeError
from flodl_pipe.sampling.cursor import Cursor

CURSOR = Cursor(epoch=3, position=96, global_batch=32, order="uniform f6v1 picks=100 seed=42", source="data [ab]")


def test_it_survives_json_with_fixed_keys():
    state = json.loads(json.dumps(CURSOR.state()))
    assert Cursor.from_state(state) == CURSOR
    assert sorted(state) == [
        "epoch",
        "global_batch",
        "mixture",
        "order",
        "position",
        "shares",
        "skipped",
        "source",
        "streams",
        "transforms",
        "version",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "version 2"),
        ({"epoch": "3"}, "epoch must be int, got '3'"),
        ({"epoch": True}, "epoch must be int, got True"),
        ({"source": 7}, "source must be str, got 7"),
        ({"position": -1}, "position -1"),
        ({"global_batch": 0}, "global batch 0"),
        ({"more": 1}, r"unknown \['more'\]"),
    ],
)
def test_a_damaged_state_is_refused(change, says):
    with pytest.raises(ResumeError, match=says):
        Cursor.from_state({**CURSOR.state(), **change})


@pytest.mark.parametrize("state", [None, [], {}, {"step": 3}])
def test_something_else_is_refused(state):
    with pytest.raises(ResumeError):
        Cursor.from_state(state)


def test_another_stream_is_refused_with_both_sides():
    with pytest.raises(ResumeError) as caught:
        CURSOR.check(order="sequential picks=100", source="data [cd]", num_picks=100)
    text = str(caught.value)
    for part in ("data saved: data [ab]", "data now:   data [cd]", "order saved: uniform", "order now:   sequential"):
        assert part in text
    CURSOR.check(order=CURSOR.order, source=CURSOR.source, num_picks=96)
    with pytest.raises(ResumeError, match="position 96 lies beyond the epoch of 95"):
        CURSOR.check(order=CURSOR.order, source=CURSOR.source, num_picks=95)
