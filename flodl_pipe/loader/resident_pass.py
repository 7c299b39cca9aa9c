"""A pass over samples that are all on the device: each batch is gathered there, on the loop's own stream.

Nothing is read, no thread runs, and nothing waits: the loop's stream does the gathering between two steps. What crosses
the bus are the numbers of the rows.

Where there is no memory for a batch, the pool gives way as it does while streaming, and the pass goes on with one that
reads. So it does from the first step on that has a sample of another rank, where this one keeps only its own.
"""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import final

from flodl_pipe.arrays import ByteArray
from flodl_pipe.devices.protocol import Event
from flodl_pipe.errors import DeviceMemoryError, LoaderError
from flodl_pipe.loader.device_side import DeviceSide
from flodl_pipe.loader.feed import Pass
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.lookahead import Lookahead
from flodl_pipe.loader.torch_modes import outside_of_the_loop
from flodl_pipe.loader.upload import Upload

__all__ = ["ResidentPass"]


@final
class ResidentPass:
    """A :class:`flodl_pipe.loader.feed.Pass` over a complete sample pool.

    Args:
        ahead: Picks of the pass.
        side: The device.
        upload: Makes batches, and counts what crosses the bus.
        go_on: Returns a pass over the rest of the epoch that reads, from a position on.

    Attributes:
        wait_s: Time the loop waited.
    """

    def __init__(self, ahead: Lookahead, side: DeviceSide, upload: Upload, go_on: Callable[[int], Pass]) -> None:
        self.ahead = ahead
        self.wait_s = 0.0
        self._side = side
        self._upload = upload
        self._go_on = go_on
        self._streamed: Pass | None = None
        self._next_step = 0
        self._process = os.getpid()
        self._stopped = False
        self._slabs: deque[tuple[ByteArray, Event]] = deque()

    def require_own_process(self) -> None:
        """Refuse to go on in a forked child.

        Raises:
            LoaderError: if this is not the process that made the pass.
        """
        if os.getpid() != self._process:
            raise LoaderError(
                f"this iterator belongs to process {self._process}, and its device did not follow the fork into "
                f"process {os.getpid()}; call iter(loader) in the child"
            )

    def hand_over(self) -> None:
        """Do nothing: no other thread has work."""

    def take(self) -> Group:
        """Return the next step; see :class:`flodl_pipe.loader.feed.Pass`."""
        if self._stopped:
            raise LoaderError("the loader was closed while this iterator was in use; build a new loader to go on")
        asked_s = time.perf_counter()
        group = None if self._streamed is not None else self._gathered()
        if group is None:
            group = self._stream()
        self.wait_s += time.perf_counter() - asked_s
        return group

    def stop(self, *, wait: bool = True) -> None:
        """End the pass."""
        if os.getpid() != self._process:
            return
        self._stopped = True
        self._side.gate.wake()
        if self._streamed is not None:
            self._streamed.stop(wait=wait)
        self._slabs.clear()  # whoever copies from them still keeps them

    def _gathered(self) -> Group | None:
        """Return the next step, gathered on the device; None if the pool lacks some of it.

        What goes wrong is in the group, for it stands at this step.
        """
        side, step = self._side, self.ahead.step(self._next_step)
        pool = side.pool
        assert pool is not None
        rows = self.ahead.rows(self._next_step, 1)
        stream = side.device.consumer()
        if side.is_part and not pool.holds(rows.samples).all():
            return None
        while side.is_complete:
            group, shortage = Group(self._next_step, 1, 0, []), None
            with outside_of_the_loop(without_graph=True), side.gate.work(self._is_stopped):
                try:
                    plan = pool.plan(rows.samples)
                    sent = self._upload.resident(plan, stream, rows, self.ahead.epoch, step.valid(), self._room)
                    side.device.use(stream, sent.tensors())
                    group.rows = rows
                    group.made[0], group.lazy_sums, group.device_valid = sent.made, sent.sums, sent.valid
                except DeviceMemoryError as error:
                    shortage = error
                except Exception as error:  # noqa: BLE001 - of a transform or of the device: it ends the pass
                    group.fail(error, 0)
            if shortage is not None:
                try:
                    side.give_way(shortage)
                except DeviceMemoryError as error:
                    group.fail(error, 0)
                else:
                    continue
            self._next_step += 1
            if group.error is None:
                side.delivered()
            return group
        return None

    def _stream(self) -> Group:
        """Return the next step from a pass that reads: the pool lacks samples."""
        if self._streamed is None:
            number = self._next_step
            self._streamed = self._go_on(self.ahead.step(number - 1).next_position if number else self.ahead.position)
        waited_s = self._streamed.wait_s
        group = self._streamed.take()
        self.wait_s -= self._streamed.wait_s - waited_s
        group.first_step += self._next_step
        return group

    def _is_stopped(self) -> bool:
        return self._stopped

    @contextlib.contextmanager
    def _room(self, num_bytes: int) -> Iterator[ByteArray]:
        """Give host memory for numbers to be copied from: of two slabs, the one that was copied longer ago."""
        device = self._side.device
        memory, copied = self._slabs.popleft() if len(self._slabs) == 2 else (None, None)
        if copied is not None:
            device.synchronize(copied)
        if memory is None or len(memory) < num_bytes:
            memory = device.host_slab(max(1, num_bytes))
        try:
            yield memory
        finally:
            self._slabs.append((memory, device.record(device.consumer())))
