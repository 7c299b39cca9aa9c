"""Resume: head and tail are the unbroken run, wherever it was cut and however it goes on."""

import json
import pickle
import random

import pytest

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ResumeError
from flodl_pipe.loader.loader import Loader
from tests.loader.sources import Numbers, ids

N, BATCH, EPOCHS = 101, 8, 4


def build(**options):
    return Loader(Numbers(N), **{"batch_size": BATCH, "seed": 11, "drop_last": False, "keep_digest": True, **options})


@pytest.fixture(scope="module")
def whole():
    with build() as loader:
        return sum((ids(loader.epoch(epoch)) for epoch in range(EPOCHS)), []), loader.statistics().digest


def drain(loader, steps):
    """Take ``steps`` batches over as many passes as it needs."""
    found = []
    while len(found) < steps:
        for batch in loader:
            found.append(batch["id"].tolist())
            if len(found) == steps:
                return found
    return found


def add(first, second):
    halves = [(int(first[at : at + 16], 16) + int(second[at : at + 16], 16)) % 2**64 for at in (0, 16)]
    return f"{halves[0]:016x}{halves[1]:016x}"


@pytest.mark.parametrize("num_cuts", [25, pytest.param(200, marks=pytest.mark.full)])
def test_random_cuts_give_the_undisturbed_run(whole, num_cuts):
    stream, digest = whole
    rng = random.Random(1)
    ways = [{"readers": readers, "mode": mode} for readers in (0, 1, 3) for mode in ("streaming", "resident")]
    cuts = [0, 1, 12, 13, 14, len(stream) - 1, len(stream)]
    while len(cuts) < num_cuts:
        cuts.append(rng.randrange(len(stream) + 1))
    for cut in cuts:
        with build(**rng.choice(ways)) as loader:
            head = drain(loader, cut) if cut else []
            state = json.loads(json.dumps(loader.state_dict()))
            head_digest = loader.statistics().digest
        with build(**rng.choice(ways)) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            tail = drain(loader, len(stream) - cut) if cut < len(stream) else []
            tail_digest = loader.statistics().digest
        assert head + tail == stream, f"cut at step {cut}"
        assert add(head_digest, tail_digest) == digest, f"cut at step {cut}"


def test_many_resumes_in_a_row(whole):
    stream, _ = whole
    found, state = [], None
    while len(found) < len(stream):
        with build() as loader:
            if state:
                loader.load_state_dict(state)
            found += drain(loader, min(7, len(stream) - len(found)))
            state = loader.state_dict()
    assert found == stream


def test_the_batch_carries_the_state_after_it(whole):
    stream, _ = whole
    with build() as loader:
        batches = [batch for batch, _ in zip(loader, range(9), strict=False)]
    with build() as loader:
        loader.load_state_dict(batches[4].cursor)
        assert drain(loader, 4) == stream[5:9]


def test_a_pickled_batch_carries_its_state_without_the_source():
    with build() as loader:
        batch = next(iter(loader))
    again = pickle.loads(pickle.dumps(batch))
    assert again.cursor == batch.cursor
    assert again["id"].tolist() == batch["id"].tolist()


def test_another_world_size_goes_on_in_the_same_stream(whole):
    stream, _ = whole
    with build() as loader:
        drain(loader, 5)
        state = loader.state_dict()
    parts = []
    for rank in range(3):
        with build(context=RunContext(rank, 3)) as loader:
            loader.load_state_dict(state)
            assert loader.global_batch_size == BATCH
            parts.append(
                [batch["id"][slice(None) if batch.valid is None else batch.valid].tolist() for batch in loader]
            )
    assert [sum(rows, []) for rows in zip(*parts, strict=True)] == stream[5:13]


def test_the_saved_global_batch_is_kept_aloud(whole, caplog):
    stream, _ = whole
    with build() as loader:
        drain(loader, 2)
        state = loader.state_dict()
    with build(batch_size=5) as loader:
        loader.load_state_dict(state)
        assert "saved global batch of 8; this run's config says 5" in caplog.text
        assert drain(loader, 3) == stream[2:5]


def test_a_global_batch_that_cannot_be_kept_leaves_the_loader_as_it_was():
    with build(batch_size=50, drop_last=True) as loader:
        state = {**loader.state_dict(), "global_batch": 500}
        with pytest.raises(ResumeError, match=r"saved global batch of 500 cannot be kept: .* epoch of 101 samples"):
            loader.load_state_dict(state)
        assert len(ids(loader)) == 2


def test_the_end_of_an_epoch_leads_to_the_next(whole):
    stream, _ = whole
    with build() as loader:
        assert ids(loader) == stream[:13]
        state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, N)
    with build() as loader:
        loader.load_state_dict(state)
        assert ids(loader) == stream[13:26]
    with build() as loader:  # a loop that counts epochs itself finds nothing left in epoch 0
        loader.load_state_dict(state)
        assert [ids(loader.epoch(0)), ids(loader.epoch(1))] == [[], stream[13:26]]


@pytest.mark.parametrize("call", ["epoch", "set_epoch"])
def test_a_loaded_cursor_is_kept_by_its_own_epoch_and_dropped_by_another(whole, call):
    stream, _ = whole
    with build() as loader:
        drain(loader, 16)
        state = loader.state_dict()

    def run(epoch):
        with build() as loader:
            loader.load_state_dict(state)
            if call == "epoch":
                return ids(loader.epoch(epoch))
            loader.set_epoch(epoch)
            return ids(loader)

    assert run(1) == stream[16:26]
    assert run(2) == stream[26:39]
    assert run(0) == stream[:13]


def test_a_resumed_pass_that_is_broken_off_starts_its_epoch_over(whole):
    stream, _ = whole
    with build() as loader:
        drain(loader, 5)
        state = loader.state_dict()
    with build() as loader:
        loader.load_state_dict(state)
        next(iter(loader))
        assert ids(loader) == stream[:13]


def test_an_iterator_that_was_never_used_keeps_the_loaded_place(whole):
    stream, _ = whole
    with build() as loader:
        drain(loader, 5)
        state = loader.state_dict()
    with build() as loader:
        loader.load_state_dict(state)
        iter(loader)
        unused = iter(loader)
        assert loader.state_dict() == state
        del unused
        assert ids(loader) == stream[5:13]


def test_starting_a_resumed_epoch_over_is_said(whole, caplog):
    with build() as loader:
        drain(loader, 5)
        state = loader.state_dict()
    with build() as loader:
        loader.load_state_dict(state)
        next(iter(loader))
        assert "broken off" not in caplog.text
        next(iter(loader))
        assert "resumed at position 40 was broken off at 48: the epoch starts over" in caplog.text


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda: build(seed=12), "seed=11.*\n.*seed=12"),
        (lambda: build(shuffle=False), "uniform.*\n.*sequential"),
        (lambda: Loader(Numbers(N + 1), batch_size=BATCH, seed=11), "numbers: 101 x 3.*\n.*numbers: 102 x 3"),
    ],
)
def test_another_stream_is_refused_with_both_sides(other, says):
    with build() as loader:
        state = loader.state_dict()
    with other() as loader, pytest.raises(ResumeError, match=says):
        loader.load_state_dict(state)


def test_a_position_beyond_the_epoch_is_refused():
    with build() as loader, pytest.raises(ResumeError, match="position 102 lies beyond the epoch of 101"):
        loader.load_state_dict({**loader.state_dict(), "position": N + 1})


def test_loading_ends_an_iterator_in_use():
    with build() as loader:
        iterator = iter(loader)
        next(iterator)
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(Exception, match="load_state_dict"):
            next(iterator)
