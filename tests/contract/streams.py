"""What every stream must hold, as a battery of tests. Run it on a stream of your own::

    from tests.contract.streams import StreamContract

    class TestMyStream(StreamContract):
        def make_stream(self, folder):
            ...  # write a few files to folder, return the stream; at least 2 lanes with 5 rows or more each
        def expected(self, stream, lane, seed, epoch, shuffle):
            ...  # the stored rows of a lane before blocks are permuted, read in the plainest way you can think of

``row_order_only`` says that shuffling only reorders the rows of a lane; a stream that deals files anew each epoch, and
cuts windows over their ends, has other rows.
"""

import contextlib
import itertools
import pickle
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.errors import FlodlPipeError
from flodl_pipe.sources.stream_protocol import LaneReader, RaggedStream, Stream
from tests.contract.forked import in_forked_child

SEED = 7
# Places of no stream: no numbers, too few of them, negative ones, a row behind every block, nothing but a line's end.
NO_MARKS = ("x", "-1", "0,0", "0,0,x", "1.2.3", "-1,0,0.0.0.1", "0,999999,0.0.0.1", "\n")
Rows = dict[str, Any]


def take(reader: LaneReader, stream: Stream, num_rows: int) -> Rows:
    """Return the next rows, at most ``num_rows``."""
    out = stream.spec.empty(num_rows)
    found = reader.read_into(out, 0, num_rows)
    return {name: value[:found] for name, value in out.items()}


def read_lane(stream: Stream, lane: int, *, portion: int = 3, mark: str = "", **which: Any) -> Rows:
    """Return the rows of a lane, read a few at a time."""
    which = {"seed": SEED, "epoch": 0, "shuffle": True, **which}
    parts = [stream.spec.empty(0)]
    with contextlib.closing(stream.open_lane(lane, mark=mark, **which)) as reader:
        while len(first(part := take(reader, stream, portion))):
            parts.append(part)
    return {name: np.concatenate([part[name] for part in parts]) for name in stream.spec.names}


def first(rows: Mapping[str, Any]) -> Any:
    """Return the first field."""
    return next(iter(rows.values()))


def require_equal(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def as_bytes(rows: Mapping[str, Any]) -> list[bytes]:
    """Return each row as bytes."""
    return [b"|".join(value[row].tobytes() for value in rows.values()) for row in range(len(first(rows)))]


def refuses(stream: Stream, mark: str, shuffle: bool) -> bool:
    """Return whether a mark is refused in words."""
    try:
        read_lane(stream, 0, mark=mark, shuffle=shuffle)
    except FlodlPipeError:
        return True
    return False


def _every_lane(stream: Stream) -> list[Rows]:
    return [read_lane(stream, lane) for lane in range(stream.num_lanes)]


class StreamContract:
    """Subclass it under a name that begins with ``Test`` and define the two methods below."""

    row_order_only = True
    pickles = True

    def make_stream(self, folder: Path) -> Stream:
        raise NotImplementedError

    def expected(self, stream: Stream, lane: int, *, seed: int, epoch: int, shuffle: bool) -> Rows:
        raise NotImplementedError

    @pytest.fixture
    def stream(self, tmp_path: Path) -> Stream:
        return self.make_stream(tmp_path)

    def test_it_keeps_the_protocol(self, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        assert stream.num_lanes >= 2
        assert stream.buffer_bytes > 0
        assert stream.tag.isprintable()
        assert f"lanes={stream.num_lanes}" in stream.tag
        assert stream.num_samples_estimate is None or stream.num_samples_estimate >= 0

    def test_an_unshuffled_lane_equals_a_naive_read(self, stream: Stream) -> None:
        for lane in range(stream.num_lanes):
            which = {"seed": SEED, "epoch": 0, "shuffle": False}
            require_equal(read_lane(stream, lane, **which), self.expected(stream, lane, **which))

    @pytest.mark.parametrize("epoch", [0, 3])
    def test_a_shuffled_lane_has_the_same_rows_once_each(self, stream: Stream, epoch: int) -> None:
        for lane in range(stream.num_lanes):
            wanted = self.expected(stream, lane, seed=SEED, epoch=epoch, shuffle=True)
            found = read_lane(stream, lane, epoch=epoch)
            assert sorted(as_bytes(found)) == sorted(as_bytes(wanted))
            assert as_bytes(found) != as_bytes(wanted)

    def test_every_row_is_in_one_lane_whatever_the_epoch(self, stream: Stream) -> None:
        if not self.row_order_only:
            pytest.skip("rows are cut anew each epoch")
        lanes = range(stream.num_lanes)
        plain = [row for lane in lanes for row in as_bytes(read_lane(stream, lane, shuffle=False))]
        for epoch in (0, 1):
            assert sorted(row for lane in lanes for row in as_bytes(read_lane(stream, lane, epoch=epoch))) == sorted(
                plain
            )

    def test_the_same_epoch_gives_the_same_rows_however_they_are_asked_for(self, stream: Stream) -> None:
        for lane, shuffle in itertools.product(range(stream.num_lanes), (True, False)):
            wanted = read_lane(stream, lane, portion=1, shuffle=shuffle)
            for portion in (2, 7, 1000):
                require_equal(read_lane(stream, lane, portion=portion, shuffle=shuffle), wanted)

    def test_epochs_and_seeds_differ_when_shuffled_and_only_then(self, stream: Stream) -> None:
        wanted = as_bytes(read_lane(stream, 0))
        assert as_bytes(read_lane(stream, 0, epoch=1)) != wanted
        assert as_bytes(read_lane(stream, 0, seed=SEED + 1)) != wanted
        require_equal(read_lane(stream, 0, shuffle=False, epoch=1), read_lane(stream, 0, shuffle=False, seed=1))

    def test_rows_go_where_they_are_wanted_and_nowhere_else(self, stream: Stream) -> None:
        wanted = read_lane(stream, 0, portion=4)
        out = stream.spec.empty(9)
        for value in out.values():
            value.reshape(-1).view(np.uint8)[:] = 0xA5
        reader = stream.open_lane(0, seed=SEED, epoch=0, shuffle=True)
        assert reader.read_into(out, 3, 0) == 0
        assert reader.read_into(out, 3, 4) == 4
        for name, value in out.items():
            np.testing.assert_array_equal(value[3:7], wanted[name][:4])
            assert (np.delete(value, range(3, 7), axis=0).reshape(-1).view(np.uint8) == 0xA5).all()

    @pytest.mark.parametrize("shuffle", [True, False])
    def test_a_mark_at_every_row_resumes_exactly(self, stream: Stream, shuffle: bool) -> None:
        for lane in range(stream.num_lanes):
            wanted = read_lane(stream, lane, shuffle=shuffle)
            reader = stream.open_lane(lane, seed=SEED, epoch=0, shuffle=shuffle)
            for row in range(len(first(wanted)) + 1):
                mark = reader.mark()
                assert mark
                assert mark.isprintable()
                assert len(mark) < 1000
                rest = read_lane(stream, lane, shuffle=shuffle, mark=mark)
                require_equal(rest, {name: value[row:] for name, value in wanted.items()})
                take(reader, stream, 1)
            assert reader.read_into(stream.spec.empty(5), 0, 5) == 0

    @pytest.mark.parametrize("shuffle", [True, False])
    def test_a_mark_of_a_resumed_lane_resumes_it_again(self, stream: Stream, shuffle: bool) -> None:
        which: Any = {"seed": SEED, "epoch": 0, "shuffle": shuffle}
        wanted = read_lane(stream, 1, shuffle=shuffle)
        parts, mark = [], ""
        while True:
            reader = stream.open_lane(1, mark=mark, **which)
            if mark:
                assert len(first(read_lane(stream, 1, mark=reader.mark(), shuffle=shuffle))) == len(
                    first(wanted)
                ) - len(parts)
            part = take(reader, stream, 1)
            mark = reader.mark()
            reader.close()
            if not len(first(part)):
                break
            parts.append(part)
        require_equal({name: np.concatenate([part[name] for part in parts]) for name in wanted}, wanted)

    @pytest.mark.parametrize("shuffle", [True, False])
    def test_skipping_equals_reading(self, stream: Stream, shuffle: bool) -> None:
        wanted = read_lane(stream, 0, shuffle=shuffle)
        total = len(first(wanted))
        for before, step in itertools.product(range(0, total, max(total // 7, 1)), (1, 4, 10_000)):
            reader = stream.open_lane(0, seed=SEED, epoch=0, shuffle=shuffle)
            take(reader, stream, before)
            passed = reader.skip(step)
            assert passed == min(step, total - before)
            marked = read_lane(stream, 0, shuffle=shuffle, mark=reader.mark())
            rest = take(reader, stream, total)
            require_equal(rest, {name: value[before + passed :] for name, value in wanted.items()})
            require_equal(marked, rest)
            assert reader.skip(step) == 0

    def test_the_count_of_a_lane_is_what_comes(self, stream: Stream) -> None:
        for lane, shuffle in itertools.product(range(stream.num_lanes), (True, False)):
            rows = read_lane(stream, lane, shuffle=shuffle, epoch=2)
            assert stream.count_lane(lane, seed=SEED, epoch=2, shuffle=shuffle) == len(first(rows))

    def test_what_is_no_mark_is_refused(self, stream: Stream) -> None:
        cases = itertools.product(NO_MARKS, (True, False))
        assert [case for case in cases if not refuses(stream, *case)] == []

    def test_a_lane_that_is_not_there_is_an_error(self, stream: Stream) -> None:
        for lane in (-1, stream.num_lanes):
            with pytest.raises(IndexError):
                stream.open_lane(lane, seed=0, epoch=0, shuffle=False)

    def test_lanes_read_in_turns_do_not_disturb_each_other(self, stream: Stream) -> None:
        wanted = [read_lane(stream, lane) for lane in (0, 1)]
        readers = [stream.open_lane(lane, seed=SEED, epoch=0, shuffle=True) for lane in (0, 1)]
        parts: list[list[Rows]] = [[], []]
        for _ in range(max(len(first(rows)) for rows in wanted)):
            for lane, reader in enumerate(readers):
                parts[lane].append(take(reader, stream, 1))
        for lane in (0, 1):
            require_equal({name: np.concatenate([p[name] for p in parts[lane]]) for name in wanted[lane]}, wanted[lane])

    def test_threads_read_lanes_at_once(self, stream: Stream) -> None:
        wanted = [read_lane(stream, lane) for lane in range(stream.num_lanes)]
        wrong: list[object] = []

        def work(lane: int) -> None:
            try:
                for _ in range(3):
                    require_equal(read_lane(stream, lane), wanted[lane])
            except BaseException as error:  # noqa: BLE001 - carried to the main thread
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(lane,)) for lane in range(stream.num_lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_arrays_have_the_types_and_shapes_of_the_specs(self, stream: Stream) -> None:
        rows = read_lane(stream, 0)
        if stream.delivered.is_ragged:
            self.check_ragged_rows(stream, rows)
            return
        count = len(first(rows))
        out = {field.name: np.empty((count, 2, *field.shape), field.dtype) for field in stream.delivered}
        stream.deliver(rows, {name: value[:, 1] for name, value in out.items()})
        flat = stream.delivered.empty(count)
        stream.deliver(rows, flat)
        require_equal({name: value[:, 1] for name, value in out.items()}, flat)

    def check_ragged_rows(self, stream: Stream, rows: Rows) -> None:
        assert not stream.spec.is_ragged  # rows are stored with one size
        assert isinstance(stream, RaggedStream)
        with pytest.raises(FlodlPipeError):
            stream.deliver(rows, {})
        count = len(first(rows))
        columns = stream.deliver_rows(rows)
        assert tuple(columns) == stream.delivered.names
        for field in stream.delivered:
            column = columns[field.name]
            assert len(column) == count
            values = column.values if isinstance(column, Ragged) else column
            assert isinstance(column, Ragged) == field.is_ragged
            assert (values.dtype, values.shape[1:]) == (np.dtype(field.dtype), field.shape)
            assert not any(np.shares_memory(values, stored) for stored in rows.values())
            if isinstance(column, Ragged):
                assert column.lengths.max() <= field.expected_length
        for row in range(count):  # a row does not hang on the rows beside it
            alone = stream.deliver_rows({name: value[row : row + 1] for name, value in rows.items()})
            for name, column in columns.items():
                one, found = alone[name], column.row(row) if isinstance(column, Ragged) else column[row]
                np.testing.assert_array_equal(one.row(0) if isinstance(one, Ragged) else one[0], found)
        assert all(len(column) == 0 for column in stream.deliver_rows({n: v[:0] for n, v in rows.items()}).values())

    def test_a_pickled_copy_is_small_and_reads_the_same(self, stream: Stream) -> None:
        if not self.pickles:
            pytest.skip("its parts cannot be pickled")
        wanted = read_lane(stream, 1)
        text = pickle.dumps(stream)
        assert len(text) < 10_000
        copy = pickle.loads(text)
        require_equal(read_lane(copy, 1), wanted)
        assert (copy.fingerprint(), copy.tag) == (stream.fingerprint(), stream.tag)

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # on purpose: that is what is tested
    def test_a_forked_child_reads_the_same(self, stream: Stream) -> None:
        wanted = _every_lane(stream)
        for found, rows in zip(in_forked_child(_every_lane, stream), wanted, strict=True):
            require_equal(found, rows)
        require_equal(read_lane(stream, 0), wanted[0])

    def test_it_describes_itself_and_opens_again_after_close(self, stream: Stream) -> None:
        stream.check_unchanged()
        assert stream.facts()
        assert all(fact.name and isinstance(fact.value, str) for fact in stream.facts())
        wanted = read_lane(stream, 0)
        stream.close()
        require_equal(read_lane(stream, 0), wanted)

    def test_the_fingerprint_is_stable_and_readable(self, stream: Stream, tmp_path_factory: Any) -> None:
        assert stream.fingerprint() == stream.fingerprint()
        assert stream.fingerprint().summary
        moved = self.make_stream(tmp_path_factory.mktemp("moved"))
        assert moved.fingerprint() == stream.fingerprint()
        assert moved.fingerprint(full=True) == stream.fingerprint(full=True)
