"""One pass over an epoch: the sequence table, and the reader threads that fill it.

A pass owns its threads. They hold the pass, not the iterator, so that an iterator nobody wants is collected and stops
them; they are daemons, and an exit hook stops what is still alive before the interpreter goes down.

With no readers the loop reads for itself inside ``next()``: no thread exists, and breakpoints work.
"""

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import final

from flodl_pipe.devices.clock import NO_CLOCK, Clock
from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.advice import Advice
from flodl_pipe.loader.at_exit import is_own_thread, join_readers, stop_at_exit
from flodl_pipe.loader.fill import Filler
from flodl_pipe.loader.groups import Group, SequenceTable
from flodl_pipe.loader.lookahead import Lookahead
from flodl_pipe.loader.pace import Pace
from flodl_pipe.loader.plan import EnginePlan
from flodl_pipe.loader.room import Room
from flodl_pipe.loader.slots import SlotPool
from flodl_pipe.loader.torch_modes import outside_of_the_loop
from flodl_pipe.sources.door import Demand, demanded_by

__all__ = ["Reading"]

# Of a dataset whose samples may take long: what is read together takes no longer than a few turns of the interpreter,
# and what lies ahead of the loop no longer than an ending may take; but the first step comes alone.
_TOGETHER_S = 0.02
_AHEAD_S = 0.25
_FIRST_STEPS = 2


@final
class Reading:
    """Reads the steps of one pass ahead of the loop.

    Args:
        plan: How many readers, and in which portions.
        filler: Reads rows into slots.
        pool: The slots.
        pool_lock: Guards the pool, which outlives a pass.
        ahead: Picks of the pass.
        pace: Times per step, kept from pass to pass.
        room: How many batches may be ready that are made apart, and need no slots; None where they have slots.
        interrupt: Ends reads that the readers are waiting for; called when they have not stopped after a second.
        advice: Told how long the loop has waited; None: nobody needs it.
        on_all_claimed: Called by each reader that finds nothing left to claim, unless the pass was stopped.
        clock: Virtual time of the device that batches go to.

    Attributes:
        wait_s: Time the loop waited for groups that were not ready.
    """

    def __init__(
        self,
        plan: EnginePlan,
        filler: Filler,
        pool: SlotPool,
        pool_lock: contextlib.AbstractContextManager[object],
        ahead: Lookahead,
        pace: Pace,
        *,
        room: Room | None,
        interrupt: Callable[[], None],
        advice: Advice | None = None,
        on_all_claimed: Callable[[], None],
        clock: Clock = NO_CLOCK,
    ) -> None:
        self.ahead = ahead
        self.wait_s = 0.0
        self._plan = plan
        self._demand = Demand()
        self._filler = filler
        self._pool = pool
        self._pool_lock = pool_lock
        self._pace = pace
        self._room = room
        self._interrupt = interrupt
        self._advice, self._began_s = advice, time.perf_counter()
        self._on_all_claimed = on_all_claimed
        self._clock, self._begin_s = clock, clock.now()
        # When steps were handed out, whose places others take; only where time is virtual.
        self._given_s: list[float] | None = None if clock is NO_CLOCK else []
        self._process = os.getpid()
        self._taken_s = self._taken_processor_s = 0.0
        self._taken_steps = self._next_step = 0
        self._table = SequenceTable(
            ahead.num_steps,
            last_is_short=ahead.last_is_short,
            chunk_steps=ahead.chunk_steps,
            step_parts=plan.step_parts,
            group_steps=1 if plan.paced else self._most_together(plan.group_steps),
            max_steps=min(_FIRST_STEPS, self._most_ahead()) if plan.paced else self._most_ahead(),
            new_group=self._new_group,
            horizon=None if ahead.shares is None else ahead.shares.horizon,
        )
        if ahead.shares is not None:
            ahead.shares.plan.on_advance(weakref.WeakMethod(self._table.horizon_moved))
        self._threads: list[threading.Thread] = []
        stop_at_exit(self)
        for number in range(plan.num_readers):
            thread = threading.Thread(target=self._read, name=f"flodl_pipe-reader-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self.stop()
                raise LoaderError(
                    f"the system refuses to start reader {number + 1} of {plan.num_readers} ({error}); lower "
                    "loader.readers, or lift the limit on processes (ulimit -u)"
                ) from error
            self._threads.append(thread)

    def require_own_process(self) -> None:
        """Refuse to go on in a forked child, which has no readers.

        Raises:
            LoaderError: if this is not the process that made the pass.
        """
        if os.getpid() != self._process:
            raise LoaderError(
                f"this iterator belongs to process {self._process}, and its readers did not follow the fork into "
                f"process {os.getpid()}; call iter(loader) in the child"
            )

    def take(self) -> Group:
        """Return the next group, waiting for it if need be. The one before must have been handed out whole.

        Raises:
            LoaderError: after :meth:`stop`.
        """
        asked_s = time.perf_counter()
        if self._taken_steps:
            if self._threads:
                self._pace.loop_computed(time.thread_time() - self._taken_processor_s, self._taken_steps)
            self._pace.loop_took(asked_s - self._taken_s, self._taken_steps)
            self._grow()
            if self._given_s is not None:
                self._given_s += [self._clock.now()] * self._taken_steps
            self.ahead.prepare(self._next_step)  # before a reader wakes, which would compete for the interpreter
            self._table.give_credit(self._taken_steps)
        if not self._table.is_ready():
            self._read_along()
        group = self._table.take()
        if group is None:
            raise LoaderError("the loader was closed while this iterator was in use; build a new loader to go on")
        self._clock.reach(group.time_s)
        self._taken_steps, self._next_step = group.num_steps, group.first_step + group.num_steps
        self._taken_s = time.perf_counter()
        if self._threads:  # a call of the system, for which others may be let in
            self._taken_processor_s = time.thread_time()
        self.wait_s += self._taken_s - asked_s
        if self._advice is not None:
            self._advice.tell(self.wait_s, self._taken_s - self._began_s)
        return group

    def hand_over(self) -> None:
        """Let a reader that waits for the interpreter pass, between two steps of a loop that keeps it to itself."""
        if self._pace.hands_over and self._table.runs_low:
            time.sleep(0)

    def stop(self, *, wait: bool = True) -> None:
        """Stop the readers; with ``wait``, return only when their threads have ended."""
        if os.getpid() != self._process:
            return
        self._table.stop()
        self._demand.end()
        if not wait or is_own_thread():
            return  # a reader may be the one that collects the iterator: it ends by itself
        join_readers(self._threads, self._interrupt)
        with self._pool_lock:
            for group in self._table.drain():
                for slot in group.slots():
                    self._pool.put_back(slot)

    def _grow(self) -> None:
        """Say how much may be read together from now on, and how much may lie ahead."""
        plan, table, pace = self._plan, self._table, self._pace
        together = self._most_together(plan.handover_group_steps if pace.hands_over else plan.group_steps)
        ahead = self._most_ahead()
        if plan.paced:
            together = min(together, pace.steps_within(_TOGETHER_S))
            if not plan.fixed_depth:
                ahead = min(ahead, max(plan.num_readers + 1, plan.num_readers * pace.steps_within(_AHEAD_S)))
            ahead = min(ahead, 2 * table.max_steps)  # not all at once: what was measured so far may have been quick
            # At least one group in the making per reader, and one being handed out.
            together = max(1, min(together, ahead // (plan.num_readers + 1)))
        table.group_steps, table.max_steps = together, ahead

    def _most_together(self, num_steps: int) -> int:
        return num_steps if self._room is None else min(num_steps, self._room.max_steps)

    def _most_ahead(self) -> int:
        return self._plan.depth if self._room is None else self._room.max_steps

    def _read_along(self) -> None:
        """Fill groups in the loop's own thread until the next one is ready: without readers, or beside slower ones."""
        while self._pace.helps and not self._table.is_ready():
            claimed = self._table.claim(wait=False)
            if claimed is None:
                return
            with outside_of_the_loop():
                self._fill(*claimed, by_loop=True)

    def _new_group(self, first_step: int, num_steps: int, num_parts: int) -> Group:
        if self._room is not None:
            group = Group(first_step, num_steps, num_parts, [])
        else:
            with self._pool_lock:
                group = Group(first_step, num_steps, num_parts, self._pool.take(num_steps))
        if self._given_s is not None:
            made_room = first_step + num_steps - 1 - self._table.max_steps
            group.begin_s = self._given_s[made_room] if made_room >= 0 else self._begin_s
        return group

    def _read(self) -> None:
        self._table.reader_starts()
        while True:
            claimed = self._table.claim()
            if claimed is None:
                self._table.reader_ends()
                if not self._table.is_stopped:
                    self._on_all_claimed()
                return
            self._fill(*claimed, by_loop=False)
            # Drop the group before waiting for the next: its error may hold frames, and with them the user's objects.
            del claimed

    def _fill(self, group: Group, part: int, *, by_loop: bool) -> None:
        began_s, began_wall_s = 0.0 if by_loop else time.thread_time(), time.perf_counter()
        self._clock.reach(group.begin_s)
        try:
            with demanded_by(self._demand):
                self._filler.fill(group, part, self.ahead)
            if self._room is not None:
                for _, tensors in group.made.values():
                    self._room.measure(tensors)
        except BaseException as error:
            # A reader must not die silently: the loop would wait for ever.
            group.fail(error, 0)
            if by_loop:
                raise  # Ctrl-C while the loop reads for itself
        finally:
            if not by_loop:
                wall_s = time.perf_counter() - began_wall_s
                self._pace.reader_took(time.thread_time() - began_s, group.num_steps, wall_s)
            self._table.finish(group, self._clock.now())
