"""The iterator of one pass: groups in order, handed out step by step as batches the loop owns."""

import operator
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import count, islice, repeat
from typing import Any, Self, final

import numpy as np
import torch

from flodl_pipe.arrays import BoolArray, IndexArray, WordArray
from flodl_pipe.batch.batch import Batch
from flodl_pipe.errors import LoaderError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.loader.feed import Pass
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.identity import Place, Spot, StreamIdentity
from flodl_pipe.loader.lookahead import Rows
from flodl_pipe.loader.slots import SlotPool
from flodl_pipe.loader.statistics import Counters, Sums
from flodl_pipe.loader.watch import Watch
from flodl_pipe.sampling.steps import RankStep

__all__ = ["LoaderIterator"]

_Handed = tuple[Batch, int, int, Spot, WordArray | Sums]
"""A batch, its rows, those that count, where the stream stands after it, and the sum of its row hashes."""

# A named tuple's own constructor is a function in Python and takes twice as long.
_spot: Callable[[Iterable[Any]], Spot] = partial(tuple.__new__, Spot)


@final
class _Process:
    """Number of this process, without asking the system before every batch."""

    number = os.getpid()


def _note_fork() -> None:
    _Process.number = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


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
        spot: Where the pass begins.
        watch: Told of every step; None where nobody wants to know. May be set later.
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
        spot: Spot,
        watch: Watch | None,
    ) -> None:
        self._reading = reading
        self._hand_over = reading.hand_over
        self._process = _Process.number
        self._pool = pool
        self._stream = stream
        self._seed = seed
        self._counters = counters
        self._count = counters.count
        self._owner = owner
        self._on_step = on_step
        self._on_first = on_first
        self._on_end = on_end
        self._spot = spot
        self._begin = spot.position
        self.watch = watch
        if watch is not None:
            watch.ended()  # a pass that was broken off tells nothing
        self._has_repeats = has_repeats
        self._num_taken = 0
        self._handed: deque[_Handed] = deque()
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
        if self._process != _Process.number:
            self._reading.require_own_process()
        watch = self.watch
        if watch is not None and not self._done:
            watch.asked(self._spot)
        if self._handed:
            self._hand_over()
        else:
            self._take_group()
        batch, num_rows, num_valid, spot, hash_sum = self._handed.popleft()
        self._count(num_rows, hash_sum, num_valid)
        self._on_step(spot)
        if watch is not None:
            self._spot = spot
            watch.given(batch, num_rows)
        return batch

    def end(self, why: str) -> bool:
        """Stop the readers; a later ``next`` raises a ``LoaderError`` that says why. Return whether it was in use."""
        live = not self._done and self._ended is None
        # A loop that counts its steps leaves an iterator that has nothing more to give: that is no second one.
        in_use = live and bool(self._handed or self._error or self._num_taken < self._reading.ahead.num_steps)
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
        if not self._handed:
            self._take_group()

    def _make_batches(self, group: Group) -> None:
        num_good = group.num_steps if group.error is None else group.failed_step
        if num_good < group.num_steps:
            for slot in group.slots()[num_good:]:
                self._pool.put_back(slot)
        if not num_good:
            return
        ahead, rows, weight_of = self._reading.ahead, group.rows, operator.attrgetter("num_valid", "weight")
        assert rows is not None
        first, last = ahead.step(group.first_step), ahead.step(group.first_step + num_good - 1)
        num_rows = first.num_rows
        is_plain = bool(group.runs) and not group.valid and first.num_valid == num_rows
        if is_plain and weight_of(first) == weight_of(last):
            positions = [last.next_position]
            if num_good > 1:  # only the last step of an epoch may be at another distance
                distance = ahead.step(group.first_step + 1).next_position - first.next_position
                positions = [*islice(count(first.next_position, distance), num_good - 1), last.next_position]
            steps = None
        else:
            steps = [ahead.step(group.first_step + place) for place in range(num_good)]
            positions = [step.next_position for step in steps]
        spots = list(map(_spot, zip(repeat(ahead.epoch), positions, repeat(group.lanes))))
        if self.watch is not None:
            self._stream = self.watch.stream(self._stream, coming=True)
        origin = _Origin(
            self._stream, self._seed, rows, spots, num_rows, begin=self._begin, has_repeats=self._has_repeats
        )
        self._begin = spots[-1].position
        names = self._pool.layout.spec.names
        leased = self._pool.lease(group.runs, num_good, num_rows)
        tensors = zip(*(map(torch.from_numpy, column) for column in leased), strict=True)
        if steps is None:
            batches = Batch.of_origin(names, tensors, origin, first.weight)
            self._handed.extend(zip(batches, repeat(num_rows), repeat(num_rows), spots, group.hash_sums))
            return
        for place, step in enumerate(steps):
            names, own = group.made.pop(place) if group.made else (names, next(tensors))
            valid, num_valid, weight = _counting(step, group.valid.get(place))
            mask = group.device_valid
            if mask is None and valid is not None:
                mask = torch.from_numpy(valid)
            batch = Batch(
                names,
                own,
                pick_keys=origin.pick_keys(place),
                weight=weight,
                valid=mask,
                cursor=origin.cursor(place),
            )
            hash_sum = group.hash_sums[place] if group.lazy_sums is None else group.lazy_sums
            self._handed.append((batch, num_rows, num_valid, spots[place], hash_sum))

    def _finish(self) -> None:
        self._done = True
        self._handed.clear()
        if self.watch is not None:
            self.watch.ended()
        self._finalizer()


@final
class _Origin:
    """Where the batches of a group come from: until a batch is asked for its keys, it keeps the picks of its group."""

    __slots__ = ("_begin", "_num_rows", "_repeats", "_samples", "_seed", "_spots", "_stream")

    def __init__(
        self,
        stream: StreamIdentity,
        seed: int,
        rows: Rows,
        spots: list[Spot],
        num_rows: int,
        *,
        begin: int,
        has_repeats: bool,
    ) -> None:
        self._begin = begin
        self._stream = stream
        self._seed = seed
        self._spots = spots
        self._num_rows = num_rows
        self._samples = rows.samples
        self._repeats = rows.repeats if has_repeats else None

    def pick_keys(self, place: int) -> PickKeys:
        here = slice(place * self._num_rows, (place + 1) * self._num_rows)
        repeats = _no_repeats(self._num_rows) if self._repeats is None else self._repeats[here].copy()
        return PickKeys(self._samples[here].copy(), repeats, self._spots[place].epoch, self._seed)

    def cursor(self, place: int) -> Place:
        return Place(self._stream, self._spots[place], self._spots[place - 1].position if place else self._begin)


@lru_cache(maxsize=4)
def _no_repeats(num_rows: int) -> IndexArray:
    """Return zeros, shared by batches."""
    zeros = np.zeros(num_rows, dtype=np.int64)
    zeros.setflags(write=False)
    return zeros


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
