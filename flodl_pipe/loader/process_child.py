"""What a reader process does: it waits for a task, reads its samples into the task's lane, and says so.

It reads one task after the other, in the order they come, and ends when it is told to, when the pipe to its parent
closes, or when the parent is gone, however that went: a thread watches the parent, because a dataset may be stuck.

Ctrl-C is the parent's matter: it goes to every process of a terminal, and is ignored here. Torch computes with one
thread, as there are processes enough. ``torch.utils.data.get_worker_info()`` returns None, as in a main process: only
torch's own loader can set it, and there is nothing to share out among processes here.
"""

import os
import signal
import sys
import threading
import time
from multiprocessing import connection, parent_process
from typing import NamedTuple, final

import numpy as np
import torch

from flodl_pipe.batch.ragged import Columns
from flodl_pipe.errors import SourceError
from flodl_pipe.loader.process_errors import SentError, send_error
from flodl_pipe.loader.process_memory import Lane, LaneLayout, SharedMemory
from flodl_pipe.loader.process_source import REMEDIES, PickledSource
from flodl_pipe.sources.impure import ImpureSource
from flodl_pipe.sources.protocol import RaggedSource, Source

__all__ = ["Answer", "Request", "Setup", "read_for_parent"]


@final
class Request(NamedTuple):
    """A task: the samples of a lane. ``epoch`` and ``seed`` are None where picks play no part."""

    lane: int
    num_samples: int
    epoch: int | None
    seed: int | None


@final
class Answer(NamedTuple):
    """What became of a task, or of the start of the process.

    Attributes:
        took_s: How long it took.
        columns: The rows, where they are ragged; else they are in the lane.
        error: What went wrong; None when nothing did.
    """

    took_s: float
    columns: Columns | None
    error: SentError | None


@final
class Setup(NamedTuple):
    """What a process is given when it starts.

    Attributes:
        source: What it reads: pickled, or itself in a fork.
        memory: The lanes.
        layout: Where things lie in them.
        first_lane: Its own first lane; those of a task count from there.
        num_lanes: How many are its own.
    """

    source: PickledSource | Source
    memory: SharedMemory
    layout: LaneLayout
    first_lane: int
    num_lanes: int


def read_for_parent(setup: Setup, pipe: connection.Connection) -> None:
    """Read tasks until there are no more: the main function of a reader process.

    Args:
        setup: What to read, and where to.
        pipe: Tasks come from it, answers go to it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork has the handlers of the parent
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # for processes that a dataset starts
    threading.Thread(target=_end_with_parent, name="flodl_pipe-parent-watch", daemon=True).start()
    torch.set_num_threads(1)
    began_s = time.perf_counter()
    try:
        source = _loaded(setup.source)
        memory = setup.memory.map()
        lanes = [setup.layout.lane(memory, setup.first_lane + number) for number in range(setup.num_lanes)]
    except BaseException as error:  # noqa: BLE001 - it is the parent's to raise
        _answer(pipe, Answer(0.0, None, send_error(error)))
        return
    if not _answer(pipe, Answer(time.perf_counter() - began_s, None, None)):
        return
    while True:
        try:
            request: Request | None = pipe.recv()
        except (EOFError, OSError):
            return
        if request is None or not _answer(pipe, _answered(source, lanes[request.lane], request)):
            return


def _loaded(given: PickledSource | Source) -> Source:
    if not isinstance(given, PickledSource):
        return given
    try:
        return given.load()
    except (AttributeError, ImportError) as error:
        raise SourceError(
            f"the dataset was sent to a reader process, which cannot find its code again: {error}. What is typed into "
            "an interpreter or a notebook exists in that process alone, and a module must be importable in every "
            f"process: {REMEDIES}"
        ) from error


def _answered(source: Source, lane: Lane, request: Request) -> Answer:
    began_s = time.perf_counter()
    try:
        columns = _read(source, lane, request)
    except BaseException as error:  # noqa: BLE001 - it is the parent's to raise, SystemExit too
        return Answer(time.perf_counter() - began_s, None, send_error(error))
    return Answer(time.perf_counter() - began_s, columns, None)


def _read(source: Source, lane: Lane, request: Request) -> Columns | None:
    # Copies: a source may keep or change what it is given.
    samples, rows = lane.samples[: request.num_samples].copy(), np.arange(request.num_samples, dtype=np.int64)
    ragged = source.spec.is_ragged
    if request.epoch is not None and request.seed is not None and isinstance(source, ImpureSource):
        repeats = lane.repeats[: request.num_samples].copy()
        if ragged:
            return source.read_pick_rows(samples, repeats, request.epoch, request.seed)
        source.read_picks(samples, repeats, request.epoch, request.seed, rows, lane.fields)
    elif ragged and isinstance(source, RaggedSource):
        return source.read_rows(samples)
    else:
        source.read_into(samples, rows, lane.fields)
    return None


def _answer(pipe: connection.Connection, answer: Answer) -> bool:
    """Send an answer; return whether somebody is there to get it."""
    try:
        pipe.send(answer)
    except OSError:
        return False
    return True


def _end_with_parent() -> None:
    """Wait until the parent is gone, and end the process then."""
    parent = parent_process()
    if parent is None or parent.pid is None:
        return
    watched = parent.sentinel
    if sys.platform == "linux":
        # A sentinel is a pipe, and other children of the parent may hold its other end: a process descriptor is better.
        try:
            watched = os.pidfd_open(parent.pid)
        except ProcessLookupError:
            os._exit(1)
        except OSError:
            pass  # an old kernel, or a sandbox
    connection.wait([watched])
    os._exit(1)
