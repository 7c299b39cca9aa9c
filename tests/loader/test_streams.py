"""Loaders of streams: every row once, in one order for any number of ranks and readers, resumed from any step."""

import contextlib
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe import Loader
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ConfigError, LoaderError, ResumeError, SourceError, StagingError
from flodl_pipe.loader.stream_state import LaneState, StreamState
from tests.loader.streams import Lanes, ids
from tests.loader.waiting import own_threads, until

LENGTHS = (37, 20, 41, 30)


def made(*lengths, stream=None, **options):
    options = {"batch_size": 8, "drop_last": False, "keep_digest": True, **options}
    return Loader(stream or Lanes(*(lengths or LENGTHS)), **options)


@pytest.fixture
def loader():
    """Make loaders that are closed in the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *lengths, **options: stack.enter_context(made(*lengths, **options))


def by_hand(lengths, turn):
    """Deal rows over lanes in the plainest way."""
    left = [[1000 * lane + row for row in range(length)] for lane, length in enumerate(lengths)]
    dealt = []
    while any(left):
        for rows in left:
            dealt += rows[:turn]
            del rows[:turn]
    return dealt


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


@pytest.mark.parametrize("readers", [0, 1, 3])
def test_lanes_take_turns_and_every_row_comes_once(loader, readers):
    found = ids(loader(shuffle=False, readers=readers))
    assert flat(found) == by_hand(LENGTHS, 2)
    assert [len(batch) for batch in found] == [8] * 16


def test_a_shuffled_epoch_has_every_row_and_differs_from_the_next(loader):
    source = loader()
    first, second = (flat(ids(source.epoch(epoch))) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == sorted(by_hand(LENGTHS, 2))
    assert first != second
    assert flat(ids(source.epoch(0))) == first


def test_the_last_step_is_short_or_left_out(loader):
    assert [len(batch) for batch in ids(loader(5, 6))] == [8, 3]
    assert [len(batch) for batch in ids(loader(5, 6, drop_last=True))] == [8]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=3, max_size=5).filter(lambda found: sum(found) > 0),
    global_batch=st.integers(3, 17),
    world_size=st.integers(1, 3),
    drop_last=st.booleans(),
)
def test_ranks_together_read_what_one_reads_alone(lengths, global_batch, world_size, drop_last):
    if drop_last and sum(lengths) < global_batch:
        return
    options = {"global_batch_size": global_batch, "drop_last": drop_last, "seed": 5}
    with contextlib.ExitStack() as stack:
        contexts = [RunContext(rank, world_size) for rank in range(world_size)]
        alone = ids(stack.enter_context(made(*lengths, **options)))
        ranks = [list(stack.enter_context(made(*lengths, context=context, **options))) for context in contexts]
    assert {len(batches) for batches in ranks} == {len(alone)}
    for step, wanted in enumerate(alone):
        rows = [batches[step]["id"].numpy() for batches in ranks if batches[step].weight]
        assert np.concatenate(rows).tolist() == wanted
        assert sum(batches[step].weight for batches in ranks) == pytest.approx(world_size)


def test_a_rank_opens_its_own_lanes_only(loader):
    streams = [Lanes(40, 40, 40, 40) for _ in range(2)]
    for rank, stream in enumerate(streams):
        ids(loader(stream=stream, context=RunContext(rank, 2), batch_size=4))
    assert [stream.opened for stream in streams] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("marks", [True, False])
def test_every_step_can_be_resumed_from_on_any_number_of_ranks(loader, marks):
    alone = loader(stream=Lanes(*LENGTHS, marks=marks))
    batches = list(alone)
    whole = [batch["id"].tolist() for batch in batches]
    for step in range(len(batches)):
        state = json.loads(json.dumps(batches[step].cursor))
        for world_size in (1, 2):
            rest = []
            for rank in range(world_size):
                again = loader(
                    stream=Lanes(*LENGTHS, marks=marks), global_batch_size=8, context=RunContext(rank, world_size)
                )
                again.load_state_dict(state)
                rest.append(ids(again.epoch(0)))
            joined = [sum(parts, []) for parts in zip(*rest, strict=True)]
            assert joined == whole[step + 1 :]


def test_marks_spare_reading_the_rows_again(loader):
    first = loader(300, 300)
    state = list(itertools.islice(first, 40))[-1].cursor
    first.close()
    stream = Lanes(300, 300)
    again = loader(stream=stream)
    again.load_state_dict(state)
    assert len(flat(ids(again))) == 600 - 320
    assert stream.rows_read == 600 - 320


def test_a_resumed_digest_adds_up(loader):
    whole = loader()
    ids(whole)
    head, tail = loader(), loader()
    batches = iter(head)
    for _ in range(5):
        batch = next(batches)
    tail.load_state_dict(batch.cursor)
    ids(tail)
    from flodl_pipe.keyed.digest import Digest

    counted = [part.statistics() for part in (head, tail, whole)]
    total = Digest.from_hex(counted[0].digest, counted[0].num_samples)
    total.merge(Digest.from_hex(counted[1].digest, counted[1].num_samples))
    assert total.hex() == counted[2].digest


def test_the_last_state_of_an_epoch_says_that_nothing_follows(loader):
    first = loader()
    batches = list(first)
    assert batches[-1].cursor == first.state_dict()
    again = loader()
    again.load_state_dict(first.state_dict())
    assert flat(ids(again.epoch(0))) == []
    again.load_state_dict(first.state_dict())
    assert next(iter(again)).pick_keys.epoch == 1


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("lengths", [(8, 8), (7, 9), (5, 6)])
def test_an_epochs_end_is_the_same_state_for_any_number_of_ranks(loader, lengths, drop_last):
    ends = []
    for world_size in (1, 2):
        for rank in range(world_size):
            one = loader(*lengths, global_batch_size=4, drop_last=drop_last, context=RunContext(rank, world_size))
            num_steps = len(list(one))
            ends.append(one.state_dict())
            again = loader(*lengths, global_batch_size=4, drop_last=drop_last, context=RunContext(rank, world_size))
            again.load_state_dict(one.state_dict())
            assert [len(list(again)), len(list(again))] == [num_steps, num_steps]
    assert ends[0] == ends[1] == ends[2]


def test_a_dropped_remainder_ends_the_epoch_too(loader):
    first = loader(5, 6, drop_last=True)
    assert len(ids(first)) == 1
    again = loader(5, 6, drop_last=True)
    again.load_state_dict(first.state_dict())
    assert next(iter(again)).pick_keys.epoch == 1


@pytest.mark.parametrize("readers", [0, 1])
def test_an_error_arrives_at_its_own_step(loader, readers):
    batches = iter(loader(20, 20, stream=Lanes(20, 20, bad={13}), shuffle=False, readers=readers))
    for _ in range(3):
        next(batches)
    with pytest.raises(OSError, match=r"lanes\.bin is bad"):
        next(batches)


def test_leaving_early_stops_the_reader_and_gives_back_its_memory(loader):
    source = loader(5000, 5000)
    for _ in source:
        break
    until(lambda: not own_threads(), "the end of the reader")
    source.close()
    with pytest.raises(LoaderError, match="closed"):
        iter(source)


def test_the_reader_stays_within_its_depth(loader):
    class Watched(Lanes):
        asked = 1  # as good as: before it is, the memory of the batch that a consumer holds is free to read into

        def open_lane(self, lane, **how):
            reader = super().open_lane(lane, **how)
            read_into = reader.read_into

            def read(*where):
                count = read_into(*where)
                ahead.append(self.rows_read - 8 * self.asked)
                return count

            reader.read_into = read
            return reader

    stream, ahead = Watched(5000, 5000), []
    batches = iter(loader(stream=stream, prefetch=3))
    for _ in range(10):
        next(batches)
        until(lambda: stream.rows_read >= 8 * (stream.asked + 3), "that three steps more are read")
        stream.asked += 1
    assert max(ahead) == 8 * 3


def test_a_length_that_nothing_tells_is_a_type_error_and_repr_works(loader):
    source = loader()
    with pytest.raises(TypeError, match="not known before its end"):
        len(source)
    assert repr(source) == "Loader(Lanes, batch 8, streaming)"
    stream = Lanes(*LENGTHS)
    stream.num_samples_estimate = 130
    assert len(loader(stream=stream)) == 16
    assert (
        repr(loader(stream=stream)) == "Loader(Lanes, about 130 samples, batch 8, about 16 batches an epoch, streaming)"
    )


def test_buffers_beyond_the_grant_are_refused(loader):
    stream = Lanes(9, 9)
    stream.buffer_bytes = 1 << 40
    with pytest.raises(StagingError, match=r"the buffers of 2 lanes take 1\.00 TiB, and .* may be held"):
        loader(stream=stream)


def test_what_a_stream_cannot_do_is_refused(loader):
    with pytest.raises(ConfigError, match=r"sampling\.drop_last: pad repeats the epoch's head"):
        loader(drop_last="pad")
    with pytest.raises(StagingError, match="a stream has no index"):
        loader(mode="resident")
    with pytest.raises(ConfigError, match=r"source\.lanes: the stream has 2 .* fewer than the 3 ranks"):
        loader(9, 9, context=RunContext(0, 3), global_batch_size=6)
    with pytest.raises(ConfigError, match="11 samples"):
        ids(loader(5, 6, batch_size=12, drop_last=True))
    with pytest.raises(SourceError, match="0 rows"):
        ids(loader(0, 0))


def test_a_damaged_or_foreign_state_is_refused(loader):
    source = loader()
    state = next(iter(source)).cursor
    for streams, word in [
        ("", "needs the state of its lanes"),
        ("{}", "is not what a loader of a stream saves"),
        (StreamState((LaneState(),) * 3).text((0, state["position"], 8)), "3 lanes, and this stream has 4"),
        (state["streams"].replace(",0,", ",-1,", 1), "its sum is wrong"),
        (state["streams"].replace('"at":[', '"at":[1'), "its sum is wrong"),
        ("[]", "is not what a loader"),
    ]:
        with pytest.raises(ResumeError, match=word):
            loader().load_state_dict({**state, "streams": streams})
    for changed in ({"position": 4}, {"position": 1 << 62}, {"epoch": 1}, {"global_batch": 4}, {"mixture": "0:1,2"}):
        with pytest.raises(ResumeError, match=r"its sum is wrong|weights of a mixture"):
            loader().load_state_dict({**state, **changed})
    with pytest.raises(ResumeError, match="another stream"):
        loader(1, 2, 3).load_state_dict(state)


def test_a_lane_that_is_shorter_than_it_was_counted_is_an_error(loader):
    stream = Lanes(20, 20)
    stream.count_lane = lambda lane, **_: 25
    with pytest.raises(SourceError, match=r"lane 0 ended after 20 rows"):
        ids(loader(stream=stream, context=RunContext(0, 2), global_batch_size=8))
