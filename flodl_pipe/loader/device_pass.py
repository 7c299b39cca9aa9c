"""A pass whose batches are delivered to a device: groups of the readers in, batches on the device out.

::

    readers -> slots -> [transfer thread: upload, event] -> ready, in order -> [loop: its stream waits] -> batch

The transfer thread waits for credits, one per step that may be in flight, and for the copies out of slots before it
gives them back. The loop waits for the thread only where no step is ready, and never for the device. Without readers,
or on a device without streams, the loop uploads by itself.

What goes wrong at a step stands at that step: those before it are handed out first.
"""

import contextlib
import os
import threading
import time
from collections import deque
from typing import NamedTuple, final

from flodl_pipe.errors import DeviceMemoryError, LoaderError
from flodl_pipe.loader.at_exit import is_own_thread, join_readers, stop_at_exit
from flodl_pipe.loader.device_fill import DeviceFill
from flodl_pipe.loader.device_side import DeviceSide
from flodl_pipe.loader.feed import Ahead, Pass
from flodl_pipe.loader.group_upload import CopiedSlots, GroupUpload, Sent
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.in_flight import InFlight
from flodl_pipe.loader.slots import SlotPool
from flodl_pipe.loader.torch_modes import outside_of_the_loop

__all__ = ["DevicePass"]


class _Ready(NamedTuple):
    """A step that the loop may take, or what ends the pass.

    Attributes:
        group: The step.
        sent: It on the device; None where nothing was uploaded.
        time_s: Virtual time at which it was enqueued.
    """

    group: Group
    sent: Sent | None
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
        in_background: Whether a thread of its own uploads.

    Attributes:
        wait_s: Time the loop waited for steps that were not ready.
    """

    def __init__(
        self,
        inner: Pass,
        side: DeviceSide,
        upload: GroupUpload,
        fill: DeviceFill | None,
        pool: SlotPool,
        pool_lock: contextlib.AbstractContextManager[object],
        *,
        in_background: bool,
    ) -> None:
        self.wait_s = 0.0
        self._inner = inner
        self._side = side
        self._upload = upload
        self._fill = fill
        self._slots = CopiedSlots(side.device, side.gate, pool, pool_lock)
        self._clock = side.device.clock
        self._begin_s = self._clock.now()
        self._process = os.getpid()
        self._changed = threading.Condition(threading.RLock())
        self._ready: deque[_Ready] = deque()
        self._flight = side.flight = InFlight()
        self._group: Group | None = None  # in the making
        self._num_read = 0  # steps that were uploaded
        self._stopped = False
        self._thread: threading.Thread | None = None
        side.on_depth(self._wake)
        if in_background:
            stop_at_exit(self)
            self._thread = threading.Thread(target=self._run, name="flodl_pipe-transfer", daemon=True)
            try:
                self._thread.start()  # already known here: by that it sees that it is not the loop, and has to wait
            except RuntimeError as error:
                self._thread = None
                self.stop()
                raise LoaderError(
                    f"the system refuses to start the thread that copies to {side.device.name} ({error}); set "
                    "loader.readers=0, or lift the limit on processes (ulimit -u)"
                ) from error

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
            with outside_of_the_loop(without_graph=True):
                while not self._ready and not self._stopped:
                    self._side.gate.require_running()
                    self._advance()
        with self._changed:
            while not self._ready and not self._stopped:
                self._side.gate.require_running()
                self._changed.wait()
            if self._stopped or not self._ready:
                raise LoaderError("the loader was closed while this iterator was in use; build a new loader to go on")
            ready = self._ready.popleft()
            self._clock.reach(ready.time_s)
            if ready.sent is not None:
                self._flight.take(ready.sent.num_bytes, self._clock.now())
                self._changed.notify_all()
        if ready.sent is not None:
            device = self._side.device
            consumer = device.consumer()
            device.wait(consumer, ready.sent.done)
            device.keep_for(consumer, ready.sent.tensors)
            device.use(consumer, ready.sent.tensors)
            self._side.delivered()
        self.wait_s += time.perf_counter() - asked_s
        return ready.group

    def stop(self, *, wait: bool = True) -> None:
        """End uploads and readers; with ``wait``, return only when their threads have ended."""
        if os.getpid() != self._process:
            return  # neither threads nor the device followed the fork
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._side.gate.wake()
        self._inner.stop(wait=False)
        thread = self._thread
        if not wait or is_own_thread():
            return  # the transfer thread clears up as it ends
        if thread is not None:
            join_readers([thread], lambda: self._inner.stop(wait=False))
        try:
            self._clear_up()
        finally:
            self._inner.stop()

    def _clear_up(self) -> None:
        self._let_go()
        self._slots.end()
        with self._changed:
            self._ready.clear()
            self._flight.end()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            with outside_of_the_loop(without_graph=True):
                self._clock.reach(self._begin_s)
                while not self._stopped and self._advance():
                    pass
        except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
            if not self._stopped:
                self._push_error(error, self._num_read)
        finally:
            if self._stopped:
                self._clear_up()

    def _advance(self) -> bool:
        """Upload the next step of the readers; return whether there may be more."""
        self._fill_ahead()
        group = self._group
        if group is None:
            if self._num_read >= self._inner.ahead.num_steps:
                if self._thread is None:
                    raise LoaderError("no step of this pass is left")
                self._fill_ahead(until_done=True)
                return False
            self._slots.retire(1, self._is_stopped)
            group = self._inner.take()
            if not group.num_steps:
                self._push(_Ready(group, None, self._clock.now()))
                return False
            self._group = group
        place = self._num_read - group.first_step
        if group.error is None or place < group.failed_step:
            try:
                if not self._step(group, place):
                    return False
            except Exception as error:  # noqa: BLE001 - of the device or of a transform: it goes to the loop, at its step
                group.error, group.failed_step = error, place
            else:
                self._num_read += 1
                place += 1
        if group.error is not None and place >= group.failed_step:
            self._push_error(group.error, self._num_read)
            return False
        if place >= group.num_steps:
            self._let_go()
        return True

    def _let_go(self) -> None:
        """Give back the group's slots, after the copies out of them."""
        group, self._group = self._group, None
        if group is not None and group.runs:
            self._slots.add(self._side.device.record(self._side.stream), group.slots())

    def _step(self, group: Group, place: int) -> bool:
        """Upload one step, as soon as there is a credit; False when the pass was stopped."""
        side = self._side
        while True:
            self._upload.prepare(group, place, self.ahead.step(group.first_step + place).num_rows)
            if not self._await_credit():
                return False
            try:
                with side.gate.work(self._is_stopped) as goes_on:
                    if not goes_on:
                        return False
                    sent = self._upload.step(group, place, self.ahead)
                break
            except DeviceMemoryError as error:
                with self._changed:
                    self._flight.withdraw()
                if not self._give_way(error):
                    return False
        side.saw(sent.num_bytes)
        self._push(_Ready(sent.group, sent, self._clock.now()))
        return True

    def _give_way(self, error: DeviceMemoryError) -> bool:
        """Give something up, when nobody holds the device off; False when the pass was stopped meanwhile."""
        with self._side.gate.work(self._is_stopped) as goes_on:
            if goes_on:
                self._side.give_way(error)
        return goes_on

    def _is_stopped(self) -> bool:
        return self._stopped

    def _await_credit(self) -> bool:
        """Wait until another step may be in flight, and count it; False when the pass was stopped."""
        with self._changed:
            # Who uploads in the loop's own thread would wait for itself.
            while self._thread is not None and not self._stopped and not self._flight.has_room(self._side.room):
                self._changed.wait()
            if not self._stopped:
                self._clock.reach(self._flight.claim(self._side.room.depth))
            return not self._stopped

    def _push(self, ready: _Ready) -> None:
        with self._changed:
            if ready.sent is not None:
                self._flight.ready(ready.sent.num_bytes)
            self._ready.append(ready)
            self._changed.notify_all()

    def _push_error(self, error: BaseException, step: int) -> None:
        group = Group(step, 1, 0, [])
        group.fail(error, 0)
        self._push(_Ready(group, None, self._clock.now()))

    def _fill_ahead(self, *, until_done: bool = False) -> None:
        """Upload samples that were not asked for yet, while the loop has a step to go on with."""
        while self._fill is not None and self._side.fills_ahead and not self._stopped:
            if not self._ready and not until_done:
                return
            chunk = self._fill.read()
            if chunk is None:
                self._fill = None
                return
            try:
                with self._side.gate.work(self._is_stopped) as goes_on:
                    if goes_on:
                        self._fill.upload(chunk)
            except DeviceMemoryError as error:
                self._give_way(error)
            if not until_done:
                return
