"""Groups: consecutive steps that are gathered together, and the sequence table that hands them from readers to the
loop.

The table is ordered by step. A reader claims the next part of the next group; the group's slots are taken when its
first part is claimed. A group is ready when its last part is done, and the loop takes groups strictly in order. Credits
bound what is in flight: a group that was claimed and not yet handed out counts, so that at most ``max_groups`` are.

::

    claim() --> reader fills slots --> finish() --> ready, in order --> take() --> the loop
       ^                                                                  |
       +------------------------- credit ---------------------------------+
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import final

import numpy as np
import torch

from flodl_pipe.arrays import BoolArray, WordArray
from flodl_pipe.loader.lazy_sums import LazySums
from flodl_pipe.loader.lookahead import Rows
from flodl_pipe.loader.slots import Run
from flodl_pipe.loader.stream_state import StreamState
from flodl_pipe.staging.pool_slabs import GatherPlan

__all__ = ["Group", "Made", "Part", "SequenceTable"]

Made = tuple[tuple[str, ...], tuple[torch.Tensor, ...]]
"""Names and tensors of a batch."""


@final
class Group:
    """Consecutive steps in the making, all with the same number of rows.

    Attributes:
        first_step: First step of the group, counted from where the pass began.
        num_steps: How many.
        runs: Slots of the steps, in step order; none where batches are made apart.
        rows: What stands in the rows of the steps, step after step; None until the first reader looks it up.
        made: Batches of the steps that were made apart: names and tensors.
        valid: For each step with skipped samples, which of its rows hold samples of their own; bool, ``(rows,)``.
        hash_sums: Sum of the row hashes of each step's valid rows, uint64 of shape ``(num_steps, 2)``; zeros when no
            digest is kept.
        plans: For each step that was filled without the rows that a device holds, how they come together there. Its
            slot has the other rows, in their order.
        error: What went wrong, at step ``failed_step``; the steps before it are good.
        failed_step: Place in the group of the step that failed.
        lazy_sums: Sum of the row hashes of the group's one step that a device computes; None: ``hash_sums`` has it.
        device_valid: Which rows of the group's one step count, where a device keeps it; None: all, or on the host.
        begin_s: Virtual time from which on it may be read; see :mod:`flodl_pipe.devices.clock`.
        time_s: Virtual time at which it was read.
        lanes: Where a stream stands after the group's one step; None for a source with an index.
    """

    __slots__ = (
        "begin_s",
        "device_valid",
        "error",
        "failed_step",
        "first_step",
        "hash_sums",
        "lanes",
        "lazy_sums",
        "made",
        "num_steps",
        "parts_left",
        "plans",
        "rows",
        "runs",
        "time_s",
        "valid",
    )

    def __init__(self, first_step: int, num_steps: int, num_parts: int, runs: list[Run]) -> None:
        self.first_step = first_step
        self.num_steps = num_steps
        self.runs = runs
        self.parts_left = num_parts
        self.rows: Rows | None = None
        self.made: dict[int, Made] = {}
        self.valid: dict[int, BoolArray] = {}
        self.plans: dict[int, GatherPlan] = {}
        self.hash_sums: WordArray = np.zeros((num_steps, 2), dtype=np.uint64)
        self.error: BaseException | None = None
        self.failed_step = 0
        self.lanes: StreamState | None = None
        self.lazy_sums: LazySums | None = None
        self.device_valid: torch.Tensor | None = None
        self.begin_s = self.time_s = 0.0

    def slots(self) -> list[int]:
        """Return the slot of each step."""
        return [slot for run in self.runs for slot in range(run.first, run.first + run.num_slots)]

    def fail(self, error: BaseException, failed_step: int) -> None:
        """Record the error of the earliest step that failed."""
        if self.error is None or failed_step < self.failed_step:
            self.error, self.failed_step = error, failed_step


Part = tuple[Group, int]
"""A group, and which of its parts."""


@final
class SequenceTable:
    """Groups in order, with credits. Thread-safe.

    Args:
        num_steps: Steps of the pass.
        last_is_short: Whether the last step has fewer rows than the others; it is then a group of its own.
        chunk_steps: Groups do not reach across a multiple of this.
        step_parts: Parts of a group.
        group_steps: Steps of the groups to come; may be changed at any time.
        max_steps: Steps in flight, at most; may be changed at any time.
        new_group: Makes a group; called under the table's lock.
        horizon: Returns the first step that must not be planned yet, where there is such a limit; see
            :mod:`flodl_pipe.sampling.share_plan`. It only grows, and :meth:`horizon_moved` is called when it has.
    """

    def __init__(
        self,
        num_steps: int,
        *,
        last_is_short: bool,
        chunk_steps: int,
        step_parts: int,
        group_steps: int,
        max_steps: int,
        new_group: Callable[[int, int, int], Group],
        horizon: Callable[[], int] | None = None,
    ) -> None:
        self._num_steps = num_steps
        self._num_full_steps = num_steps - last_is_short
        self._chunk_steps = chunk_steps
        self._step_parts = step_parts
        self.group_steps = group_steps
        self.max_steps = max_steps
        self._new_group = new_group
        self._horizon = horizon or (lambda: num_steps)
        self._next_step = 0
        self._num_open_steps = 0
        self._in_flight: deque[Group] = deque()
        self._unclaimed: deque[Part] = deque()
        self._stopped = False
        self._num_working = 0
        self._num_waiting = 0
        self._num_ready_steps = 0
        # Reentrant: collecting garbage inside a method may finalise another pass's iterator in this very thread.
        self._lock = threading.RLock()
        self._ready = threading.Condition(self._lock)
        self._credit = threading.Condition(self._lock)

    @property
    def runs_low(self) -> bool:
        """Whether a reader has something to read and less than half is ready; looked at without the lock, as a hint."""
        return self._num_working > 0 and 2 * self._num_ready_steps < self.max_steps

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` was called; a hint, as it may be at any moment."""
        return self._stopped

    def reader_starts(self) -> None:
        """Note that one more thread claims with ``wait``."""
        with self._lock:
            self._num_working += 1

    def reader_ends(self) -> None:
        """Note that such a thread has nothing more to claim."""
        with self._lock:
            self._num_working -= 1

    def claim(self, *, wait: bool = True) -> Part | None:
        """Return the next part to read, or None when there is nothing more to do (or, without ``wait``, no credit)."""
        with self._lock:
            while not self._stopped:
                if self._unclaimed:
                    return self._unclaimed.popleft()
                if self._next_step >= self._num_steps:
                    return None
                num_steps = self._next_size()
                has_credit = not self._num_open_steps or self._num_open_steps + num_steps <= self.max_steps
                if has_credit and self._next_step + num_steps <= self._horizon():
                    self._open_group(num_steps)
                elif wait:
                    self._num_working -= 1
                    self._num_waiting += 1
                    self._credit.wait()
                else:
                    return None
            return None

    def finish(self, group: Group, time_s: float = 0.0) -> None:
        """Note that one part of a group was read, or failed, at a virtual time."""
        with self._lock:
            group.time_s = max(group.time_s, time_s)
            group.parts_left -= 1
            if group.parts_left:
                return
            self._num_ready_steps += group.num_steps
            if self._in_flight and self._in_flight[0] is group:
                self._ready.notify_all()

    def is_ready(self) -> bool:
        """Return whether the next group can be taken without waiting."""
        with self._lock:
            return bool(self._in_flight) and not self._in_flight[0].parts_left

    def take(self) -> Group | None:
        """Wait for the next group in order and take it; None when the table was stopped meanwhile.

        Call it only while groups are left.
        """
        with self._lock:
            while not self._stopped and not (self._in_flight and not self._in_flight[0].parts_left):
                self._ready.wait()
            if self._stopped:
                return None
            group = self._in_flight.popleft()
            self._num_ready_steps -= group.num_steps
            return group

    def give_credit(self, num_steps: int) -> None:
        """Note that a group of ``num_steps`` that was taken has been handed out whole."""
        with self._lock:
            self._num_open_steps -= num_steps
            # Readers that wait are woken when half is free, for several groups at a time: a change of thread costs
            # some 100 us on an idle processor, and more beside a loop that keeps the interpreter.
            if 2 * self._num_open_steps <= self.max_steps:
                self._wake_readers()

    def horizon_moved(self, _: int) -> None:
        """Note that more steps may be planned."""
        with self._lock:
            # As with credits: for several steps at a time.
            if 2 * (self._horizon() - self._next_step) >= self.max_steps:
                self._wake_readers()

    def stop(self) -> None:
        """End claims and waits, now and later."""
        with self._lock:
            self._stopped = True
            self._ready.notify_all()
            self._wake_readers()

    def drain(self) -> list[Group]:
        """Return the groups that were not taken, and forget them; for a stopped table whose readers have ended."""
        with self._lock:
            groups = list(self._in_flight)
            self._in_flight.clear()
            return groups

    def _wake_readers(self) -> None:
        # They count as working from now on, not from when they run: until then they wait for the interpreter, and the
        # loop should know.
        self._num_working += self._num_waiting
        self._num_waiting = 0
        self._credit.notify_all()

    def _next_size(self) -> int:
        to_chunk_end = self._chunk_steps - self._next_step % self._chunk_steps
        return min(self.group_steps, to_chunk_end, max(1, self._num_full_steps - self._next_step))

    def _open_group(self, num_steps: int) -> None:
        try:
            group, num_parts = self._new_group(self._next_step, num_steps, self._step_parts), self._step_parts
        except Exception as error:  # noqa: BLE001 - whatever it is (no memory for slots, say) goes to the loop
            # Handed on like a fault of reading, it ends the pass at its step.
            group, num_parts = Group(self._next_step, num_steps, 0, []), 0
            group.fail(error, 0)
            self._num_steps = self._next_step + num_steps
            self._ready.notify_all()
        self._next_step += num_steps
        self._num_open_steps += num_steps
        self._in_flight.append(group)
        self._unclaimed.extend((group, part) for part in range(num_parts))
        if num_parts > 1:
            self._wake_readers()
