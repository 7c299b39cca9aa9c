"""The device budget: what the data plane may hold of a device, and how that is split. Pure arithmetic.

::

    vram_max_usage x total                     the line nobody should be pushed over by us
      - in use by others                       model, optimizer, other programs
      - activation reserve                     what a training step will want, where that is known
      x 1/3, 1/2 or 1                          by how much is known: nothing, a derived reserve, a stated or seen one
      = budget = steps in flight + sample pool

What others use is what is used less what we hold, for the same reason as on the host: a budget that counted our own
bytes against us would shrink with every grant.

Before the first training step nobody can see how much memory its activations take, and they come after us: a data
plane that filled the device first would make the *model* run out of memory. So most of the budget stays untouched until
the second batch was asked for: then one whole step is over, and its peak is on record.
"""

from dataclasses import dataclass
from typing import Literal, final

from flodl_pipe.errors import StagingError
from flodl_pipe.memory.budget import Grant
from flodl_pipe.units import format_bytes

__all__ = [
    "DeviceFigures",
    "Knowledge",
    "derived_reserve_bytes",
    "device_budget",
    "pool_grant",
    "resident_decision",
    "slab_rows",
]

Knowledge = Literal["unknown", "derived", "stated", "honest"]
"""What is known of the memory that a training step takes; see :func:`device_budget`."""

# (numerator, denominator, why) of the budget that is used at each stage of knowledge.
_DISCOUNTS: dict[Knowledge, tuple[int, int, str]] = {
    "unknown": (1, 3, "before the first step, with nothing known of it"),
    "derived": (1, 2, "before the first step, with a derived reserve"),
    "stated": (1, 1, ""),
    "honest": (1, 1, ""),
}
# Gradients, and two moments of an Adam-like optimizer: as large as the parameters each, and there after the first step.
_COMPANIONS_OF_PARAMETERS = 3

_SLABS_OF_A_SET = 64
_MIN_SLAB_BYTES = 1 << 20
_MAX_SLAB_BYTES = 64 << 20

# A resident set may take 3/4 of what is free: the rest is for what comes later. A set of at most a tenth of the device
# is loaded before anything is known: hardly any model leaves so little that it would be missed.
_RESIDENT_OF_FREE = (3, 4)
_SMALL_OF_TOTAL = 10


@final
@dataclass(frozen=True)
class DeviceFigures:
    """Memory of a device as one probe saw it.

    Attributes:
        total_bytes: All of it.
        free_bytes: What can still be allocated, what this process's allocator keeps without using it included.
        held_bytes: What the data plane of this process holds of the rest.
        peak_others_bytes: The most that was in use at one time, less what the data plane held then; 0 where nobody
            looked. Between two steps activations are free again, so only the peak tells of them.
    """

    total_bytes: int
    free_bytes: int
    held_bytes: int = 0
    peak_others_bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """What is in use, by anybody."""
        return self.total_bytes - self.free_bytes

    @property
    def others_bytes(self) -> int:
        """What is in use by others than the data plane."""
        return max(0, self.used_bytes - self.held_bytes)


def derived_reserve_bytes(model_bytes: int) -> int:
    """Return what a training step will allocate for parameters of ``model_bytes``: gradients and optimizer moments.

    Activations are not in it: they depend on the step, and are why a derived reserve still halves the budget.
    """
    return _COMPANIONS_OF_PARAMETERS * model_bytes


def device_budget(
    figures: DeviceFigures, *, vram_max_usage: float, knowledge: Knowledge, activation_reserve_bytes: int = 0
) -> Grant:
    """Return what the data plane may hold of a device, over all loaders of this process; never negative.

    Args:
        figures: Probe of the device.
        vram_max_usage: Fraction of the device's memory, ``0.5 <= vram_max_usage <= 0.99``.
        knowledge: ``unknown`` before the first step: a third. ``derived`` with a reserve that follows from the model:
            half. ``stated`` with the user's reserve, ``honest`` after the second delivered batch: all of it.
        activation_reserve_bytes: What to leave for a training step beyond what is in use; of no account while
            ``unknown``. Once ``honest``, 0 unless the user stated it: the peak tells.
    """
    reserve_bytes = 0 if knowledge == "unknown" else activation_reserve_bytes
    limit_bytes = int(vram_max_usage * figures.total_bytes)
    others_bytes, peak_bytes = figures.others_bytes, figures.peak_others_bytes
    if peak_bytes > others_bytes + reserve_bytes:
        taken_bytes = peak_bytes
        taken = f"{format_bytes(peak_bytes)} in use by others at their peak"
    else:
        taken_bytes = others_bytes + reserve_bytes
        taken = f"{format_bytes(others_bytes)} in use by others"
        if reserve_bytes:
            taken += f" - {format_bytes(reserve_bytes)} reserved for activations"
    full_bytes = max(0, limit_bytes - taken_bytes)
    numerator, denominator, why = _DISCOUNTS[knowledge]
    discount = f"; {numerator}/{denominator} of that {why}" if why else ""
    return Grant(
        full_bytes * numerator // denominator,
        f"vram_max_usage {vram_max_usage:g} of {format_bytes(figures.total_bytes)} - {taken}{discount}",
    )


def slab_rows(row_bytes: int, num_rows: int) -> int:
    """Return the rows of one slab, the unit in which a tier grows: 1/64 of the set, from 1 MiB to 64 MiB.

    Large enough that the allocator is asked rarely, small enough that a grant is used up to a percent or two.

    Args:
        row_bytes: Bytes of a stored row.
        num_rows: Rows of the whole set.
    """
    slab_bytes = min(_MAX_SLAB_BYTES, max(_MIN_SLAB_BYTES, row_bytes * num_rows // _SLABS_OF_A_SET))
    return max(1, min(num_rows, slab_bytes // max(1, row_bytes)))


def pool_grant(budget_bytes: int, depth_bytes: int, row_bytes: int, num_rows: int) -> Grant:
    """Return what the sample pool may hold: what the steps in flight leave of the budget.

    Args:
        budget_bytes: The device budget.
        depth_bytes: Of it, what the steps in flight take.
        row_bytes: Bytes of a stored row.
        num_rows: Rows of the whole set.

    Returns:
        Whole slabs (:func:`slab_rows`), or the whole set where that fits.
    """
    set_bytes = row_bytes * num_rows
    room_bytes = max(0, budget_bytes - depth_bytes)
    room = (
        f"{format_bytes(room_bytes)} of the device budget of {format_bytes(budget_bytes)} is left beside "
        f"{format_bytes(depth_bytes)} for steps in flight"
    )
    if set_bytes <= room_bytes:
        return Grant(set_bytes, f"the whole set of {num_rows:,} rows; {room}")
    rows_of_slab = slab_rows(row_bytes, num_rows)
    num_slabs = room_bytes // (rows_of_slab * row_bytes)
    rows = num_slabs * rows_of_slab
    return Grant(
        rows * row_bytes,
        f"{rows:,} of {num_rows:,} rows in {num_slabs} slabs of {format_bytes(rows_of_slab * row_bytes)}; {room}",
    )


def resident_decision(
    set_bytes: int,
    figures: DeviceFigures,
    *,
    budget: Grant,
    forced: bool = False,
    activation_reserve_bytes: int | None = None,
    model_bytes_on_device: int = 0,
    is_honest: bool = False,
) -> tuple[Literal["resident", "promote", "stream"], str]:
    """Decide whether a whole set is put on a device.

    It must fit in 75 % of what is free and in the budget, and it must be safe to know that now. A device that is empty
    because the model is not there yet says nothing.

    Args:
        set_bytes: What it takes there.
        figures: Probe of the device; what the data plane holds already counts as free, for the set takes its place.
        budget: The device budget, without a discount.
        forced: ``loader.mode=resident``.
        activation_reserve_bytes: The user's reserve; None where none is stated.
        model_bytes_on_device: What this process has on the device for its model.
        is_honest: Whether two batches were delivered, so that the figures tell of a whole training step.

    Returns:
        ``resident``: now. ``promote``: it fits, but stream until two batches were delivered and ask again.
        ``stream``: it does not fit. And why, with both numbers.

    Raises:
        StagingError: if it is forced and does not fit.
    """
    free_bytes = figures.free_bytes + figures.held_bytes
    numerator, denominator = _RESIDENT_OF_FREE
    room_bytes = free_bytes * numerator // denominator
    needs = f"the whole set takes {format_bytes(set_bytes)}"
    room = f"75 % of {format_bytes(free_bytes)} free on the device is {format_bytes(room_bytes)}"
    if budget.num_bytes < room_bytes:
        room_bytes = budget.num_bytes
        room = f"the device budget is {format_bytes(room_bytes)} ({budget.reason})"
    if set_bytes > room_bytes:
        if forced:
            raise StagingError(
                f"loader.mode=resident, but {needs}, and {room}; use loader.mode=auto or streaming (the sample pool "
                "then holds what fits), raise loader.vram_max_usage, or free memory on the device"
            )
        return "stream", f"{needs}, but {room}"
    safe = _why_safe(set_bytes, figures, forced, activation_reserve_bytes, model_bytes_on_device, is_honest)
    if safe is None:
        return "promote", (
            f"{needs}, and {room}, but what a training step takes is not known yet: batches are streamed, and this is "
            "decided after the second one (loader.activation_reserve states it, loader.mode=resident forces it)"
        )
    return "resident", f"{needs}, and {room}; {safe}"


def _why_safe(
    set_bytes: int,
    figures: DeviceFigures,
    forced: bool,
    activation_reserve_bytes: int | None,
    model_bytes: int,
    is_honest: bool,
) -> str | None:
    """Return why the figures may be believed, or None."""
    if forced:
        return "loader.mode=resident"
    if is_honest:
        return "a whole training step was seen"
    if activation_reserve_bytes is not None:
        return f"loader.activation_reserve states {format_bytes(activation_reserve_bytes)} for a training step"
    if model_bytes > 0:
        return f"the model is on the device already ({format_bytes(model_bytes)})"
    if set_bytes * _SMALL_OF_TOTAL <= figures.total_bytes:
        return f"that is at most a tenth of the device's {format_bytes(figures.total_bytes)}"
    return None
