"""Advice has pages read that were not in the page cache, takes no memory, and is forgone where the system refuses."""

import ctypes
import errno
import os
import time

import numpy as np
import pytest

from flodl_pipe.staging import disk_file
from flodl_pipe.staging.read_ahead import ReadAhead
from tests.staging.disk_rows import SPECS, Rows, fill, make_stage, open_descriptors, read_through

PAGE = os.sysconf("SC_PAGE_SIZE")
NUM_PAGES = 2000


@pytest.fixture
def file(tmp_path):
    descriptor = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
    os.pwrite(descriptor, os.urandom(NUM_PAGES * PAGE), 0)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    yield descriptor
    os.close(descriptor)


def cached_pages(descriptor: int) -> np.ndarray:
    """Return which pages of the file are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_long] * 4)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    address = libc.mmap(None, NUM_PAGES * PAGE, 1, 1, descriptor, 0)
    found = np.zeros(NUM_PAGES, dtype=np.uint8)
    assert libc.mincore(address, NUM_PAGES * PAGE, found.ctypes.data) == 0
    libc.munmap(address, NUM_PAGES * PAGE)
    return found & 1 == 1


def test_the_pages_of_the_runs_are_read_and_no_others(file):
    if cached_pages(file).any():
        pytest.skip("this file system keeps pages in memory")
    before = open_descriptors()
    ahead = ReadAhead(file, NUM_PAGES * PAGE)
    pages = np.arange(10, NUM_PAGES - 1, 7)
    # Half of the runs lie in one page, half reach into the next.
    offsets = pages * PAGE + np.where(np.arange(len(pages)) % 2, PAGE - 10, 20)
    ahead.hint(offsets, 100)
    expected = np.zeros(NUM_PAGES, dtype=bool)
    expected[0] = True  # looked at when it was made
    expected[pages] = expected[pages[1::2] + 1] = True
    deadline = time.monotonic() + 120
    while not (cached_pages(file) >= expected).all() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert np.flatnonzero(cached_pages(file) != expected).tolist() == []
    del ahead
    assert open_descriptors() == before


def test_more_runs_than_one_call_takes_are_all_read(file):
    ahead = ReadAhead(file, NUM_PAGES * PAGE)
    ahead.hint(np.arange(NUM_PAGES) * PAGE, PAGE)
    deadline = time.monotonic() + 120
    while not cached_pages(file).all() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cached_pages(file).all()


def test_it_takes_no_memory(file):
    def resident_bytes() -> int:
        with open("/proc/self/statm") as status:
            return int(status.read().split()[1]) * PAGE

    ahead = ReadAhead(file, NUM_PAGES * PAGE)
    before = resident_bytes()
    ahead.hint(np.arange(NUM_PAGES) * PAGE, PAGE)
    os.pread(file, NUM_PAGES * PAGE, 0)
    assert resident_bytes() - before < NUM_PAGES * PAGE // 2
    del ahead


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.ENOMEM])
def test_a_stage_without_it_says_so_and_works(tmp_path, caplog, monkeypatch, number):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk_file, "ReadAhead", refuse)
    source = Rows(SPECS["words"], 100)
    stage = make_stage(source, tmp_path)
    assert caplog.text.count("refuses to be told of them ahead") == 1
    assert os.strerror(number) in caplog.text
    fill(stage, source, np.arange(100))
    assert read_through(stage, source, np.arange(100)) == 100
    stage.close()


def test_a_refused_call_leaves_nothing_open(file, monkeypatch):
    before = open_descriptors()

    def make() -> None:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            ReadAhead(file, NUM_PAGES * PAGE)

    monkeypatch.setattr(os, "pidfd_open", lambda pid: os.open("/dev/null", os.O_RDONLY))
    make()
    assert open_descriptors() == before
