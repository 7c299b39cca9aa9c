"""Local files: positioned reads that are exact, and that notice every way a file can change under them.

White box: sizes from which files are read in another way are made small, and read queues are refused.
"""

import logging
import multiprocessing
import os
import pickle
import resource
import threading
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.storage import kernel, local, mapped, queued
from flodl_pipe.storage.local import LocalBlobs
from flodl_pipe.storage.queued import queue_supported

SIZES = (40_000, 7_001, 90_000)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(1)
    made = [tmp_path / f"b{i}.bin" for i in range(len(SIZES))]
    for path, size in zip(made, SIZES, strict=True):
        path.write_bytes(rng.integers(0, 256, size, dtype=np.uint8).tobytes())
        os.utime(path, ns=(10**18, 10**18))
    return made


def request(num_rows: int, row_bytes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    blobs = rng.integers(0, len(SIZES), num_rows)
    return blobs, rng.integers(0, np.array(SIZES)[blobs] - row_bytes + 1)


def naive(paths: list[Path], blobs: np.ndarray, offsets: np.ndarray, row_bytes: int) -> np.ndarray:
    whole = [path.read_bytes() for path in paths]
    rows = [whole[b][o : o + row_bytes] for b, o in zip(blobs, offsets, strict=True)]
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), row_bytes)


def read(blobs: LocalBlobs, where: np.ndarray, offsets: np.ndarray, row_bytes: int) -> np.ndarray:
    out = np.empty((len(where), row_bytes), dtype=np.uint8)
    blobs.read_rows(where, offsets, row_bytes, np.arange(len(where)), out)
    return out


@pytest.fixture(params=["mapped", "queued", "single"])
def way(request: pytest.FixtureRequest) -> str:
    if request.param == "queued" and not queue_supported():
        pytest.skip("no read queues here")
    return str(request.param)


@pytest.mark.parametrize("row_bytes", [1, 34, 2050, 7_001])
@pytest.mark.parametrize("num_rows", [1, 5, 1500])
def test_rows_equal_a_naive_read(paths: list[Path], way: str, row_bytes: int, num_rows: int) -> None:
    where, offsets = request(num_rows, row_bytes)
    found = read(LocalBlobs([*map(str, paths)], way=way), where, offsets, row_bytes)
    np.testing.assert_array_equal(found, naive(paths, where, offsets, row_bytes))


def test_rows_above_the_direct_size_are_read_exactly(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_DIRECT_BYTES", 2_000)
    where, offsets = request(40, 2_050)
    np.testing.assert_array_equal(
        read(LocalBlobs([*map(str, paths)]), where, offsets, 2_050), naive(paths, where, offsets, 2_050)
    )


def test_rows_go_to_the_rows_named_and_leave_the_others_alone(paths: list[Path], way: str) -> None:
    where, offsets = request(20, 50)
    rows = np.random.default_rng(3).permutation(60)[:20]
    out = np.full((60, 50), 7, dtype=np.uint8)
    LocalBlobs([*map(str, paths)], way=way).read_rows(where, offsets, 50, rows, out)
    np.testing.assert_array_equal(out[rows], naive(paths, where, offsets, 50))
    assert (np.delete(out, rows, axis=0) == 7).all()


@pytest.mark.parametrize("row_bytes", [1, 34, 300])
@pytest.mark.parametrize("order", ["as asked", "backwards", "shuffled", "in two runs"])
def test_rows_read_to_a_lent_buffer_are_exact_in_any_order_and_number(
    paths: list[Path], way: str, row_bytes: int, order: str
) -> None:
    num_rows = 3_000  # three requests' worth
    where, offsets = request(num_rows, row_bytes)
    rows = {
        "as asked": np.arange(num_rows),
        "backwards": np.arange(num_rows)[::-1].copy(),
        "shuffled": np.random.default_rng(2).permutation(num_rows),
        "in two runs": np.roll(np.arange(num_rows), 1_234),
    }[order]
    blobs = LocalBlobs(list(map(str, paths)), way=way)
    for _ in range(2):  # the second time with what the first left behind
        out = blobs.buffer(num_rows * row_bytes).reshape(num_rows, row_bytes)
        blobs.read_rows(where, offsets, row_bytes, rows, out)
        assert np.array_equal(out[rows], naive(paths, where, offsets, row_bytes))


def test_a_lent_buffer_may_be_filled_part_by_part(paths: list[Path], way: str) -> None:
    where, offsets = request(1_600, 34)
    blobs = LocalBlobs(list(map(str, paths)), way=way)
    out = blobs.buffer(1_600 * 34).reshape(1_600, 34)
    for first in range(0, 1_600, 400):
        part = slice(first, first + 400)
        blobs.read_rows(where[part], offsets[part], 34, np.arange(first, first + 400), out)
    assert np.array_equal(out, naive(paths, where, offsets, 34))


def test_a_buffer_beyond_the_scratch_is_lent_all_the_same(paths: list[Path], way: str) -> None:
    where, offsets = request(1_500, 2_050)
    blobs = LocalBlobs(list(map(str, paths)), way=way)
    out = blobs.buffer(1_500 * 2_050).reshape(1_500, 2_050)
    blobs.read_rows(where, offsets, 2_050, np.arange(1_500), out)
    assert np.array_equal(out, naive(paths, where, offsets, 2_050))


def test_an_empty_request_reads_nothing(paths: list[Path]) -> None:
    none = np.empty(0, dtype=np.int64)
    LocalBlobs([*map(str, paths)]).read_rows(none, none, 8, none, np.empty((0, 8), dtype=np.uint8))


def test_the_system_call_count_does_not_grow_with_rows(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    gather = kernel.gather
    monkeypatch.setattr(
        kernel, "gather", lambda fd, vectors, at=0: calls.append(len(vectors)) or gather(fd, vectors, at)
    )
    where, offsets = request(3000, 16)
    read(LocalBlobs([*map(str, paths)]), where, offsets, 16)
    assert calls == [1024, 1024, 952]


def test_a_range_equals_the_file(paths: list[Path]) -> None:
    out = np.empty(5_000, dtype=np.uint8)
    LocalBlobs([*map(str, paths)]).read_range(1, 2_001, out)
    assert out.tobytes() == paths[1].read_bytes()[2_001:]


@pytest.mark.parametrize(("blob", "offset"), [(1, 7_000), (0, -1), (2, 2**40)])
def test_rows_outside_a_file_are_refused_before_any_call(
    paths: list[Path], blob: int, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "gather", lambda *_: pytest.fail("a call was made"))
    blobs = LocalBlobs([*map(str, paths)])
    with pytest.raises(SourceError, match=rf"b{blob}\.bin.*outside"):
        read(blobs, np.array([blob]), np.array([offset]), 2)
    with pytest.raises(SourceError, match="outside"):
        blobs.read_range(blob, offset, np.empty(2, dtype=np.uint8))


@pytest.mark.parametrize("blob", [-1, 3])
def test_a_blob_that_does_not_exist_is_refused(paths: list[Path], blob: int) -> None:
    with pytest.raises(SourceError, match="there are 3"):
        read(LocalBlobs([*map(str, paths)]), np.array([blob]), np.array([0]), 2)


@pytest.mark.parametrize("rows", [[2], [-1]])
def test_rows_beyond_the_buffer_are_refused(paths: list[Path], rows: list[int]) -> None:
    zero = np.zeros(1, dtype=np.int64)
    with pytest.raises(ValueError, match="above every row"):
        LocalBlobs([*map(str, paths)]).read_rows(zero, zero, 4, np.array(rows), np.empty((2, 4), dtype=np.uint8))


def truncate(path: Path) -> None:
    os.truncate(path, 10_000)


def truncate_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def replace(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(10**18, 10**18))
    other.replace(path)


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"changed")


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


CHANGES = [
    (truncate, "found 10,000"),
    (truncate_to_nothing, "expected 90,000 bytes, found 0"),
    (replace, "replaced"),
    (Path.unlink, "deleted"),
    (rewrite, "rewritten"),
    (append, "found 90,004"),
]


@pytest.mark.parametrize(("change", "says"), CHANGES, ids=lambda value: getattr(value, "__name__", None))
@pytest.mark.parametrize("opened", [True, False], ids=["mapped", "unopened"])
def test_a_changed_file_is_an_error_that_names_it(paths: list[Path], way: str, opened: bool, change, says: str) -> None:
    blobs = LocalBlobs([*map(str, paths)], way=way)
    where, offsets = np.array([0, 2, 1]), np.array([0, 50_000, 0])
    if opened:
        read(blobs, where, offsets, 64)
    change(paths[2])
    with pytest.raises(ChangedError, match=rf"b2\.bin.*{says}") as caught:
        read(blobs, where, offsets, 64)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), ChangedError)
    with pytest.raises(ChangedError, match=r"b2\.bin"):
        blobs.read_range(2, 50_000, np.empty(64, dtype=np.uint8))
    with pytest.raises(ChangedError, match=r"b2\.bin"):
        blobs.check_unchanged()
    read(blobs, where[:1], offsets[:1], 64)  # the other files still serve
    del caught  # and with it this frame, which would keep the queue


def test_truncation_names_the_byte_where_reading_stopped(paths: list[Path]) -> None:
    blobs = LocalBlobs([*map(str, paths)])
    read(blobs, np.array([2]), np.array([0]), 64)
    os.truncate(paths[2], 0)
    with pytest.raises(ChangedError, match=r"b2\.bin, byte 50,000"):
        read(blobs, np.array([0, 2]), np.array([0, 50_000]), 64)


def test_pages_past_a_new_end_of_file_are_not_taken_for_zeros(paths: list[Path]) -> None:
    """The last page of a shortened file stays readable and holds zeros, so the kernel reports nothing."""
    blobs = LocalBlobs([*map(str, paths)])
    read(blobs, np.array([2]), np.array([0]), 64)
    os.truncate(paths[2], 50_000)
    with pytest.raises(ChangedError, match="found 50,000"):
        read(blobs, np.array([2]), np.array([50_001]), 64)


def test_a_rewrite_with_its_modification_time_set_back_fails_the_check(paths: list[Path]) -> None:
    blobs = LocalBlobs([*map(str, paths)])
    blobs.check_unchanged()
    probe, before = paths[0].with_suffix(".probe"), paths[0].stat().st_ctime_ns
    probe.touch()
    while probe.stat().st_ctime_ns <= before:  # change times tick with the kernel's clock
        probe.touch()
    rewrite(paths[0])
    os.utime(paths[0], ns=(10**18, 10**18))
    with pytest.raises(ChangedError, match=r"b0\.bin.*change time"):
        blobs.check_unchanged()


def test_a_pickled_copy_reads_and_still_knows_what_the_files_were(paths: list[Path]) -> None:
    blobs = LocalBlobs([*map(str, paths)])
    read(blobs, np.array([0]), np.array([0]), 8)
    text = pickle.dumps(blobs)
    assert len(text) < 2_000
    copy = pickle.loads(text)
    assert read(copy, np.array([1]), np.array([3]), 8).tobytes() == paths[1].read_bytes()[3:11]
    append(paths[1])
    with pytest.raises(ChangedError):
        read(pickle.loads(text), np.array([1]), np.array([3]), 8)


def test_close_lets_go_and_the_next_read_opens_again(paths: list[Path]) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(paths[0]))

    blobs = LocalBlobs([*map(str, paths)])
    assert mapped() == 0
    read(blobs, np.array([0]), np.array([0]), 8)
    assert mapped() == 1
    blobs.close()
    assert mapped() == 0
    read(blobs, np.array([0]), np.array([0]), 8)


def test_threads_share_one_object(paths: list[Path], way: str) -> None:
    blobs = LocalBlobs([*map(str, paths)], way=way, max_open=1)
    wrong: list[object] = []

    def work(seed: int) -> None:
        for turn in range(30):
            where, offsets = request(200, 70, seed * 1000 + turn)
            try:
                if not np.array_equal(read(blobs, where, offsets, 70), naive(paths, where, offsets, 70)):
                    wrong.append((seed, turn))
            except Exception as error:  # noqa: BLE001 - carried to the main thread
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _child(blobs: LocalBlobs, where: np.ndarray, offsets: np.ndarray, queue) -> None:
    for _ in range(50):
        found = read(blobs, where, offsets, 300)
    queue.put(found)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # on purpose: that is what is tested
def test_a_forked_child_and_its_parent_read_at_once(paths: list[Path], way: str) -> None:
    """The child must not write into the scratch that it shares pages with."""
    blobs = LocalBlobs([*map(str, paths)], way=way)
    where, offsets = request(500, 300, 5)
    read(blobs, where, offsets, 300)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(blobs, where[::-1].copy(), offsets[::-1].copy(), queue))
    child.start()
    expected = naive(paths, where, offsets, 300)
    while queue.empty() and child.is_alive():
        np.testing.assert_array_equal(read(blobs, where, offsets, 300), expected)
    np.testing.assert_array_equal(queue.get(timeout=120), expected[::-1])
    child.join()
    assert child.exitcode == 0


def test_many_files_need_no_open_descriptors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = [tmp_path / f"{i:04}.bin" for i in range(300)]
    for i, name in enumerate(names):
        name.write_bytes(i.to_bytes(2, "little") * 8)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    blobs = LocalBlobs([*map(str, names)])
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        found = read(blobs, np.arange(300), np.zeros(300, dtype=np.int64), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.view("<u2")[:, 0].tolist() == list(range(300))
    assert not caplog.records


def test_above_the_limit_on_maps_files_are_opened_again_and_it_is_said_once(
    paths: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    blobs = LocalBlobs([*map(str, paths)], max_open=2)
    for turn in range(6):
        where, offsets = request(100, 40, turn)
        np.testing.assert_array_equal(read(blobs, where, offsets, 40), naive(paths, where, offsets, 40))
    assert Path("/proc/self/maps").read_text().count(str(paths[0].parent)) <= 2
    assert ["vm.max_map_count" in record.getMessage() for record in caplog.records] == [True]


def test_where_files_cannot_be_mapped_it_is_said_and_rows_are_read_one_by_one(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: int, num_bytes: int) -> int:
        raise OSError(19, "No such device")

    monkeypatch.setattr(kernel, "map_file", refuse)
    blobs = LocalBlobs([*map(str, paths)])
    where, offsets = request(100, 40)
    for _ in range(2):
        np.testing.assert_array_equal(read(blobs, where, offsets, 40), naive(paths, where, offsets, 40))
    assert [(r.levelno, "one by one" in r.getMessage()) for r in caplog.records] == [(logging.WARNING, True)]


def test_where_the_queue_is_refused_it_is_said_and_rows_are_read_one_by_one(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(queued, "_thread_queue", refuse)
    blobs = LocalBlobs([*map(str, paths)], way="queued")
    where, offsets = request(300, 40)
    np.testing.assert_array_equal(read(blobs, where, offsets, 40), naive(paths, where, offsets, 40))
    assert ["fs.aio-max-nr" in record.getMessage() for record in caplog.records] == [True]


def test_files_of_moderate_size_are_mapped_and_larger_ones_are_not(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LocalBlobs([*map(str, paths)]).way == "mapped"
    monkeypatch.setattr(local, "_MAPPED_BYTES", sum(SIZES) - 1)
    blobs = LocalBlobs([*map(str, paths)])
    assert blobs.way == ("queued" if queue_supported() else "mapped")
    monkeypatch.setattr(local, "queue_supported", lambda: False)
    assert LocalBlobs([*map(str, paths)]).way == "mapped"
    monkeypatch.setattr(kernel, "vectored_supported", lambda: False)
    assert LocalBlobs([*map(str, paths)]).way == "single"


@pytest.mark.skipif(not queue_supported(), reason="no read queues here")
def test_a_queue_stays_below_the_limit_on_open_files_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [tmp_path / f"{i:04}.bin" for i in range(150)]
    for i, name in enumerate(names):
        name.write_bytes(i.to_bytes(2, "little") * 8)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        blobs = LocalBlobs([*map(str, names)], way="queued")
        for first in range(0, 150, 30):
            found = read(blobs, np.arange(first, first + 30), np.zeros(30, dtype=np.int64), 2)
            assert found.view("<u2")[:, 0].tolist() == list(range(first, first + 30))
        still_open = opened_below(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert still_open == 50
    assert ["ulimit -n" in record.getMessage() for record in caplog.records] == [True]
    blobs.close()
    assert opened_below(tmp_path) == 0


def opened_below(folder: Path) -> int:
    entries = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sum(str(folder) in str(entry.readlink()) for entry in entries)


@pytest.mark.skipif(not queue_supported(), reason="no read queues here")
def test_a_queue_leaves_nothing_resident(tmp_path: Path) -> None:
    def resident_file_kib() -> int:
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile"))
        return int(line.split()[1])

    path = tmp_path / "big.bin"
    path.write_bytes(bytes(64 << 20))
    offsets = np.arange(0, 64 << 20, 4096)
    grown = {}
    for way in ("mapped", "queued"):
        blobs = LocalBlobs([str(path)], way=way)
        before = resident_file_kib()
        read(blobs, np.zeros(len(offsets), dtype=np.int64), offsets, 16)
        grown[way] = resident_file_kib() - before
        blobs.close()
    assert grown["mapped"] > 32 << 10
    assert grown["queued"] < 4 << 10


def test_files_beyond_memory_are_read_without_reading_around(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    advised = []
    monkeypatch.setattr(kernel, "advise_random", lambda address, size: advised.append(size))
    read(LocalBlobs([*map(str, paths)]), np.array([0]), np.array([0]), 8)
    assert advised == []
    monkeypatch.setattr(mapped, "available_bytes", lambda: sum(SIZES))
    read(LocalBlobs([*map(str, paths)]), np.array([0]), np.array([0]), 8)
    assert advised == [SIZES[0]]


def test_offsets_beyond_4_gib(tmp_path: Path, way: str) -> None:
    path = tmp_path / "sparse.bin"
    at = 2**32 + 2**31 + 123
    with path.open("wb") as file:
        file.seek(at)
        file.write(b"far away")
    found = read(LocalBlobs([str(path)], way=way), np.array([0, 0]), np.array([at, 5]), 8)
    assert [row.tobytes() for row in found] == [b"far away", bytes(8)]


def test_a_missing_file_or_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone\.bin: No such file"):
        LocalBlobs([str(tmp_path / "gone.bin")])
    with pytest.raises(SourceError, match="not a regular file"):
        LocalBlobs([str(tmp_path)])
