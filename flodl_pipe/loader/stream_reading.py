"""One pass over an epoch of a stream: one reader, which takes the lanes' rows in order and fills slots step by step.

A stream says that it has ended only when it is asked for more. So the reader keeps each step back until it has tried
the next: the cursor of an epoch's last step then says that nothing follows.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import final

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.errors import LoaderError
from flodl_pipe.keyed.digest import row_hashes
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.loader.at_exit import join_readers, stop_at_exit
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.lookahead import Rows
from flodl_pipe.loader.making import Making
from flodl_pipe.loader.pace import Pace
from flodl_pipe.loader.plan import EnginePlan
from flodl_pipe.loader.slots import SlotPool
from flodl_pipe.loader.stream_sequence import StreamSequence
from flodl_pipe.loader.stream_state import StreamState
from flodl_pipe.loader.stream_steps import StreamSteps
from flodl_pipe.loader.torch_modes import outside_of_the_loop
from flodl_pipe.sources.stream_protocol import RaggedStream, Stream

__all__ = ["StreamReading"]


@final
class StreamReading:
    """Reads the steps of one pass ahead of the loop; a :class:`flodl_pipe.loader.feed.Pass`.

    Args:
        plan: How far ahead, and whether by a thread.
        stream: The data.
        begin: Makes the sequence, and says how many positions the epoch has, if that is known; called by whoever reads,
            since it may count lanes.
        pool: The slots.
        pool_lock: Guards the pool, which outlives a pass.
        making: How rows become a batch.
        steps: The steps of the pass.
        seed: Run seed, for the keys of rows.
        keep_digest: Whether to hash the stored rows.

    Attributes:
        ahead: The steps of the pass.
        wait_s: Time the loop waited for steps that were not ready.
    """

    def __init__(
        self,
        plan: EnginePlan,
        stream: Stream,
        begin: Callable[[], tuple[StreamSequence, int | None]],
        pool: SlotPool,
        pool_lock: contextlib.AbstractContextManager[object],
        *,
        making: Making,
        steps: StreamSteps,
        seed: int,
        keep_digest: bool,
    ) -> None:
        self.ahead = steps
        self.wait_s = 0.0
        self._plan, self._stream, self._begin = plan, stream, begin
        self._pool, self._pool_lock = pool, pool_lock
        self._making, self._seed = making, seed
        self._keep_digest = keep_digest
        self._ragged = stream if isinstance(stream, RaggedStream) and stream.delivered.is_ragged else None
        self._names = list(zip(stream.delivered.names, making.rows.names, strict=True))
        self._stored = stream.spec.empty(pool.layout.max_rows)
        self._sequence: StreamSequence | None = None
        self._held_back: Group | None = None
        self._ready: deque[Group] = deque()
        self._num_open = 0
        self._num_read = 0
        self._is_over = self._stopped = False
        # Reentrant: collecting garbage inside a method may finalise another pass's iterator in this very thread.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._process = os.getpid()
        self._pace = Pace(plan.num_readers)
        self._taken_s = 0.0
        self._thread: threading.Thread | None = None
        stop_at_exit(self)
        if plan.num_readers:
            self._thread = threading.Thread(target=self._read, name="flodl_pipe-stream", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                raise LoaderError(
                    f"the system refuses to start a reader ({error}); set loader.readers=0, or lift the limit on "
                    "processes (ulimit -u)"
                ) from error

    def require_own_process(self) -> None:
        """Refuse to go on in a forked child; see :class:`flodl_pipe.loader.feed.Pass`."""
        if os.getpid() != self._process:
            raise LoaderError(
                f"this iterator belongs to process {self._process}, and its reader did not follow the fork into "
                f"process {os.getpid()}; call iter(loader) in the child"
            )

    def take(self) -> Group:
        """Return the next step as a group of its own, or one of no steps at the end."""
        asked_s = time.perf_counter()
        with self._lock:
            if self._taken_s:
                self._pace.loop_took(asked_s - self._taken_s, 1)
                self._num_open -= 1
                self._changed.notify_all()
            while not self._ready and not self._is_over and not self._stopped:
                if self._thread is None:
                    with outside_of_the_loop():
                        self._read_step()
                else:
                    self._changed.wait()
            if self._stopped:
                raise LoaderError("the loader was closed while this iterator was in use; build a new loader to go on")
            group = self._ready.popleft() if self._ready else Group(self._num_read, 0, 0, [])
        self._taken_s = time.perf_counter()
        self.wait_s += self._taken_s - asked_s
        return group

    def hand_over(self) -> None:
        """Let the reader pass if it waits for the interpreter, between two steps of a loop that keeps it."""
        if self._pace.hands_over and 2 * len(self._ready) < self._plan.depth:
            time.sleep(0)

    def stop(self, *, wait: bool = True) -> None:
        """Stop the reader; with ``wait``, return only when its thread has ended."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._stopped = True
            self._changed.notify_all()
        thread = self._thread
        if not wait or thread is threading.current_thread():
            return  # the reader may be the one that collects the iterator: it ends by itself
        if thread is not None:
            join_readers([thread], self._stream.close)
        if self._sequence is not None:
            self._sequence.close()
            self._sequence = None
        unused = [*self._ready] if self._held_back is None else [*self._ready, self._held_back]
        self._ready.clear()
        self._held_back = None
        with self._pool_lock:
            for group in unused:
                for slot in group.slots():
                    self._pool.put_back(slot)

    def _read(self) -> None:
        while True:
            with self._lock:
                # The step that is held back is in flight too, and cannot be handed out before the next was tried.
                while self._num_open > self._plan.depth and not self._stopped:
                    self._changed.wait()
                if self._stopped or self._is_over:
                    return
            began_s = time.thread_time()
            self._read_step()
            self._pace.reader_took(time.thread_time() - began_s, 1)

    def _read_step(self) -> None:
        """Read one step, and publish the one before it."""
        state: StreamState | None = None
        group: Group | None = None
        try:
            if self._sequence is None:
                self._sequence, num_positions = self._begin()
                if num_positions is not None:
                    self.ahead.end_at(num_positions)
            group = self._fill(self._sequence)
            state = self._sequence.end() if group is None else self._sequence.state()
        except Exception as error:  # noqa: BLE001 - whatever it is goes to the loop, at its step
            group = Group(self._num_read, 1, 0, [])
            group.fail(error, 0)
        with self._lock:
            before, self._held_back = self._held_back, None
            if before is not None:
                if group is None:
                    before.lanes = state  # that nothing follows
                self._ready.append(before)
            if group is None or group.error is not None:
                if group is not None:
                    self._ready.append(group)
                self._is_over = True
            else:
                group.lanes = state
                self._held_back = group
            if group is not None:
                self._num_open += 1
                self._num_read += 1
            self._changed.notify_all()

    def _fill(self, sequence: StreamSequence) -> Group | None:
        """Read and deliver the next step; None when there is none."""
        number = self._num_read
        step, num_positions = self.ahead.next_step(number)
        if step is None:
            return None
        begin = step.next_position - num_positions
        stored, positions = self._stored, np.arange(step.start, step.stop, dtype=np.int64)
        picks = np.empty_like(positions)
        got = sequence.take(num_positions, step.start - begin, step.stop - begin, stored, picks)
        if got < num_positions:
            self.ahead.end_at(begin + got)
            step, num_positions = self.ahead.next_step(number)
            if step is None:
                return None
            positions, picks = positions[: step.num_rows], picks[: step.num_rows]
        what = Rows(positions, picks, np.zeros_like(picks))
        rows = {name: array[: step.num_rows] for name, array in stored.items()}
        if self._making.is_apart:
            group = Group(number, 1, 0, [])
        else:
            with self._pool_lock:
                group = Group(number, 1, 0, self._pool.take(1))
        group.rows = what
        if self._keep_digest:
            hashes = row_hashes(
                rows.values(),
                epoch=self.ahead.epoch,
                positions=positions,
                samples=what.samples,
                repeats=what.repeats,
            )
            group.hash_sums[0] = hashes[: step.num_valid].sum(axis=0, dtype=np.uint64)
        try:
            self._make(group, what, rows)
        except BaseException:
            with self._pool_lock:
                for slot in group.slots():
                    self._pool.put_back(slot)
            raise
        return group

    def _make(self, group: Group, what: Rows, stored: Mapping[str, Array]) -> None:
        """Make the batch of a group's one step."""
        making, num_rows = self._making, len(what.samples)
        keys = PickKeys(what.samples, what.repeats, self.ahead.epoch, self._seed)
        if making.is_apart:
            group.made[0] = making.make(self._delivered(stored, num_rows), keys)
            return
        (run,) = group.runs
        views = {name: view[0] for name, view in self._pool.layout.group_views(run, num_rows).items()}
        if making.one_pass is None:
            self._deliver(stored, views)
            return
        delivered = making.rows.empty(num_rows)
        self._deliver(stored, delivered)
        making.one_pass.apply(delivered, making.one_pass.draw(keys), views)

    def _delivered(self, stored: Mapping[str, Array], num_rows: int) -> Columns:
        """Return delivered rows in arrays of their own, by the names of a batch."""
        if self._ragged is not None:
            made = self._ragged.deliver_rows(stored)
            return {shown: made[own] for own, shown in self._names}
        delivered = self._making.rows.empty(num_rows)
        self._deliver(stored, delivered)
        return dict(delivered)

    def _deliver(self, stored: Mapping[str, Array], views: Mapping[str, Array]) -> None:
        self._stream.deliver(stored, {own: views[shown] for own, shown in self._names})
