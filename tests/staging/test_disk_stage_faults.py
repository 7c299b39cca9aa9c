"""Whatever goes wrong with a disk stage while it works, it says so once, is off from then on, and no byte is wrong.

White box: the stage's file is damaged by its descriptor, its reads are made to go without a queue, and its layout
refuses memory.
"""

import contextlib
import errno
import logging
import os
import re
import threading

import numpy as np
import pytest

from flodl_pipe.staging import disk_file
from tests.staging.disk_rows import (
    SPECS,
    Rows,
    failing,
    file_path,
    fill,
    make_stage,
    open_descriptors,
    overwrite,
    peek,
    read_through,
)

RECORD = 2056  # of SPECS["words"]


def warnings_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def require_off(stage, source, caplog, *words: str) -> None:
    """Require that the stage is off for good, said why once, gave its file back, and that reading goes on rightly."""
    assert stage.count().off is not None
    (message,) = warnings_of(caplog)
    assert "training goes on from the source" in message
    assert stage.count().off in message
    for word in words:
        assert word in message
    assert (stage.count().held_bytes, stage.is_full) == (0, True)
    folder = re.search(r" in (/\S+)\) was", message)[1]
    assert [target for target in open_targets() if target.startswith(folder)] == []
    for _ in range(2):
        assert read_through(stage, source, np.arange(len(source))) == 0
    stage.close()
    assert len(warnings_of(caplog)) == 1


def open_targets() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder's own descriptor is closed by now
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


@pytest.fixture
def source():
    return Rows(SPECS["words"], 300)


@pytest.fixture
def stage(source, tmp_path, caplog):
    """A full stage whose place ``i`` in the file is sample ``i``'s."""
    caplog.set_level(logging.WARNING, "flodl_pipe")
    made = make_stage(source, tmp_path)
    fill(made, source, np.arange(300))
    assert warnings_of(caplog) == []
    assert any(target.startswith(str(tmp_path)) for target in open_targets())
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["scalar", "one byte", "empty"])
def test_a_flip_of_any_bit_of_a_record_is_found(kind, tmp_path):
    source = Rows(SPECS[kind], 3)
    # All of the record but nothing else: the padding counts, too.
    for bit in range(8 * (8 if kind == "empty" else 16)):
        stage = make_stage(source, tmp_path)
        fill(stage, source, np.arange(3))
        offset = stage.num_bytes // 3 + bit // 8
        overwrite(stage, offset, bytes([peek(stage, offset, 1)[0] ^ (1 << bit % 8)]))
        assert read_through(stage, source, [0, 2]) == 2
        assert read_through(stage, source, [2, 1, 0]) == 0
        assert "the row of sample 1" in stage.count().off
        stage.close()


def test_a_flipped_byte_switches_it_off(stage, source, caplog):
    overwrite(stage, 123 * RECORD + 1000, bytes([peek(stage, 123 * RECORD + 1000, 1)[0] ^ 4]))
    assert read_through(stage, source, np.arange(123)) == 123
    assert read_through(stage, source, np.arange(300)) == 0
    require_off(stage, source, caplog, "row of sample 123", "is damaged", "1 of 300 rows", "dmesg")


def test_rows_that_changed_places_switch_it_off(stage, source, caplog):
    one, other = peek(stage, 0, RECORD), peek(stage, 5 * RECORD, RECORD)
    overwrite(stage, 0, other)
    overwrite(stage, 5 * RECORD, one)
    assert read_through(stage, source, [7, 5, 0]) == 0
    require_off(stage, source, caplog, "row of sample 5", "2 of 3 rows")


@pytest.mark.parametrize("written", [0, 8, 512, RECORD - 8])
def test_a_torn_write_switches_it_off(stage, source, caplog, written):
    overwrite(stage, 40 * RECORD + written, bytes(RECORD - written))
    assert read_through(stage, source, [39, 40]) == 0
    require_off(stage, source, caplog, "row of sample 40")


def test_words_that_changed_places_switch_it_off(stage, source, caplog):
    record = peek(stage, 9 * RECORD, RECORD)
    overwrite(stage, 9 * RECORD, record[:8] + record[16:24] + record[8:16] + record[24:])
    assert read_through(stage, source, [9]) == 0
    require_off(stage, source, caplog, "row of sample 9")


def test_a_shorter_file_switches_it_off(stage, source, caplog):
    os.truncate(file_path(stage), 200 * RECORD + 77)
    assert read_through(stage, source, np.arange(200)) == 200
    assert read_through(stage, source, np.arange(300)) == 0
    require_off(stage, source, caplog, "reading from it failed", "only 77 of 2,056 bytes", "offset 411,200")


@pytest.mark.parametrize("queued", [True, False])
def test_a_read_error_switches_it_off(stage, source, caplog, monkeypatch, queued):
    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if queued:
        read = disk_file.read_runs

        def one_fails(descriptor, offsets, addresses, num_bytes):
            counts = read(descriptor, offsets, addresses, num_bytes)
            counts[offsets == 100 * RECORD] = -errno.EIO
            return counts

        monkeypatch.setattr(disk_file, "read_runs", one_fails)
    else:
        stage._file._queued = False
        monkeypatch.setattr(os, "preadv", fail)
    assert read_through(stage, source, np.arange(300)) == 0
    monkeypatch.undo()
    require_off(stage, source, caplog, "reading from it failed", "Input/output error", "dmesg")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("part", [0, 700])
def test_a_write_error_switches_it_off(source, tmp_path, caplog, monkeypatch, number, part):
    stage = make_stage(source, tmp_path)
    monkeypatch.setattr(os, "pwrite", failing(number, after=2, part=part))
    fill(stage, source, np.arange(150))
    monkeypatch.undo()
    require_off(
        stage,
        source,
        caplog,
        "writing to it failed",
        os.strerror(number),
        "dmesg" if number == errno.EIO else "make room there, lower loader.disk_stage",
    )


def test_no_memory_switches_it_off(source, tmp_path, caplog, monkeypatch):
    stage = make_stage(source, tmp_path)

    def refuse(count):
        raise MemoryError("refused")

    monkeypatch.setattr(stage._layout, "empty", refuse)
    fill(stage, source, np.arange(3))
    require_off(stage, source, caplog, "writing to it failed (no memory: refused)", "loader.batch_size")


def test_a_write_that_takes_a_part_first_goes_on(source, tmp_path, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, offset: write(descriptor, content[:1000], offset))
    stage = make_stage(source, tmp_path)
    fill(stage, source, np.arange(300))
    assert read_through(stage, source, np.arange(300)) == 300
    stage.close()


def test_it_goes_off_once_under_many_readers(stage, source, caplog):
    overwrite(stage, 250 * RECORD, bytes(RECORD))
    failures = []

    def work(seed: int) -> None:
        try:
            fill(stage, source, np.random.default_rng(seed).permutation(300), batch=20)
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    require_off(stage, source, caplog, "row of sample 250")


@pytest.mark.parametrize("damaged", [False, True])
def test_a_read_in_flight_keeps_its_file(stage, source, tmp_path, caplog, monkeypatch, damaged):
    """The descriptor's number must not become another file's while a thread reads from it."""
    read, inside, go_on, seen = disk_file.read_runs, threading.Event(), threading.Event(), []

    def slow(descriptor, *arguments):
        if threading.current_thread() is not threading.main_thread():
            before = os.fstat(descriptor).st_ino
            inside.set()
            assert go_on.wait(120)
            seen.append(os.fstat(descriptor).st_ino == before)
        return read(descriptor, *arguments)

    monkeypatch.setattr(disk_file, "read_runs", slow)
    hits = []
    thread = threading.Thread(target=lambda: hits.append(read_through(stage, source, np.arange(20))))
    thread.start()
    assert inside.wait(120)
    if damaged:
        overwrite(stage, 0, bytes(RECORD))
        assert read_through(stage, source, [0]) == 0
    else:
        stage.close()
    others = [os.open(tmp_path, os.O_TMPFILE | os.O_RDWR) for _ in range(8)]
    go_on.set()
    thread.join()
    for other in others:
        os.close(other)
    assert (seen, hits) == ([True], [0])
    # What the other thread did to the file is no fault of its own.
    assert len(warnings_of(caplog)) == damaged
    baseline = open_descriptors()
    make_stage(source, tmp_path).close()
    assert open_descriptors() == baseline


def test_a_thread_without_a_read_queue_reads_one_by_one(stage, source, caplog, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(disk_file, "read_runs", refuse)
    assert read_through(stage, source, np.arange(300)) == 300
    assert warnings_of(caplog) == []


def test_a_system_without_read_queues_is_told_of(source, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(disk_file, "queue_supported", lambda: False)
    stage = make_stage(source, tmp_path)
    fill(stage, source, np.arange(300))
    assert read_through(stage, source, np.arange(300)) == 300
    (message,) = warnings_of(caplog)
    assert "one by one" in message
    assert "fs.aio-max-nr" in message
    stage.close()


def test_a_disk_that_refuses_to_free_the_space_does_not_stop_the_closing(stage, source, caplog, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "ftruncate", refuse)
    before = open_descriptors()
    stage.close()
    assert open_descriptors() == before - 2
    (message,) = warnings_of(caplog)
    assert "Read-only file system" in message
    assert read_through(stage, source, np.arange(300)) == 0
