"""The iterator of one pass: groups in order, handed out step by step as batches the loop owns."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Self, final

import numpy as np
import torch

from flodl_pipe.arrays import BoolArray, IndexArray, WordArray
from flodl_pipe.batch.batch import Batch
from flodl_pipe.errors import LoaderError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.loader.feed import Pass
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.identity import Place, Spot, StreamIdentity
from flodl_pipe.loader.slots import SlotPool
from flodl_pipe.loader.statistics import Counters, Sums
from flodl_pipe.sampling.steps import RankStep

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
        has_repeats: Whether a sample may come several times in an epoch.
        counters: Counts what is handed out.
        owner: Kept alive as long as the iterator: ``for batch in Loader(...)`` has no other name for its loader.
        on_step: Told where the stream stands after each step.
        on_first: Told when the first batch was handed out.
        on_end: Told when the pass was handed out whole.
    """

    def __init__(
        self,
        reading: Pass,
        pool: SlotPool,
        stream: StreamIdentity,
        *,
        seed: int,
        has_repeats: bool,
        counters: Counters,
        owner: object,
        on_step: Callable[[Spot], None],
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
        self._has_repeats = has_repeats
        self._no_repeats: IndexArray = np.zeros(pool.layout.max_rows, dtype=np.int64)
        self._no_repeats.setflags(write=False)  # shared by all batches of the pass
        self._num_taken = 0
        # With the numbers of its rows and of those that count.
        self._batches: deque[tuple[Batch, int, int, Spot, WordArray | Sums]] = deque()
        self._error: BaseException | None = None
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
        if self._batches:
            self._reading.hand_over()
        else:
            self._take_group()
        batch, num_rows, num_valid, spot, hash_sum = self._batches.popleft()
        self._counters.count(num_rows, hash_sum, num_valid)
        self._on_step(spot)
        return batch

    def end(self, why: str) -> bool:
        """Stop the readers; a later ``next`` raises a ``LoaderError`` that says why. Return whether it was in use."""
        live = not self._done and self._ended is None
        # A loop that counts its steps leaves an iterator that has nothing more to give: that is no second one.
        in_use = live and bool(self._batches or self._error or self._num_taken < self._reading.ahead.num_steps)
        if in_use:
            self._ended = why
        if live:
            self._finish()
        return in_use

    def _take_group(self) -> None:
        """Take the next group and make its batches; raise what ends the pass."""
        if self._done or self._num_taken >= self._reading.ahead.num_steps:
            if not self._done:
                self._finish()
                self._on_end()
            raise StopIteration
        if self._error is not None:
            error, self._error = self._error, None
            self._finish()
            raise error
        waited_s = self._reading.wait_s
        group = self._reading.take()
        if not group.num_steps:  # a stream shows only now that it has ended
            self._finish()
            self._on_end()
            raise StopIteration
        self._counters.wait_s += self._reading.wait_s - waited_s
        self._num_taken += group.num_steps
        if group.error is not None:
            # The good steps before it are handed out first; then the pass ends with it, at its own step.
            self._error, self._num_taken = group.error, group.first_step + group.failed_step
        if torch.is_inference_mode_enabled():  # a tensor made in there could never be trained on outside
            with torch.inference_mode(mode=False):
                self._make_batches(group)
        else:
            self._make_batches(group)
        if group.first_step == 0:
            self._on_first()
        if not self._batches:
            self._take_group()

    def _make_batches(self, group: Group) -> None:
        ahead, pool, layout, rows = self._reading.ahead, self._pool, self._pool.layout, group.rows
        names, epoch, seed, no_repeats, skipped = (
            layout.spec.names,
            ahead.epoch,
            self._seed,
            self._no_repeats,
            group.valid,
        )
        num_good = group.num_steps if group.error is None else group.failed_step
        slots = group.slots()
        for slot in slots[num_good:]:
            pool.put_back(slot)
        for place in range(num_good):
            assert rows is not None
            step = ahead.step(group.first_step + place)
            num_rows = step.num_rows
            if slots:
                tensors = tuple(map(torch.from_numpy, layout.lease_views(pool.lease(slots[place]), num_rows)))
            else:
                names, tensors = group.made.pop(place)
            # Copies: the picks of many steps share one array, which a kept batch would keep whole.
            here = slice(place * num_rows, (place + 1) * num_rows)
            samples = rows.samples[here].copy()
            if self._has_repeats:
                repeats = rows.repeats[here].copy()
            else:
                repeats = no_repeats if num_rows == len(no_repeats) else no_repeats[:num_rows]
            valid, num_valid, weight = _counting(step, skipped.get(place)) if skipped else _planned(step)
            spot = Spot(epoch, step.next_position, group.lanes)
            batch = Batch(
                names,
                tensors,
                pick_keys=PickKeys(samples, repeats, epoch, seed),
                weight=weight,
                valid=None if valid is None else torch.from_numpy(valid),
                cursor=Place(self._stream, spot),
            )
            hash_sum = group.hash_sums[place] if group.lazy_sums is None else group.lazy_sums
            self._batches.append((batch, num_rows, num_valid, spot, hash_sum))

    def _finish(self) -> None:
        self._done = True
        self._batches.clear()
        self._finalizer()


def _planned(step: RankStep) -> tuple[BoolArray | None, int, float]:
    """Return which rows of a step count (None: all), how many, and its weight, where none was skipped."""
    return step.valid(), step.num_valid, step.weight


def _counting(step: RankStep, good: BoolArray | None) -> tuple[BoolArray | None, int, float]:
    """Return what :func:`_planned` does where some may have been skipped.

    Args:
        step: The step as it was planned.
        good: Which of its rows were not skipped; None: all of them.
    """
    planned = step.valid()
    if good is None:
        return _planned(step)
    valid = good.copy() if planned is None else good & planned
    num_valid = int(valid.sum())
    # Each good row keeps the part that it has in the mean over all ranks, wherever the skipped ones are.
    return valid, num_valid, step.weight * num_valid / step.num_valid if step.num_valid else 0.0
