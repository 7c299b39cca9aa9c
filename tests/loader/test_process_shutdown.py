"""Reader processes end with their readers, however that goes, and leave nothing."""

import contextlib
import gc
import multiprocessing.connection
import os
import signal
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.process_readers import ProcessReaders
from flodl_pipe.sources.adapters import adapt
from tests.loader import process_sources as datasets
from tests.loader.waiting import HANG_S, joined, until
from tests.support.programs import Program

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")

FULL = pytest.mark.full
SCRIPT = """
import sys, time, threading
from pathlib import Path
import numpy as np
from flodl_pipe.loader.process_readers import ProcessReaders
from flodl_pipe.sources.adapters import adapt
from tests.loader import process_sources as datasets
from tests.loader.waiting import until

def main():
    told = Path(sys.argv[3])
    source = adapt(datasets.Faulty(told=told))
    readers = ProcessReaders(source, num_processes=2, start=sys.argv[1], max_rows=10)
    out = source.spec.empty(50)
    readers.read_into(np.arange(50), np.arange(50), out)
    def stuck():
        try:
            readers.read_into(np.array([datasets.STUCK]), np.array([0]), out)
        except Exception:
            pass
    threading.Thread(target=stuck, daemon=True).start()
    until(told.exists, "a reader process that is stuck")
    print(*readers.pids, flush=True)
    if sys.argv[2] == "wait":
        time.sleep(600)
    if sys.argv[2] == "raise":
        raise OSError("mine")

if __name__ == "__main__":
    main()
"""


def make(num_processes=2, start="forkserver", told=None):
    source = adapt(datasets.Faulty(told=told))
    readers = ProcessReaders(source, num_processes=num_processes, start=start, max_rows=16)
    readers.read_into(np.arange(50), np.arange(50), source.spec.empty(50))
    return readers


def is_alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def require_gone(pids):
    until(lambda: not any(map(is_alive, pids)), "the end of the processes")


def shared_maps():
    """Return the inodes of the memory that is shared with reader processes and mapped here."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "flodl_pipe_processes" in line}


@pytest.fixture(autouse=True)
def _no_memory_stays_mapped():
    before = shared_maps()  # what other tests have left may go meanwhile
    yield
    if shared_maps() - before:
        gc.collect()
    assert not shared_maps() - before


@pytest.mark.parametrize("start", ["forkserver", "fork", pytest.param("spawn", marks=FULL)])
def test_closing_ends_the_processes(start):
    readers = make(start=start)
    pids = readers.pids
    assert all(map(is_alive, pids))
    readers.close()
    require_gone(pids)
    assert readers.pids == ()
    readers.close()
    for call in (readers.begin, lambda: readers.read_into(np.arange(1), np.arange(1), {})):
        with pytest.raises(LoaderError, match="were closed"):
            call()


def test_closing_ends_a_process_that_is_stuck(tmp_path):
    told = tmp_path / "told"
    readers = make(told=told)
    pids = readers.pids

    def stuck():
        with pytest.raises(LoaderError, match="were closed"):
            readers.read_into(np.array([datasets.STUCK]), np.array([0]), {})

    thread = threading.Thread(target=stuck)
    thread.start()
    until(told.exists, "a reader process that is stuck")
    readers.close()
    joined(thread)
    require_gone(pids)


def test_readers_that_nobody_holds_end():
    pids = make().pids
    gc.collect()
    require_gone(pids)


def test_a_process_that_was_killed_while_idle_leaves_nothing():
    readers = make()
    pids = readers.pids
    os.kill(pids[1], signal.SIGKILL)
    until(lambda: readers.pids == pids[:1], "that it is seen")
    readers.begin()
    require_gone(pids)
    assert len(readers.pids) == 2
    readers.close()


def test_who_sees_that_a_process_has_died_sees_that_the_pool_is_of_no_use(monkeypatch):
    readers = make()
    pids, seen = readers.pids, []
    close = multiprocessing.connection.Connection.close

    def closed(pipe):  # while the end of a process is being noted
        if threading.current_thread().name == "flodl_pipe-processes" and not seen:
            alive = readers.pids
            try:
                readers.read_into(np.arange(1), np.arange(1), {})
            except LoaderError as error:
                seen.append((alive, str(error)))
        close(pipe)

    monkeypatch.setattr(multiprocessing.connection.Connection, "close", closed)
    os.kill(pids[1], signal.SIGKILL)
    until(lambda: seen, "that it is seen")
    ((alive, text),) = seen
    assert alive == pids[:1]
    assert f"process {pids[1]}" in text
    readers.close()


def test_interrupting_again_and_again_leaves_nothing():
    readers = make()
    for _ in range(5):
        readers.interrupt()
        readers.begin()
    readers.close()


def test_ctrl_c_is_not_for_the_processes():
    readers = make()
    for pid in readers.pids:
        os.kill(pid, signal.SIGINT)
    out = adapt(datasets.Faulty()).spec.empty(50)
    readers.read_into(np.arange(50), np.arange(50), out)
    assert out["id"].tolist() == list(range(50))
    readers.close()


def test_a_forked_child_leaves_them_alone():
    readers = make()
    child = os.fork()
    if not child:
        status = 1
        try:
            with pytest.raises(LoaderError, match="forked from"):
                readers.read_into(np.arange(1), np.arange(1), {})
            readers.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert all(map(is_alive, readers.pids))
    out = adapt(datasets.Faulty()).spec.empty(50)
    readers.read_into(np.arange(50), np.arange(50), out)
    readers.close()


@pytest.mark.parametrize(
    ("how", "start"),
    [
        *((how, "fork") for how in ("kill", "interrupt")),
        *(pytest.param(how, "forkserver", marks=FULL) for how in ("exit", "raise", "kill", "interrupt", "terminate")),
        pytest.param("kill", "spawn", marks=FULL),
    ],
)
def test_the_end_of_the_program_is_theirs(how, start, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    waits = how in ("kill", "interrupt", "terminate")
    # Errors go to a file: a server of forks that outlives its parent for a moment holds a pipe open.
    with open(tmp_path / "errors", "w+") as errors:
        with Program(
            [script, start, "wait" if waits else how, tmp_path / "told"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process:
            pids = list(map(int, process.stdout.readline().split()))
            if how == "interrupt":
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            elif waits:
                process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
            process.wait(HANG_S)
        require_gone(pids)
        errors.seek(0)
        text = errors.read()
    assert len(pids) == 2
    expected = {
        "exit": 0,
        "raise": 1,
        "kill": -signal.SIGKILL,
        "interrupt": -signal.SIGINT,
        "terminate": -signal.SIGTERM,
    }
    assert process.returncode == expected[how], text
    assert text.count("Traceback") == (how in ("raise", "interrupt")), text
