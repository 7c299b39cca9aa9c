"""Groups of the readers to steps on a device, one by one; and the slots that are still being copied from."""

import contextlib
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np
import torch

from flodl_pipe.arrays import IndexArray
from flodl_pipe.batch.ragged import Columns
from flodl_pipe.devices.protocol import Device, Event
from flodl_pipe.errors import DeviceMemoryError
from flodl_pipe.loader.feed import Ahead
from flodl_pipe.loader.finish import device_bytes, rows_that_count
from flodl_pipe.loader.gate import Gate
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.slots import SlotLayout, SlotPool
from flodl_pipe.loader.upload import Upload

__all__ = ["CopiedSlots", "GroupUpload", "Sent"]


@final
class Sent(NamedTuple):
    """A step on its way to the loop.

    Attributes:
        group: The step, a group of its own.
        done: After everything.
        tensors: All that the loop gets of device memory.
        num_bytes: What that takes.
    """

    group: Group
    done: Event
    tensors: list[torch.Tensor]
    num_bytes: int


@final
class GroupUpload:
    """Uploads steps of groups; used by one thread.

    Args:
        upload: Moves rows.
        layout: Layout of a slot.
        read: Returns stored rows of some samples, valid until its next call; None where no pool is.
        alone: Whether samples pass one by one.
    """

    def __init__(
        self, upload: Upload, layout: SlotLayout, read: Callable[[IndexArray], Columns] | None, *, alone: bool
    ) -> None:
        self._upload = upload
        self._layout = layout
        self._read = read
        self._alone = alone

    def prepare(self, group: Group, place: int, num_rows: int) -> None:
        """See to it that a step's slot has all that the pool does not: the pool may have shrunk since it was read."""
        plan = group.plans.get(place)
        if plan is None or not plan.is_void:
            return
        assert group.rows is not None
        assert self._read is not None
        del group.plans[place]
        stored = self._read(group.rows.samples[place * num_rows : (place + 1) * num_rows])
        views = self._layout.group_views(self._layout.single_runs(group.runs)[place], num_rows)
        for name, view in views.items():
            column = stored[name]
            assert isinstance(column, np.ndarray)
            np.copyto(view[0], column)

    def step(self, group: Group, place: int, ahead: Ahead) -> Sent:
        """Enqueue one step.

        Raises:
            DeviceMemoryError: if the device has no memory left; its slot may be written again then.
            TransformError: if a transform breaks its contract.
        """
        number = group.first_step + place
        step, upload = ahead.step(number), self._upload
        assert group.rows is not None
        rows = group.rows.part(slice(place * step.num_rows, (place + 1) * step.num_rows))
        one = Group(number, 1, 0, [])
        one.rows, one.lanes = rows, group.lanes
        one.hash_sums[0] = group.hash_sums[place]
        if place in group.valid:
            one.valid[0] = group.valid[place]
        valid = rows_that_count(step, group.valid.get(place))
        if group.runs:
            run = self._layout.single_runs(group.runs)[place]
            try:
                uploaded = upload.slot(run, rows, group.plans.get(place), ahead.epoch, valid)
            except DeviceMemoryError:
                upload.device.synchronize(upload.device.record(upload.stream))
                raise
        else:
            uploaded = upload.tensors(group.made[place], rows, ahead.epoch, valid, alone=self._alone)
        one.made[0], one.lazy_sums, one.device_valid = uploaded.made, uploaded.sums, uploaded.valid
        tensors = uploaded.tensors()
        return Sent(one, uploaded.done, tensors, device_bytes(tensors))


@final
class CopiedSlots:
    """Slots that a device may still be copying from; used by one thread.

    Args:
        device: The device.
        gate: Held while the device is waited for.
        pool: Where they go back to.
        pool_lock: Guards it.
    """

    def __init__(
        self,
        device: Device,
        gate: Gate,
        pool: SlotPool,
        pool_lock: contextlib.AbstractContextManager[object],
    ) -> None:
        self._device = device
        self._gate = gate
        self._pool = pool
        self._pool_lock = pool_lock
        self._copying: deque[tuple[Event, list[int]]] = deque()

    def add(self, copied: Event, slots: list[int]) -> None:
        """Take slots of a group, and give them back once they were copied."""
        self._copying.append((copied, slots))

    def retire(self, num_left: int, is_stopped: Callable[[], bool]) -> None:
        """Give back the slots of all groups but the last ``num_left``, once they were copied."""
        while len(self._copying) > num_left:
            with self._gate.work(is_stopped) as goes_on:
                if not goes_on:
                    return
                copied, slots = self._copying.popleft()
                self._device.synchronize(copied)
            self.put_back(slots)

    def end(self) -> None:
        """Give back all, once they were copied, held off or not."""
        while self._copying:
            copied, slots = self._copying.popleft()
            self._device.synchronize(copied)
            self.put_back(slots)

    def put_back(self, slots: list[int]) -> None:
        """Give back slots that are not being copied from."""
        with self._pool_lock:
            for slot in slots:
                self._pool.put_back(slot)
