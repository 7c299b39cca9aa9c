"""One pass over an epoch: the sequence table, and the reader threads that fill it.

A pass owns its threads. They hold the pass, not the iterator, so that an iterator nobody wants is collected and stops
them; they are daemons, and an exit hook stops what is still alive before the interpreter goes down.

With no readers the loop reads for itself inside ``next()``: no thread exists, and breakpoints work.
"""

import atexit
import contextlib
import os
import threading
import time
import weakref
from typing import final

from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.fill import Filler
from flodl_pipe.loader.groups import Group, SequenceTable
from flodl_pipe.loader.lookahead import Lookahead
from flodl_pipe.loader.plan import EnginePlan
from flodl_pipe.loader.slots import SlotPool

__all__ = ["Reading"]

_alive: "weakref.WeakSet[Reading]" = weakref.WeakSet()


@final
class Reading:
    """Reads the steps of one pass ahead of the loop.

    Args:
        plan: How many readers, and in which portions.
        filler: Reads rows into slots.
        pool: The slots.
        pool_lock: Guards the pool, which outlives a pass.
        ahead: Picks of the pass.
    """

    def __init__(
        self,
        plan: EnginePlan,
        filler: Filler,
        pool: SlotPool,
        pool_lock: contextlib.AbstractContextManager[object],
        ahead: Lookahead,
    ) -> None:
        self.ahead = ahead
        self.wait_s = 0.0
        self._filler = filler
        self._pool = pool
        self._pool_lock = pool_lock
        self._process = os.getpid()
        self._stopped = False
        self._table = SequenceTable(
            ahead.num_steps,
            plan.group_steps,
            ahead.last_is_short,
            plan.step_parts,
            plan.depth // plan.group_steps,
            self._new_group,
        )
        self._threads = [
            threading.Thread(target=self._read, name=f"flodl_pipe-reader-{number}", daemon=True)
            for number in range(plan.num_readers)
        ]
        _alive.add(self)
        for thread in self._threads:
            thread.start()

    def take(self) -> Group:
        """Return the next group, waiting for it if need be; waiting time is added to ``wait_s``.

        Raises:
            LoaderError: in a forked child, which has no readers, or after :meth:`stop`.
        """
        if os.getpid() != self._process:
            raise LoaderError(
                f"this iterator belongs to process {self._process}, and its readers did not follow the fork into "
                f"process {os.getpid()}; call iter(loader) in the child"
            )
        began = time.perf_counter()
        if not self._threads and not self._stopped:
            claimed = self._table.claim(wait=False)
            assert claimed is not None
            self._fill(*claimed)
        elif self._table.is_ready():
            began = 0.0
        group = self._table.take()
        if began:
            self.wait_s += time.perf_counter() - began
        if group is None:
            raise LoaderError("the loader was closed while this iterator was in use; build a new loader to go on")
        return group

    def give_credit(self) -> None:
        """Note that a group that was taken has been handed out whole."""
        self._table.give_credit()

    def stop(self, *, wait: bool = True) -> None:
        """Stop the readers; with ``wait``, return only when their threads have ended."""
        if os.getpid() != self._process:
            return
        self._stopped = True
        self._table.stop()
        current = threading.current_thread()
        for thread in self._threads if wait else ():
            if thread is not current:
                thread.join()

    def _new_group(self, first_step: int, num_steps: int, num_parts: int) -> Group:
        with self._pool_lock:
            return Group(first_step, num_steps, num_parts, self._pool.take(num_steps))

    def _read(self) -> None:
        while True:
            claimed = self._table.claim()
            if claimed is None:
                return
            self._fill(*claimed)
            # Drop the group before waiting for the next: its error may hold frames, and with them the user's objects.
            del claimed

    def _fill(self, group: Group, part: int) -> None:
        try:
            self._filler.fill(group, part, self.ahead)
        except BaseException as error:
            group.fail(error, 0)
            if not self._threads:
                raise
        finally:
            self._table.finish(group)


def _stop_all() -> None:
    for reading in list(_alive):
        reading.stop()


atexit.register(_stop_all)
