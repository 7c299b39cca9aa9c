"""Where a sample stands in an epoch, and what stands in a step: the order read in both directions, without any data."""

import operator
from typing import NamedTuple, SupportsIndex, final

import numpy as np

from flodl_pipe.arrays import BoolArray, IndexArray
from flodl_pipe.errors import LoaderError
from flodl_pipe.sampling.orders import Order, samples_of
from flodl_pipe.sampling.steps import EpochSteps

__all__ = ["RowPlace", "StepRows", "rows_of", "where_is"]


@final
class RowPlace(NamedTuple):
    """The place of a row.

    Attributes:
        step: Step of the epoch, counted from 0.
        rank: Rank that gets it.
        row: Row of that rank's batch.
    """

    step: int
    rank: int
    row: int


@final
class StepRows(NamedTuple):
    """The rows of a step over all ranks, rank after rank, each of shape ``(rows,)``.

    Attributes:
        sample: Sample of each row, int64.
        repeat: Which of its sample's appearances it is, int64.
        rank: Rank that gets it, int64.
        row: Row of that rank's batch, int64.
        valid: Whether it counts; False for rows that only fill a place.
    """

    sample: IndexArray
    repeat: IndexArray
    rank: IndexArray
    row: IndexArray
    valid: BoolArray


def where_is(
    order: Order, steps: EpochSteps, *, sample: int, epoch: int, repeat: int, num_samples: int
) -> RowPlace | None:
    """Return the place of a sample's appearance; None where the last-batch rule leaves it out.

    Args:
        order: The order.
        steps: How an epoch is cut, for any of the ranks.
        sample: Which sample.
        epoch: Which epoch.
        repeat: Which of its appearances in the epoch, ``0 .. augment - 1``.
        num_samples: Samples of the source.

    Raises:
        ValueError: if a number is no integer, or the epoch is negative.
        IndexError: if there is no such sample or appearance.
        LoaderError: if the order draws samples, so that one may come several times or not at all.
    """
    sample, epoch, repeat = _whole(sample=sample, epoch=epoch, repeat=repeat)
    if not 0 <= sample < num_samples:
        raise IndexError(f"samples are 0 .. {num_samples - 1}, got {sample}")
    repeats = order.num_repeats or 1
    if not 0 <= repeat < repeats:
        raise IndexError(f"sample {sample} has repeats 0 .. {repeats - 1} in an epoch, got {repeat}")
    pick = np.array([sample * repeats + repeat], dtype=np.int64)
    position = int(order.epoch(epoch).where(pick)[0])
    of_epoch = steps.of_epoch(epoch)
    low, high = 0, of_epoch.num_steps()
    while low < high:  # the first step that ends beyond the position
        middle = (low + high) // 2
        if of_epoch.step(middle).next_position <= position:
            low = middle + 1
        else:
            high = middle
    if low == of_epoch.num_steps():
        return None
    for rank in range(steps.world_size):
        part = of_epoch.of_rank(rank).step(low)
        if part.start <= position < part.start + part.num_valid:
            return RowPlace(low, rank, position - part.start)
    raise LoaderError(f"position {position} of epoch {epoch} is in step {low}, and no rank has it: a defect")


def rows_of(order: Order, steps: EpochSteps, *, epoch: int, step: int) -> StepRows:
    """Return what stands in a step.

    Args:
        order: The order.
        steps: How an epoch is cut, for any of the ranks.
        epoch: Which epoch.
        step: Which step of it, counted from the epoch's begin.

    Raises:
        ValueError: if a number is no integer, or the epoch is negative.
        IndexError: if the epoch has no such step.
    """
    epoch, step = _whole(epoch=epoch, step=step)
    of_epoch = steps.of_epoch(epoch)
    num_steps = of_epoch.num_steps()
    if not 0 <= step < num_steps:
        raise IndexError(f"epoch {epoch} has steps 0 .. {num_steps - 1}, got {step}")
    parts = [of_epoch.of_rank(rank).step(step) for rank in range(steps.world_size)]
    positions = np.concatenate([np.arange(part.start, part.stop, dtype=np.int64) for part in parts])
    within = positions % steps.num_picks
    samples, repeats = samples_of(order, within, order.epoch(epoch).pick(within))
    counts = [part.num_rows for part in parts]
    return StepRows(
        sample=samples,
        repeat=repeats,
        rank=np.repeat(np.arange(len(parts), dtype=np.int64), counts),
        row=np.concatenate([np.arange(count, dtype=np.int64) for count in counts]),
        valid=np.concatenate([np.arange(part.num_rows) < part.num_valid for part in parts]),
    )


def _whole(**numbers: int) -> list[int]:
    """Return numbers that are integers of some kind, as Python's."""
    found = []
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise ValueError(f"{name} must be an integer, got {value!r}")  # noqa: TRY004 - as loader.epoch() says it
        number = operator.index(value)
        if name == "epoch" and not 0 <= number < 1 << 64:
            raise ValueError(f"epochs are counted from 0 to 2**64 - 1, got {number}")
        found.append(number)
    return found
