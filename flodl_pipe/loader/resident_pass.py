"""A pass over samples that are all on the device: each batch is gathered there, on the loop's own stream.

Nothing is read, no thread runs, and nothing waits: the loop's stream does the gathering between two steps. What crosses
the bus are the numbers of the rows.
"""

import os
import time
from typing import final

import numpy as np
import torch

from flodl_pipe.arrays import ByteArray, WordArray
from flodl_pipe.devices.protocol import Event, Stream
from flodl_pipe.errors import LoaderError
from flodl_pipe.keyed.digest import row_states
from flodl_pipe.loader.device_side import DeviceSide
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.lazy_sums import LazySums
from flodl_pipe.loader.lookahead import Lookahead
from flodl_pipe.loader.torch_modes import outside_of_the_loop
from flodl_pipe.loader.upload import Finish, Upload

__all__ = ["ResidentPass"]


@final
class ResidentPass:
    """A :class:`flodl_pipe.loader.feed.Pass` over a complete sample pool.

    Args:
        ahead: Picks of the pass.
        side: The device.
        finish: How rows become a batch.
        upload: Counts what crosses the bus.

    Attributes:
        wait_s: Time the loop waited; there is nothing to wait for.
    """

    def __init__(self, ahead: Lookahead, side: DeviceSide, finish: Finish, upload: Upload) -> None:
        self.ahead = ahead
        self.wait_s = 0.0
        self._side = side
        self._finish = finish
        self._upload = upload
        self._next_step = 0
        self._process = os.getpid()
        self._stopped = False
        self._slabs: list[tuple[ByteArray, Event | None]] = []

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
        asked_s, step, pool, side = time.perf_counter(), self._next_step, self._side.pool, self._side
        assert pool is not None
        self._next_step += 1
        facts = self.ahead.step(step)
        rows = self.ahead.rows(step, 1)
        group = Group(step, 1, 0, [])
        group.rows = rows
        device = side.device
        stream = device.consumer()
        with outside_of_the_loop(without_graph=True), side.gate:
            plan = pool.plan(rows.samples)
            parts = [plan.index]
            if self._finish.keep_digest:
                states: WordArray = row_states(
                    epoch=self.ahead.epoch, positions=rows.positions, samples=rows.samples, repeats=rows.repeats
                )
                parts.append(states.view(np.int64))
                valid = facts.valid()
                if valid is not None:
                    parts.append(valid.astype(np.int64))
            index = self._upload.numbers(parts, self._room(sum(part.nbytes for part in parts)), stream)
            self._slabs[-1] = (self._slabs[-1][0], device.record(stream))
            fields = pool.assemble(plan, index.pop(0), {}, stream=stream)
            if self._finish.keep_digest:
                group.lazy_sums = self._sums(stream, fields, index)
            group.made[0] = self._finish.batch(device, stream, fields, rows, self.ahead.epoch)
        device.use(stream, group.made[0][1])
        self.wait_s += time.perf_counter() - asked_s
        return group

    def stop(self, *, wait: bool = True) -> None:  # noqa: ARG002 - nothing runs
        """End the pass."""
        if os.getpid() != self._process:
            return
        self._stopped = True
        self._slabs.clear()  # the device keeps what is still being copied out of

    def _sums(self, stream: Stream, fields: dict[str, torch.Tensor], index: list[torch.Tensor]) -> LazySums:
        return self._upload.sums(stream, fields, index)

    def _room(self, num_bytes: int) -> ByteArray:
        """Return host memory that numbers may be written to: of two slabs, the one that was copied longer ago."""
        if len(self._slabs) < 2:
            self._slabs.append((self._side.device.host_slab(max(1, num_bytes)), None))
            return self._slabs[-1][0]
        memory, copied = self._slabs.pop(0)
        if copied is not None:
            self._side.device.synchronize(copied)
        if len(memory) < num_bytes:
            memory = self._side.device.host_slab(num_bytes)
        self._slabs.append((memory, None))
        return memory
