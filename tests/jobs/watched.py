"""A data set that tells how far a run is, and holds it until a test has done what it has to.

A run of several processes cannot be met at a certain step by waiting for some time. Here each rank leaves a file when
it has begun to read, which it does within the loop that signals are for, and the second half of the samples is there
only when the test says so.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

MODULE = """
import os, threading, time
import numpy as np

class Watched:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if threading.current_thread() is not threading.main_thread():  # which looks at some when it builds the loader
            open(f"reading.{os.environ.get('RANK', 0)}", "a").close()
            while index >= 32 and not os.path.exists("go"):
                time.sleep(0.01)
        return {"x": np.full(3, index, np.int64)}
"""
WORDS = (
    *("source=custom", "source.factory=watched_set:Watched", "allow_import=[watched_set]", "sampling.shuffle=false"),
    *("loader.global_batch_size=8", "loader.batch_size=8", "loader.device=cpu", "loader.readers=1"),
    *("loader.mode=streaming", "loader.sample_cache=false", "loader.prefetch=1"),
    *("reports.progress=false", "job.epochs=2"),
)
"""Of a run of 16 steps, 8 an epoch, of which 4 need no word of the test."""


LIMIT_S = 170
"""Of what hangs."""


def write(folder: Path) -> None:
    """Put the data set where the program that starts in this folder finds it."""
    (folder / "watched_set.py").write_text(MODULE)


def are_reading(folder: Path, num_ranks: int) -> bool:
    """Return whether all ranks have begun to."""
    return all((folder / f"reading.{rank}").exists() for rank in range(num_ranks))


def go_on(folder: Path) -> None:
    """Let the run have all samples."""
    (folder / "go").touch()


def await_(condition: Callable[[], bool], process) -> None:  # type: ignore[no-untyped-def]
    """Wait until something is so, as long as the process lives."""
    give_up = time.monotonic() + LIMIT_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.01)


def ranks_of(agent: int) -> list[int]:
    """Return the processes that torchrun, or ``job=launch``, has started, by local rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == agent:
                words = (folder / "environ").read_bytes().split(b"\0")
                rank = [word.partition(b"=")[2] for word in words if word.startswith(b"LOCAL_RANK=")]
                if rank:
                    found[int(rank[0])] = int(folder.name)
    return [found[rank] for rank in sorted(found)]


def end(process) -> None:  # type: ignore[no-untyped-def]
    """End what a test has started and not waited for, with its ranks: each is a session of its own."""
    if process.poll() is None:
        for pid in [*ranks_of(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)
