"""The iterator of one pass: groups in order, handed out step by step as batches the loop owns."""

import weakref
from collections.abc import Callable, Iterator
from typing import Self, final

import numpy as np
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.errors import LoaderError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.identity import Place, StreamIdentity
from flodl_pipe.loader.reading import Reading
from flodl_pipe.loader.slots import SlotPool
from flodl_pipe.loader.statistics import Counters

__all__ = ["LoaderIterator"]


@final
class LoaderIterator(Iterator[Batch]):
    """Batches of one pass. Made by ``iter(loader)`` or ``loader.epoch(n)``.

    Dropping it (leaving the loop by ``break`` or an exception) stops its readers.

    Args:
        reading: The pass.
        pool: Where its slots come from.
        stream: Identity of the stream, for cursors.
        seed: Run seed, for pick keys.
        counters: Counts what is handed out.
        owner: Kept alive as long as the iterator: ``for batch in Loader(...)`` has no other name for its loader.
        on_step: Told the position after each step.
        on_first: Told when the first batch was handed out.
        on_end: Told when the pass was handed out whole.
    """

    def __init__(
        self,
        reading: Reading,
        pool: SlotPool,
        stream: StreamIdentity,
        *,
        seed: int,
        counters: Counters,
        owner: object,
        on_step: Callable[[int], None],
        on_first: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._reading = reading
        self._pool = pool
        self._stream = stream
        self._seed = seed
        self._counters = counters
        self._owner = owner
        self._on_step = on_step
        self._on_first = on_first
        self._on_end = on_end
        self._names = pool.layout.spec.names
        self._repeats = np.zeros(pool.layout.max_rows, dtype=np.int64)
        self._repeats.setflags(write=False)  # shared by all batches of the pass
        self._next_step = 0
        self._group: Group | None = None
        self._slots: list[int] = []
        self._ended: str | None = None
        self._done = False
        self._finalizer = weakref.finalize(self, reading.stop)
        self._finalizer.atexit = False  # readers have an exit hook of their own

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        if self._ended is not None:
            raise LoaderError(self._ended)
        self._reading.require_own_process()
        ahead = self._reading.ahead
        if self._done or self._next_step >= ahead.num_steps:
            if not self._done:
                self._finish()
                self._on_end()
            raise StopIteration
        if self._group is None:
            self._take_group()
        group = self._group
        assert group is not None
        place = self._next_step - group.first_step
        if group.error is not None and place >= group.failed_step:
            self._finish()
            raise group.error
        batch = self._batch(group, place)
        self._next_step += 1
        if place + 1 == group.num_steps:
            self._group = None
        if self._next_step == 1:
            self._on_first()
        return batch

    def end(self, why: str) -> bool:
        """Stop the readers; a later ``next`` raises a ``LoaderError`` that says why. Return whether it was in use."""
        in_use = not self._done and self._ended is None
        if in_use:
            self._ended = why
            self._finish()
        return in_use

    def _take_group(self) -> None:
        waited_s = self._reading.wait_s
        self._group = self._reading.take()
        self._counters.wait_s += self._reading.wait_s - waited_s
        self._slots = self._group.slots_left()

    def _finish(self) -> None:
        self._done = True
        self._group = None
        self._finalizer()

    def _batch(self, group: Group, place: int) -> Batch:
        step = self._reading.ahead.step(self._next_step)
        num_rows = step.stop - step.start
        lease = self._pool.lease(self._slots[place])
        group.num_handed_out += 1
        arrays = self._pool.layout.lease_views(lease, num_rows)
        if torch.is_inference_mode_enabled():  # a tensor made in there could never be trained on outside
            with torch.inference_mode(mode=False):
                tensors = tuple(map(torch.from_numpy, arrays))
        else:
            tensors = tuple(map(torch.from_numpy, arrays))
        # A copy: the picks of many steps share one array, which a kept batch would keep whole.
        samples = group.picks[place * num_rows : (place + 1) * num_rows].copy()
        epoch = self._reading.ahead.epoch
        self._counters.count(num_rows, group.hash_sums[place], step.num_valid)
        self._on_step(step.next_position)
        valid = step.valid()
        return Batch(
            self._names,
            tensors,
            pick_keys=PickKeys(samples, self._repeats[:num_rows], epoch, self._seed),
            weight=step.weight,
            valid=None if valid is None else torch.from_numpy(valid),
            cursor=Place(self._stream, epoch, step.next_position),
        )
