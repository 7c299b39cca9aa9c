"""Reader processes at work: who has which tasks, which lanes are free, and what happens when one dies.

Each process has three lanes, so it begins its next task without waiting for us: one is read into, one waits, one is
being copied from. Whoever asks sends tasks by itself; one thread takes the answers, and sees at once when a process
dies. A pool that lost a process is done with: what that process had is an error, and so is everything asked later.

::

    caller --request--> process --answer--> thread --task--> caller copies the lane, frees it, sends what waits
"""

import collections
import contextlib
import os
import selectors
import threading
from collections.abc import Callable, Iterable
from typing import final

from flodl_pipe.loader.process_child import Answer, Request, Setup
from flodl_pipe.loader.process_errors import died_early, died_reading, rebuild_error
from flodl_pipe.loader.process_memory import LaneLayout, SharedMemory
from flodl_pipe.loader.process_source import PickledSource
from flodl_pipe.loader.process_start import ReaderStart, start_process
from flodl_pipe.loader.process_tasks import Task, Worker
from flodl_pipe.sources.protocol import Source

__all__ = ["LANES_EACH", "ProcessPool"]

LANES_EACH = 3
"""Lanes of a process."""

_GRACE_S = 0.5
_SURELY_S = 5.0


@final
class ProcessPool:
    """Processes that read one source. Thread-safe.

    Args:
        source: What they read: pickled, or itself where they are forks.
        layout: Layout of a lane.
        num_processes: How many.
        start: How they start.

    Raises:
        LoaderError: if one cannot be started.
        StagingError: if there is no memory for lanes.
    """

    def __init__(
        self, source: PickledSource | Source, layout: LaneLayout, *, num_processes: int, start: ReaderStart
    ) -> None:
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._waiting: collections.deque[Task] = collections.deque()
        self._failure: Callable[[], BaseException] | None = None
        self._is_stopping = False
        self._workers: list[Worker] = []
        memory = SharedMemory(layout.lane_bytes * LANES_EACH * num_processes)
        mapped = memory.map()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._take_answers, name="flodl_pipe-processes", daemon=True)
        try:
            for number in range(num_processes):
                first = number * LANES_EACH
                setup = Setup(source, memory, layout, first, LANES_EACH)
                process, pipe = start_process(start, setup, number)
                lanes = [layout.lane(mapped, first + lane) for lane in range(LANES_EACH)]
                worker = Worker(process, pipe, lanes)
                self._workers.append(worker)
                self._selector.register(pipe, selectors.EVENT_READ, worker)
                self._selector.register(process.sentinel, selectors.EVENT_READ, worker)
            self._thread.start()
        except BaseException:
            self._is_stopping = True
            for worker in self._workers:
                worker.process.kill()
            self._take_answers()
            raise
        finally:
            memory.close()  # maps stay

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that started the pool, and no forked child of it."""
        return os.getpid() == self._owner

    @property
    def pids(self) -> tuple[int, ...]:
        """Process numbers of those alive."""
        return tuple(worker.pid for worker in self._workers if worker.is_alive and worker.pid is not None)

    @property
    def num_idle(self) -> int:
        """Processes that have nothing to do."""
        return sum(not worker.tasks for worker in self._workers)

    @property
    def is_usable(self) -> bool:
        """Whether it reads still."""
        return self._failure is None

    def submit(self, tasks: Iterable[Task]) -> None:
        """Have tasks read; each comes back by its ``done``, and must be released then.

        Raises:
            Exception: why the pool reads no more.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure()
            self._waiting.extend(tasks)
            self._send()

    def release(self, tasks: Iterable[Task]) -> None:
        """Free the lanes of tasks: of the finished at once, of others when they are. Those that wait are dropped."""
        with self._lock:
            for task in tasks:
                task.is_dropped = True
                if task.is_finished:
                    self._free(task)
            self._waiting = collections.deque(task for task in self._waiting if not task.is_dropped)
            self._send()

    def stop(self, why: Callable[[], BaseException], *, at_once: bool) -> None:
        """End every process, within two seconds; what they had to read fails.

        Args:
            why: Makes the error of what is asked for from now on.
            at_once: Whether to break off what they are reading.
        """
        if not self.is_own_process:
            return
        self._fail(why)
        with self._lock:
            self._is_stopping = True
            for worker in self._workers:
                if not worker.is_alive:
                    continue
                if at_once:
                    worker.process.terminate()
                else:
                    with contextlib.suppress(OSError):
                        worker.pipe.send(None)
        if threading.current_thread() is self._thread:  # garbage is collected anywhere
            self._end_all(kill=True)
            return
        self._thread.join(_GRACE_S)
        for kill in (False, True):
            if self._thread.is_alive():
                self._end_all(kill=kill)
                self._thread.join(_SURELY_S if kill else _GRACE_S)

    def _end_all(self, *, kill: bool) -> None:
        with self._lock:
            for worker in self._workers:
                if worker.is_alive:
                    (worker.process.kill if kill else worker.process.terminate)()

    def _send(self) -> None:
        """Give tasks that wait to processes with a free lane, the least busy first. Under the lock."""
        while self._waiting:
            ready = [worker for worker in self._workers if worker.free and worker.is_alive]
            if not ready:
                return
            worker = min(ready, key=lambda one: len(one.tasks))
            task, number = self._waiting.popleft(), worker.free.pop()
            task.worker, task.lane = worker, worker.lanes[number]
            task.lane.samples[: task.num_samples] = task.samples
            if task.repeats is not None:
                task.lane.repeats[: task.num_samples] = task.repeats
            worker.tasks.append(task)
            with contextlib.suppress(OSError):  # it died: its tasks fail when that is seen
                worker.pipe.send(Request(number, task.num_samples, task.epoch, task.seed))

    def _free(self, task: Task) -> None:
        worker, lane = task.worker, task.lane
        if worker is not None and lane is not None:
            worker.free.append(worker.lanes.index(lane))
        task.lane = None

    def _take_answers(self) -> None:
        """Take answers until every process has ended: the pool's thread."""
        try:
            while any(worker.is_alive for worker in self._workers):
                for key, _ in self._selector.select():
                    worker: Worker = key.data
                    if not worker.is_alive:
                        continue  # its pipe and its end came together
                    if key.fileobj is worker.pipe:
                        self._hear(worker)
                    else:
                        while self._hear(worker):  # what it said last
                            pass
                        self._bury(worker)
        except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
            text = f"the thread of the reader processes failed: {error!r}"
            self._fail(lambda: RuntimeError(text))
        finally:
            self._selector.close()

    def _hear(self, worker: Worker) -> bool:
        """Take an answer that a process has sent; return whether there was one."""
        try:
            if not worker.pipe.poll():
                return False
            answer: Answer = worker.pipe.recv()
        except (EOFError, OSError):
            with contextlib.suppress(KeyError, ValueError):  # it is gone from there already
                self._selector.unregister(worker.pipe)
            return False
        if worker.is_ready:
            with self._lock:
                self._finish(worker.tasks.popleft(), answer)
            return True
        worker.is_ready = True
        sent = answer.error
        if sent is not None:
            self._fail(lambda: rebuild_error(sent, f"reader process {worker.pid}, as it started"))
        return True

    def _finish(self, task: Task, answer: Answer) -> None:
        task.took_s, task.columns = answer.took_s, answer.columns
        if answer.error is not None:
            pid = task.worker.pid if task.worker is not None else None
            task.error = rebuild_error(answer.error, f"reader process {pid}")
        self._hand_back(task)

    def _hand_back(self, task: Task) -> None:
        """Let whoever waits for a task have it, finished. Under the lock."""
        if task.is_finished:
            return
        task.is_finished = True
        if task.is_dropped:
            self._free(task)
            self._send()
        else:
            task.done.put(task)

    def _bury(self, worker: Worker) -> None:
        """Note that a process has ended."""
        worker.process.join(_SURELY_S)
        status, pid = worker.process.exitcode, worker.pid
        told = died_reading if worker.is_ready else died_early
        with self._lock:
            self._selector.unregister(worker.process.sentinel)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(worker.pipe)
            if self._failure is None:
                self._failure = lambda: told(pid, status)
            worker.is_alive = False  # who sees that must see that the pool is of no use any more
            worker.pipe.close()
            worker.process.close()
            for task in (*worker.tasks, *self._waiting):
                task.error = self._failure()
                self._hand_back(task)
            worker.tasks.clear()
            self._waiting.clear()

    def _fail(self, why: Callable[[], BaseException]) -> None:
        """Read no more: everything that is not finished fails."""
        with self._lock:
            if self._failure is None:
                self._failure = why
            for task in (*self._waiting, *(task for worker in self._workers for task in worker.tasks)):
                if not task.is_finished:
                    task.error = self._failure()
                    self._hand_back(task)
            self._waiting.clear()
