"""Reader processes: a source whose samples take Python's time is read by several processes at once.

The source goes to each process once, when it starts. What is asked for is cut into tasks, one for every process that is
idle: so one large read keeps all of them busy. When all are busy anyhow, it goes to one of them as it is, since large
tasks leave a process more time until its next one must be there. Two readers for each process keep one task waiting.
Samples come back through shared memory and are copied to the caller's rows: 3 KB take less than 1 us.

Which process reads a sample makes no difference to it: a pure source gives the same bytes anywhere, and the randomness
of an impure one is seeded by the pick.

Shape letters: ``K`` samples asked for, ``B`` rows of a buffer.
"""

import queue
import weakref
from collections.abc import Callable, Mapping
from typing import Final, final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.process_memory import LaneLayout
from flodl_pipe.loader.process_pool import LANES_EACH, ProcessPool
from flodl_pipe.loader.process_source import PickledSource, pickle_source
from flodl_pipe.loader.process_start import ReaderStart, require_startable
from flodl_pipe.loader.process_tasks import Task
from flodl_pipe.sources.protocol import Source

__all__ = ["ProcessReaders", "ReaderStart"]

_LANE_BYTES: Final = 16 << 20
# A round trip takes 0.1 to 0.2 ms: tasks shorter than the least are not worth a process. Longer ones than the most
# would leave the other processes idle at the end.
_LEAST_S: Final = 2e-3
_MOST_S: Final = 20e-3
_NEW_WEIGHT: Final = 0.2


@final
class ProcessReaders:
    """Reads samples of a source in processes. Thread-safe; they start here, and end with it.

    Args:
        source: The samples. It is pickled, unless ``start`` is ``fork``.
        num_processes: How many processes, at least 1.
        start: How they start; see :mod:`~.process_start`.
        max_rows: Most rows that are mostly asked for at once. More are read in turns.

    Raises:
        LoaderError: if the source does not pickle, or processes cannot be started.
        StagingError: if there is no memory to share with them.
    """

    def __init__(self, source: Source, *, num_processes: int, start: ReaderStart, max_rows: int) -> None:
        if num_processes < 1 or max_rows < 1:
            raise ValueError(f"there must be a process and a row at least, got {num_processes=} and {max_rows=}")
        require_startable(start)
        self.num_processes = num_processes
        self._start: ReaderStart = start
        self._spec = source.spec
        row_bytes = 1 if source.spec.is_ragged else source.spec.row_bytes
        most = max(1, _LANE_BYTES // row_bytes)
        self._layout = LaneLayout(source.spec, min(most, max_rows))
        self._source: Source | PickledSource = source if start == "fork" else pickle_source(source)
        self._row_s = 0.0
        self._kept: list[ProcessPool] = []
        self._end = weakref.finalize(self, _end_pools, self._kept)
        self._is_closed = False
        self.begin()

    @property
    def num_bytes(self) -> int:
        """Memory shared with the processes: lanes, and the pickled source."""
        pickled = self._source.num_bytes if isinstance(self._source, PickledSource) else 0
        return self._layout.lane_bytes * LANES_EACH * self.num_processes + pickled

    @property
    def pids(self) -> tuple[int, ...]:
        """Numbers of the processes that are alive."""
        return self._kept[0].pids if self._kept else ()

    def begin(self) -> None:
        """Start processes if there are none: at first, after one died, and after :meth:`interrupt`.

        Raises:
            LoaderError: if they cannot be started, or after :meth:`close`.
        """
        if self._is_closed:
            raise _closed()
        if self._kept and not self._kept[0].is_own_process:
            self._kept.clear()  # a fork: they are the parent's
        if self._kept and not self._kept[0].is_usable:
            self._kept.pop().stop(_interrupted, at_once=True)
        if not self._kept:
            self._kept.append(
                ProcessPool(self._source, self._layout, num_processes=self.num_processes, start=self._start)
            )

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Read samples into rows of the caller's buffers; see :meth:`flodl_pipe.sources.protocol.Source.read_into`.

        Raises:
            LoaderError: if a process died, or reading was interrupted.
            Exception: what the source raises, with the traceback of the process in a note.
        """
        self._read(indices, None, None, None, lambda task: self._copy(task, rows, out))

    def read_picks(
        self,
        indices: IndexArray,
        repeats: IndexArray,
        epoch: int,
        seed: int,
        rows: IndexArray,
        out: Mapping[str, Array],
    ) -> None:
        """Read picks of an impure source; see :meth:`flodl_pipe.sources.impure.ImpureSource.read_picks`.

        Raises:
            LoaderError: as :meth:`read_into`.
            Exception: as :meth:`read_into`.
        """
        self._read(indices, repeats, epoch, seed, lambda task: self._copy(task, rows, out))

    def read_rows(self, indices: IndexArray) -> Columns:
        """Return samples of a ragged source; see :meth:`flodl_pipe.sources.protocol.RaggedSource.read_rows`.

        Raises:
            LoaderError: as :meth:`read_into`.
            Exception: as :meth:`read_into`.
        """
        return self._rows(indices, None, None, None)

    def read_pick_rows(self, indices: IndexArray, repeats: IndexArray, epoch: int, seed: int) -> Columns:
        """Return picks of a ragged impure source; see :class:`flodl_pipe.sources.impure.ImpureSource`.

        Raises:
            LoaderError: as :meth:`read_into`.
            Exception: as :meth:`read_into`.
        """
        return self._rows(indices, repeats, epoch, seed)

    def interrupt(self) -> None:
        """End the processes at once: whoever reads gets an error, and :meth:`begin` starts others."""
        for pool in self._kept:
            pool.stop(_interrupted, at_once=True)

    def close(self) -> None:
        """End the processes, within two seconds, and give back the memory. In a forked child, do nothing."""
        self._is_closed = True
        self._end()
        if isinstance(self._source, PickledSource):
            self._source.close()

    def _read(
        self,
        indices: IndexArray,
        repeats: IndexArray | None,
        epoch: int | None,
        seed: int | None,
        take: Callable[[Task], None],
    ) -> None:
        """Have samples read, and take them task by task as they come."""
        pool = self._pool()
        done: queue.SimpleQueue[Task] = queue.SimpleQueue()
        size = self._task_rows(len(indices), pool.num_idle)
        tasks = [
            Task(
                *(first, indices[first : first + size], None if repeats is None else repeats[first : first + size]),
                *(epoch, seed, done),
            )
            for first in range(0, len(indices), size)
        ]
        open_tasks = set(tasks)
        try:
            pool.submit(tasks)
            while open_tasks:
                task = done.get()
                if task.error is None:
                    take(task)
                    self._measure(task)
                pool.release([task])
                open_tasks.discard(task)
        finally:
            if open_tasks:
                pool.release(open_tasks)
        failed = next((task for task in tasks if task.error is not None), None)
        if failed is not None and failed.error is not None:
            error, failed.error = failed.error, None  # an error with a traceback to itself would keep the rows alive
            raise error

    def _rows(self, indices: IndexArray, repeats: IndexArray | None, epoch: int | None, seed: int | None) -> Columns:
        parts: dict[int, Columns] = {}

        def take(task: Task) -> None:
            assert task.columns is not None
            parts[task.first] = task.columns

        if not len(indices):
            raise ValueError("rows of no samples were asked for")
        self._read(indices, repeats, epoch, seed, take)
        ordered = [parts[first] for first in sorted(parts)]
        return {name: _joined([part[name] for part in ordered]) for name in self._spec.names}

    def _copy(self, task: Task, rows: IndexArray, out: Mapping[str, Array]) -> None:
        assert task.lane is not None
        places = rows[task.first : task.first + task.num_samples]
        for name, values in task.lane.fields.items():
            out[name][places] = values[: task.num_samples]

    def _pool(self) -> ProcessPool:
        if self._is_closed:
            raise _closed()
        if not self._kept or not self._kept[0].is_own_process:
            raise LoaderError(
                "these reader processes belong to the process that this one was forked from; build a loader here"
            )
        return self._kept[0]

    def _task_rows(self, count: int, num_idle: int) -> int:
        """Return how many samples a task gets."""
        parts = max(1, num_idle)
        if self._row_s:
            total_s = count * self._row_s
            parts = max(1, min(parts, int(total_s / _LEAST_S)), int(total_s / _MOST_S))
        return max(1, min(self._layout.num_rows, -(-count // parts)))

    def _measure(self, task: Task) -> None:
        row_s = task.took_s / task.num_samples
        self._row_s += (row_s - self._row_s) * (_NEW_WEIGHT if self._row_s else 1)


def _joined(parts: list[Array | Ragged]) -> Array | Ragged:
    """Return the rows of several columns in one."""
    if len(parts) == 1:
        return parts[0]
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if not ragged:
        return np.concatenate([part for part in parts if not isinstance(part, Ragged)])
    offsets = np.zeros(sum(map(len, ragged)) + 1, dtype=np.int64)
    np.cumsum(np.concatenate([part.lengths for part in ragged]), out=offsets[1:])
    return Ragged(np.concatenate([part.values for part in ragged]), offsets)


def _end_pools(pools: list[ProcessPool]) -> None:
    while pools:
        pools.pop().stop(_closed, at_once=False)


def _closed() -> LoaderError:
    return LoaderError("the reader processes were closed; build a new loader to go on")


def _interrupted() -> LoaderError:
    return LoaderError("reading was interrupted, and the reader processes have ended; a new pass starts others")
