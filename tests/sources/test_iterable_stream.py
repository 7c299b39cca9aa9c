"""Iterables as streams: a lane each, begun anew every epoch, resumed by their own state or by skipping."""

import itertools
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flodl_pipe.errors import ConfigError, LoaderError, ResumeError, SourceError
from flodl_pipe.sources import stream_iterate
from flodl_pipe.sources.iterable_stream import IterableStream
from tests.contract.streams import SEED, StreamContract, read_lane, take

LENGTHS = (23, 11, 30)


def sample(shard: int, number: int) -> dict[str, Any]:
    return {"x": np.full((2, 3), shard * 1000 + number, dtype=np.int16), "y": number, "flag": bool(number & 1)}


class Generated(torch.utils.data.IterableDataset[Any]):
    """Torch's kind: begins anew with each ``iter``."""

    def __init__(self, shard: int, length: int) -> None:
        self.shard, self.length = shard, length
        self.asked: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.length):
            self.asked.append(number)
            yield sample(self.shard, number)


class Resumable:
    """Its iterators keep their state."""

    def __init__(self, shard: int, length: int) -> None:
        self.shard, self.length = shard, length

    def __iter__(self) -> "ResumableIterator":
        return ResumableIterator(self.shard, self.length)


class ResumableIterator:
    def __init__(self, shard: int, length: int) -> None:
        self.shard, self.length, self.next = shard, length, 0

    def __iter__(self) -> "ResumableIterator":
        return self

    def __next__(self) -> Any:
        if self.next == self.length:
            raise StopIteration
        self.next += 1
        return sample(self.shard, self.next - 1)

    def state_dict(self) -> Any:
        return {"next": self.next}

    def load_state_dict(self, state: Any) -> None:
        self.next = state["next"]


class StatefulDataset(Generated):
    """Keeps the state of its last iteration itself, and begins every iteration at the state that was loaded."""

    def __init__(self, shard: int, length: int) -> None:
        super().__init__(shard, length)
        self.begin = {"at": 0}
        self.state = {"at": 0}

    def __iter__(self) -> Iterator[Any]:
        state = self.state = dict(self.begin)
        for number in range(state["at"], self.length):
            self.asked.append(number)
            state["at"] = number + 1
            yield sample(self.shard, number)

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.begin = state


class IterableContract(StreamContract):
    kind: Any = None

    def make_stream(self, folder: Path) -> IterableStream:
        return IterableStream([self.kind(shard, length) for shard, length in enumerate(LENGTHS)], shuffle_buffer=3 * 7)

    def expected(self, stream: Any, lane: int, *, seed: int, epoch: int, shuffle: bool) -> dict[str, Any]:
        samples = [sample(lane, number) for number in range(LENGTHS[lane])]
        return {name: np.array([one[name] for one in samples]) for name in ("x", "y", "flag")}


@pytest.mark.full
class TestTorchDatasets(IterableContract):
    kind = Generated


@pytest.mark.full
class TestLists(IterableContract):
    @staticmethod
    def kind(shard: int, length: int) -> Any:
        return [sample(shard, number) for number in range(length)]

    def test_a_pickled_copy_is_small_and_reads_the_same(self, stream: Any) -> None:
        pytest.skip("the list goes along")


class TestStates(IterableContract):
    kind = Resumable

    @pytest.fixture(autouse=True, params=[pytest.param(1, marks=pytest.mark.full), 3])
    def _often(self, request: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(stream_iterate, "STATE_EVERY", request.param)


@pytest.mark.full
class TestStatesOfDatasets(IterableContract):
    kind = StatefulDataset

    @pytest.fixture(autouse=True)
    def _often(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(stream_iterate, "STATE_EVERY", 2)


def stream_of(*shards: Any, **options: Any) -> IterableStream:
    return IterableStream(list(shards), **options)


def values(rows: Any) -> list[Any]:
    return rows["y"].tolist() if "y" in rows else rows["0"].tolist()


@pytest.mark.parametrize("kind", [StatefulDataset, Generated])
def test_a_state_saves_reading_what_came_before(monkeypatch: Any, kind: Any) -> None:
    monkeypatch.setattr(stream_iterate, "STATE_EVERY", 10)
    reader = stream_of(kind(0, 100)).open_lane(0, seed=0, epoch=0, shuffle=False)
    reader.skip(57)
    dataset = kind(0, 100)
    resumed = stream_of(dataset)
    dataset.asked.clear()
    rest = values(read_lane(resumed, 0, shuffle=False, mark=reader.mark()))
    assert rest == list(range(57, 100))
    assert dataset.asked[0] == (50 if kind is StatefulDataset else 0)
    # And the next epoch begins at the begin.
    assert values(read_lane(resumed, 0, shuffle=False, epoch=1)) == list(range(100))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"tensor": torch.zeros(2)}, r"is not what JSON can hold \(Object of type Tensor"),
        ({"long": "x" * 20_000}, r"takes 20,011 characters, more than 16,384"),
    ],
)
def test_a_state_that_cannot_be_kept_is_said_once_and_skipped_to(
    monkeypatch: Any, caplog: Any, state: Any, says: str
) -> None:
    class Odd(Resumable):
        def __iter__(self) -> Any:
            iterator = ResumableIterator(self.shard, self.length)
            iterator.state_dict = lambda: state  # type: ignore[method-assign]
            return iterator

    monkeypatch.setattr(stream_iterate, "STATE_EVERY", 2)
    stream = stream_of(Odd(0, 20))
    for _ in range(2):
        reader = stream.open_lane(0, seed=0, epoch=0, shuffle=False)
        reader.skip(9)
        assert reader.mark() == "9"
    assert values(read_lane(stream, 0, shuffle=False, mark="9")) == list(range(9, 20))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search(f"lane 0 .*its state_dict.. {says}", record.getMessage())


def test_an_iterator_serves_one_epoch() -> None:
    stream = stream_of(iter([1.5, 2.5, 3.5, 4.5, 5.5, 6.5]), iter([7.5]))
    print_before = stream.fingerprint()
    assert values(read_lane(stream, 0, shuffle=False)) == [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]
    assert stream.fingerprint() == print_before
    with pytest.raises(SourceError, match=r"lane 0 \(list_iterator\) is an iterator.*second pass.*begin anew"):
        read_lane(stream, 0, epoch=1)
    assert values(read_lane(stream, 1)) == [7.5]


def test_an_iterator_resumes_in_another_process_by_skipping_or_by_its_state(monkeypatch: Any) -> None:
    monkeypatch.setattr(stream_iterate, "STATE_EVERY", 5)
    for make in (lambda: iter(Resumable(0, 40)), lambda: (sample(0, number) for number in range(40))):
        reader = stream_of(make(), shuffle_buffer=8).open_lane(0, seed=SEED, epoch=0, shuffle=True)
        whole = values(read_lane(stream_of(make(), shuffle_buffer=8), 0))
        reader.skip(21)
        assert values(read_lane(stream_of(make(), shuffle_buffer=8), 0, mark=reader.mark())) == whole[21:]


def test_an_iterator_cannot_be_counted() -> None:
    stream = stream_of(iter([1, 2]))
    with pytest.raises(SourceError, match="cannot be counted before it is read"):
        stream.count_lane(0, seed=0, epoch=0, shuffle=True)
    assert values(read_lane(stream, 0, shuffle=False)) == [1, 2]


def test_what_an_iterable_raises_arrives_with_lane_and_row() -> None:
    class Failing:
        def __iter__(self) -> Iterator[int]:
            yield from (1, 2, 3)
            raise OSError("the disk is gone")

    stream = stream_of([0], Failing())
    with pytest.raises(OSError, match="the disk is gone") as caught:
        read_lane(stream, 1, portion=2)
    assert caught.value.__notes__ == [f"while reading row 3 of lane 1 ({Failing.__module__}.{Failing.__qualname__})"]


def test_a_sample_unlike_the_first_is_an_error_with_lane_and_row() -> None:
    stream = stream_of([np.zeros(2), np.zeros(3)])
    with pytest.raises(SourceError, match=r"sample 1 of list, field '0' has shape \(3,\)") as caught:
        read_lane(stream, 0)
    assert caught.value.__notes__ == ["while reading row 1 of lane 0 (list)"]


def test_an_iterator_that_ended_is_not_asked_again() -> None:
    class Repeats:
        def __iter__(self) -> Any:
            return Again()

    class Again:
        def __init__(self) -> None:
            self.count = 0

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            self.count += 1
            if self.count % 4 == 0:
                raise StopIteration
            return self.count

    assert values(read_lane(stream_of(Repeats()), 0, portion=2, shuffle=False)) == [1, 2, 3]


def test_iterables_that_want_it_are_told_the_epoch_when_shuffled() -> None:
    class Epochs:
        def __init__(self) -> None:
            self.epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            yield from range(self.epoch * 10, self.epoch * 10 + 3)

    stream = stream_of(Epochs(), shuffle_buffer=1)
    assert values(read_lane(stream, 0, epoch=2)) == [20, 21, 22]
    assert values(read_lane(stream, 0, epoch=2, shuffle=False)) == [0, 1, 2]
    assert stream.count_lane(0, seed=0, epoch=5, shuffle=True) == 3


def test_an_empty_shard_is_a_lane_without_rows() -> None:
    stream = stream_of([], [1, 2])
    assert values(read_lane(stream, 0)) == []
    assert stream.num_samples_estimate == 2
    assert stream_of(Generated(0, 3)).num_samples_estimate is None


@pytest.mark.parametrize(
    ("shards", "error", "says"),
    [
        ([], LoaderError, "at least one iterable"),
        (Generated(0, 3), LoaderError, r"got .*Generated; give \[dataset\]"),
        ("text", LoaderError, "must be a list"),
        ([3], SourceError, "shard 0 is int, which cannot be iterated"),
        ([[], []], SourceError, "none of the 2 iterables has a sample"),
        ([["text"]], SourceError, "is text"),
    ],
)
def test_what_is_no_stream_is_refused(shards: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        IterableStream(shards)
    with pytest.raises(ConfigError, match="shuffle_buffer"):
        stream_of([1], shuffle_buffer=0)


@pytest.mark.parametrize(
    "mark", ["9" * 5_000, "1." + "9" * 5_000, "1.1.{", "1.1.", "1.", "1.1." + "9" * 5_000, "1.1." + "[" * 100_000]
)
def test_a_mark_that_was_edited_is_refused(mark: str) -> None:
    for shard in ([1, 2, 3], Resumable(0, 3)):
        with pytest.raises(ResumeError, match="is no place in a stream of samples") as caught:
            read_lane(stream_of(shard), 0, shuffle=False, mark=mark)
        assert len(str(caught.value)) < 300


def test_a_state_that_nothing_can_load_is_refused() -> None:
    for shard in ([1, 2, 3], iter([1, 2, 3])):
        with pytest.raises(
            ResumeError, match=r"lane 0 \(list.*\) has no load_state_dict\(\), and the saved place holds"
        ):
            read_lane(stream_of(shard), 0, shuffle=False, mark='2.2.{"at":2}')


def test_a_mark_behind_the_end_is_refused() -> None:
    with pytest.raises(ResumeError, match=r"lane 0 \(list\) ended after 2 samples.*behind 3"):
        read_lane(stream_of([1, 2]), 0, shuffle=False, mark="3")


def test_the_fingerprint_covers_types_fields_and_first_samples() -> None:
    def digest(*shards: Any) -> str:
        return stream_of(*shards).fingerprint().digest

    wanted = digest([1, 2, 3, 4, 5], [6])
    assert digest([1, 2, 3, 4, 5], [6]) == wanted
    assert digest([1, 2, 3, 4, 6], [6]) == wanted
    others = {digest([1, 2, 3, 5, 5], [6]), digest([1, 2, 3, 4, 5, 6]), digest([1.0, 2, 3, 4, 5][:1], [6.0])}
    assert len(others | {wanted}) == 4


def test_hugging_face_iterable_datasets_resume_by_their_state(monkeypatch: Any, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(stream_iterate, "STATE_EVERY", 4)
    whole = datasets.Dataset.from_dict({"y": list(range(60))})

    def make() -> IterableStream:
        parts = whole.to_iterable_dataset(num_shards=4)
        return IterableStream([parts.shard(num_shards=2, index=index) for index in range(2)], shuffle_buffer=12)

    stream = make()
    for shuffle in (False, True):
        rows = [values(read_lane(stream, lane, shuffle=shuffle)) for lane in range(2)]
        assert sorted(itertools.chain(*rows)) == list(range(60))
        for stop in (3, 17, 29):
            reader = stream.open_lane(1, seed=SEED, epoch=0, shuffle=shuffle)
            take(reader, stream, stop)
            mark = reader.mark()
            assert values(read_lane(make(), 1, shuffle=shuffle, mark=mark)) == rows[1][stop:]
        assert "examples_iterable" in mark
