"""A pass whose batches are delivered to a device: groups of the readers in, batches on the device out.

::

    readers -> slots -> [transfer thread: upload, event] -> ready, in order -> [loop: its stream waits] -> batch

The transfer thread waits for credits, one per step that may be in flight, and for the copies out of slots before it
gives them back. The loop waits for the thread only where no step is ready, and never for the device. Without readers,
or on a device without streams, the loop uploads by itself.
"""

import contextlib
import threading
import time
from collections import deque
from typing import NamedTuple, final

import numpy as np

from flodl_pipe.devices.protocol import Event
from flodl_pipe.errors import DeviceMemoryError, LoaderError
from flodl_pipe.loader.at_exit import join_readers, stop_at_exit
from flodl_pipe.loader.device_fill import DeviceFill
from flodl_pipe.loader.device_side import DeviceSide
from flodl_pipe.loader.feed import Ahead, Pass
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.lookahead import Rows
from flodl_pipe.loader.slots import SlotPool
from flodl_pipe.loader.upload import Upload, Uploaded

__all__ = ["DevicePass"]


class _Ready(NamedTuple):
    """A step that the loop may take, or what ends the pass.

    Attributes:
        group: The step.
        done: After its upload; None where nothing was uploaded.
        time_s: Virtual time at which it was enqueued.
    """

    group: Group
    done: Event | None
    time_s: float


@final
class DevicePass:
    """A :class:`flodl_pipe.loader.feed.Pass` over another one, which reads on the host.

    Args:
        inner: The pass of the readers.
        side: The device.
        upload: Moves steps.
        fill: Uploads samples before they are asked for; None: nothing does.
        pool: The slots.
        pool_lock: Guards them.
        alone: Whether samples pass one by one.
        in_background: Whether a thread of its own uploads.

    Attributes:
        wait_s: Time the loop waited for steps that were not ready.
    """

    def __init__(
        self,
        inner: Pass,
        side: DeviceSide,
        upload: Upload,
        fill: DeviceFill | None,
        pool: SlotPool,
        pool_lock: contextlib.AbstractContextManager[object],
        *,
        alone: bool,
        in_background: bool,
    ) -> None:
        self.wait_s = 0.0
        self._inner = inner
        self._side = side
        self._upload = upload
        self._fill = fill
        self._pool = pool
        self._pool_lock = pool_lock
        self._alone = alone
        self._clock = side.device.clock
        self._changed = threading.Condition(threading.RLock())
        self._ready: deque[_Ready] = deque()
        self._credits: deque[float] = deque()
        self._num_out = 0  # steps uploaded, or being so, that the loop did not take
        self._copying: deque[tuple[Event, list[int]]] = deque()
        self._num_taken = 0
        self._stopped = False
        self._thread: threading.Thread | None = None
        side.on_depth(self._wake)
        if in_background:
            stop_at_exit(self)
            self._thread = threading.Thread(target=self._run, name="flodl_pipe-transfer", daemon=True)
            self._thread.start()

    @property
    def ahead(self) -> Ahead:
        """Its steps."""
        return self._inner.ahead

    def require_own_process(self) -> None:
        """Refuse to go on in a forked child; see :class:`flodl_pipe.loader.feed.Pass`."""
        self._inner.require_own_process()

    def hand_over(self) -> None:
        """Do nothing: the transfer thread gets the interpreter whenever the loop waits for the device."""

    def take(self) -> Group:
        """Return the next step; see :class:`flodl_pipe.loader.feed.Pass`."""
        asked_s = time.perf_counter()
        if self._thread is None:
            while not self._ready:
                self._next_group()
        with self._changed:
            while not self._ready and not self._stopped:
                self._side.require_running()
                self._changed.wait()
            if not self._ready:
                raise LoaderError("the loader was closed while this iterator was in use; build a new loader to go on")
            ready = self._ready.popleft()
            self._clock.reach(ready.time_s)
            if ready.done is not None:
                self._num_out -= 1
                self._side.num_in_flight = self._num_out
                self._credits.append(self._clock.now())
                self._changed.notify_all()
        if ready.done is not None:
            device = self._side.device
            consumer = device.consumer()
            device.wait(consumer, ready.done)
            for _, tensors in ready.group.made.values():
                device.keep_for(consumer, tensors)
                device.use(consumer, tensors)
            self._side.delivered()
        self.wait_s += time.perf_counter() - asked_s
        return ready.group

    def stop(self, *, wait: bool = True) -> None:
        """End uploads and readers; with ``wait``, return only when their threads have ended."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._inner.stop(wait=False)
        thread = self._thread
        if not wait or thread is threading.current_thread():
            return
        if thread is not None:
            join_readers([thread], lambda: self._inner.stop(wait=False))
        self._retire(0)
        with self._changed:
            self._ready.clear()
            self._side.num_in_flight = self._num_out = 0
        self._inner.stop()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while not self._stopped and self._next_group():
                pass
        except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
            if not self._stopped:
                self._push_error(error, self._num_taken)

    def _next_group(self) -> bool:
        """Upload the next group of the readers; return whether there may be more."""
        if self._num_taken >= self._inner.ahead.num_steps:
            if self._thread is None:
                raise LoaderError("no step of this pass is left")
            self._fill_ahead(until_done=True)
            return False
        self._fill_ahead()
        self._retire(1)
        group = self._inner.take()
        if not group.num_steps:
            self._push(_Ready(group, None, self._clock.now()))
            return False
        num_good = group.num_steps if group.error is None else group.failed_step
        slots = group.slots()
        pending: list[int] = []
        copied: Event | None = None
        for place in range(num_good):
            uploaded = self._step(group, place)
            if uploaded is None:
                return False  # stopped
            copied = uploaded.copied
            pending += slots[place : place + 1]
        if copied is not None:
            self._copying.append((copied, pending))
        self._put_back(slots[num_good:])
        self._num_taken = group.first_step + group.num_steps
        if group.error is not None:
            self._push_error(group.error, group.first_step + num_good)
            return False
        return True

    def _step(self, group: Group, place: int) -> Uploaded | None:
        """Upload one step, as soon as there is a credit; None when the pass was stopped."""
        step = self.ahead.step(group.first_step + place)
        assert group.rows is not None
        rows = group.rows.part(slice(place * step.num_rows, (place + 1) * step.num_rows))
        one = Group(group.first_step + place, 1, 0, [])
        one.rows, one.lanes = rows, group.lanes
        one.hash_sums[0] = group.hash_sums[place]
        if place in group.valid:
            one.valid[0] = group.valid[place]
        while True:
            if not self._await_credit():
                return None
            try:
                with self._side.gate:
                    uploaded = self._enqueue(group, place, rows)
                break
            except DeviceMemoryError as error:
                with self._changed:
                    self._num_out -= 1
                self._side.give_way(error)
        one.made[0] = uploaded.made
        one.lazy_sums = uploaded.sums
        self._push(_Ready(one, uploaded.done, self._clock.now()))
        return uploaded

    def _enqueue(self, group: Group, place: int, rows: Rows) -> Uploaded:
        epoch = self.ahead.epoch
        if not group.runs:
            return self._upload.tensors(group.made[place], rows, epoch, alone=self._alone)
        step = self.ahead.step(group.first_step + place)
        valid, good = step.valid(), group.valid.get(place)
        if good is not None:
            valid = good if valid is None else valid & good
        numbers = None if valid is None else valid.astype(np.int64)
        run = self._pool.layout.single_runs(group.runs)[place]
        return self._upload.slot(run, rows, group.plans.get(place), epoch, numbers)

    def _await_credit(self) -> bool:
        """Wait until another step may be in flight, and count it; False when the pass was stopped."""
        if self._thread is None:
            self._num_out += 1
            return True
        with self._changed:
            while self._num_out >= self._side.depth and not self._stopped:
                self._changed.wait()
            self._num_out += 1
            self._side.num_in_flight = self._num_out
            # The credits are those of the steps that were taken first.
            while len(self._credits) > self._side.depth:
                self._credits.popleft()
            if len(self._credits) + self._num_out > self._side.depth and self._credits:
                self._clock.reach(self._credits.popleft())
            return not self._stopped

    def _push(self, ready: _Ready) -> None:
        with self._changed:
            self._ready.append(ready)
            self._changed.notify_all()

    def _push_error(self, error: BaseException, step: int) -> None:
        group = Group(step, 1, 0, [])
        group.fail(error, 0)
        self._push(_Ready(group, None, self._clock.now()))

    def _retire(self, num_groups: int) -> None:
        """Give back the slots of all groups but the last ``num_groups``, once they were copied."""
        while len(self._copying) > num_groups:
            copied, slots = self._copying.popleft()
            with self._side.gate:
                self._side.device.synchronize(copied)
            self._put_back(slots)

    def _put_back(self, slots: list[int]) -> None:
        with self._pool_lock:
            for slot in slots:
                self._pool.put_back(slot)

    def _fill_ahead(self, *, until_done: bool = False) -> None:
        """Upload samples that were not asked for yet, while the loop has a step to go on with."""
        fill = self._fill
        while fill is not None and self._side.fills_ahead and not self._stopped:
            with self._changed:
                is_idle = bool(self._ready) or until_done
            if not is_idle:
                return
            try:
                with self._side.gate:
                    if not fill.chunk():
                        self._fill = None
                        return
            except DeviceMemoryError as error:
                self._side.give_way(error)
            if not until_done:
                return
