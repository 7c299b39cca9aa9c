"""A task of a reader process, and the process, as the pool sees them."""

import collections
import multiprocessing
import queue
from collections.abc import Sequence
from multiprocessing import connection
from typing import final

from flodl_pipe.arrays import IndexArray
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.loader.process_memory import Lane

__all__ = ["Task", "Worker"]


@final
class Task:
    """Some samples that one process is to read.

    Args:
        first: Place of the first of them in what was asked for.
        samples: int64, shape ``(K,)``.
        repeats: int64, shape ``(K,)``; None where picks play no part.
        epoch: Epoch of the picks.
        seed: Seed of the picks.
        done: Takes the task when it is finished.

    Attributes:
        error: What went wrong; None when nothing did.
        columns: Rows of a ragged source.
        took_s: How long it took.
        lane: Where the rows are, until the task is released.
    """

    __slots__ = (
        *("columns", "done", "epoch", "error", "first", "is_dropped", "is_finished", "lane", "num_samples", "repeats"),
        *("samples", "seed", "took_s", "worker"),
    )

    def __init__(
        self,
        first: int,
        samples: IndexArray,
        repeats: IndexArray | None,
        epoch: int | None,
        seed: int | None,
        done: "queue.SimpleQueue[Task]",
    ) -> None:
        self.first, self.samples, self.repeats, self.epoch, self.seed = first, samples, repeats, epoch, seed
        self.num_samples = len(samples)
        self.done = done
        self.error: BaseException | None = None
        self.columns: Columns | None = None
        self.took_s = 0.0
        self.lane: Lane | None = None
        self.worker: Worker | None = None
        self.is_finished = self.is_dropped = False


@final
class Worker:
    """A process, as we see it."""

    def __init__(
        self, process: multiprocessing.process.BaseProcess, pipe: connection.Connection, lanes: Sequence[Lane]
    ) -> None:
        self.process, self.pipe = process, pipe
        self.pid = process.pid
        self.lanes = list(lanes)
        self.free = list(range(len(lanes)))
        self.tasks: collections.deque[Task] = collections.deque()
        self.is_ready = False
        self.is_alive = True
