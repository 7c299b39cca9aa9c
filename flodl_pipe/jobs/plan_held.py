"""Which samples each tier of a loader on paper will hold in the end, and how they get there.

What a device grants grows while a run learns what a training step takes: a third at first, all of it from the second
batch on. A plan asks the same policy the same questions, with the figures of now for those of later, and shows both.
"""

from dataclasses import dataclass, replace
from typing import final

from flodl_pipe.jobs.plan_spans import Held
from flodl_pipe.loader.device_fill import chunk_rows
from flodl_pipe.loader.device_plan import DevicePlan, device_figures, model_bytes_on
from flodl_pipe.loader.lane_order import num_own
from flodl_pipe.loader.outline import Outline
from flodl_pipe.memory.depth_policy import Allowance
from flodl_pipe.sources.protocol import BundledSource, is_dear

__all__ = ["Allowances", "HeldTiers", "Pace", "allowances", "held_tiers"]

# As the RAM cache decides: bytes instead of rows, where that saves more than windows that share one token of many do.
_MOST_SHARED = 0.9


@final
@dataclass(frozen=True)
class Pace:
    """What is known of a run's speed, in seconds of a step; 0.0 where a time is not known.

    Attributes:
        read_s: Reading its rows from the source, all readers together.
        loop_s: From one step to the next, in a loop that waits for what it needs.
        fill_bytes_per_s: Bytes a second that a tier is filled ahead with.
    """

    read_s: float = 0.0
    loop_s: float = 0.0
    fill_bytes_per_s: float = 0.0

    def fill_epochs(self, found: Outline, num_bytes: int) -> float:
        """Return how far readers are when a fill is done, in epochs.

        It begins with the first batch, and readers hurry ahead of the loop meanwhile, as far as they may. Where speeds
        are not known, filling is taken to be quick.
        """
        plan, num_steps = found.plan, max(1, found.steps.num_steps())
        if not plan.num_readers:
            return 0.0
        steps = float(plan.group_steps)
        if num_bytes and self.fill_bytes_per_s and self.read_s:
            took_s = num_bytes / self.fill_bytes_per_s
            steps = min(steps + took_s / self.read_s, took_s / max(self.loop_s, self.read_s) + plan.depth)
        return steps / num_steps

    @property
    def loop_is_slow(self) -> bool:
        """Whether readers are ahead of the loop as far as they may be; where nothing is known, they are."""
        return self.read_s < 0.9 * self.loop_s or not self.read_s


@final
@dataclass(frozen=True)
class HeldTiers:
    """The tiers as they are when all of them are full."""

    pool: Held
    ram: Held
    disk: Held


@final
@dataclass(frozen=True)
class Allowances:
    """What may be held of a device as a run goes on, if training takes nothing beyond what is in use now.

    Attributes:
        first: As the first epoch starts.
        later: From the second batch on.
    """

    first: Allowance
    later: Allowance


def allowances(device: DevicePlan) -> Allowances:
    """Ask a device's policy what a run will be allowed."""
    figures = device_figures(device.shared, 0, work_bytes=device.work_bytes)
    first = device.policy.at_epoch(figures, model_bytes=model_bytes_on(device.shared))
    device.policy.delivered(lambda: figures)
    return Allowances(first, device.policy.delivered(lambda: figures) or first)


def held_tiers(found: Outline, allowed: Allowances | None, pace: Pace = Pace()) -> HeldTiers:
    """Return what each tier will hold.

    Args:
        found: What a loader would be made of.
        allowed: What may be held of the device; None without one.
        pace: What is known of the run's speed.
    """
    return HeldTiers(_pool(found, allowed, pace), _ram(found, pace), _disk(found))


def _pool(found: Outline, allowed: Allowances | None, pace: Pace) -> Held:
    device, plan = found.device, found.plan
    if device is None or allowed is None or device.pool_off is not None:
        return Held()
    num_samples = num_own(found.order, found.steps, len(found.source))
    row_bytes = max(1, found.layout.spec.row_bytes)
    lag = 0
    if plan.num_readers:  # planned by a reader, admitted when the transfer thread gets there
        lag = plan.depth if pace.loop_is_slow else plan.group_steps
    if device.decision == "stream":
        first, later = (min(num_samples, one.pool.num_bytes // row_bytes) for one in (allowed.first, allowed.later))
        early = (allowed.first.depth + 1 if plan.num_readers else 2) * found.steps.batch_rows
        return Held(0, max(first, later), offers=True, lag_batches=lag, early_rows=early, early_end=first)
    whole = Held(0, num_samples, offers=True, fill_bytes=device.set_bytes, lag_batches=lag)
    if is_dear(found.source):
        return whole
    whole = replace(whole, ahead=True)
    if not plan.num_readers:  # the loop uploads all that is missing when an epoch begins
        return replace(whole, in_one=True, fill_epochs=0.0 if device.decision == "resident" else 1.0)
    # One chunk between two groups, and what is left at the end of the epoch. Readers have planned steps ahead by then.
    num_steps = max(1, found.steps.num_steps())
    chunks = -(-num_samples // chunk_rows(row_bytes, device.shared.device.memory().total_bytes))
    steps = min(num_steps, lag + chunks * plan.group_steps)
    return replace(whole, in_one=True, fill_epochs=steps / num_steps)


def _ram(found: Outline, pace: Pace) -> Held:
    plan, ram = found.plan, found.tiers.ram
    num_samples = num_own(found.order, found.steps, len(found.source))
    if found.device is None and plan.mode == "resident" and not is_dear(found.source):
        whole = Held(0, num_samples, ahead=True, in_one=True, fill_bytes=plan.resident_bytes)
        return replace(whole, fill_epochs=pace.fill_epochs(found, plan.resident_bytes))
    if not ram.num_rows:
        return Held()
    held = Held(ram.first_rank, min(ram.num_rows, num_samples), fill_bytes=ram.num_bytes)
    if not ram.num_bytes:
        return replace(held, ahead=True, in_one=True, fill_epochs=0.0)  # there from the start
    if ram.in_one:
        return replace(held, ahead=True, in_one=True, fill_epochs=pace.fill_epochs(found, ram.num_bytes))
    is_filled = plan.num_readers > 0 and not is_dear(found.source)
    if _keeps_bytes(found):
        return replace(held, ahead=is_filled, fill_epochs=pace.fill_epochs(found, ram.num_bytes))
    fill_bytes = ram.num_rows * found.source.spec.row_bytes
    return replace(
        held,
        offers=True,
        ahead=is_filled,
        fill_bytes=fill_bytes,
        fill_epochs=pace.fill_epochs(found, fill_bytes),
        lag_batches=(plan.group_steps - 1) // 2,
    )


def _disk(found: Outline) -> Held:
    disk = found.tiers.disk
    return Held(disk.first_rank, disk.num_rows, offers=disk.num_rows > 0, lag_batches=(found.plan.group_steps - 1) // 2)


def _keeps_bytes(found: Outline) -> bool:
    """Return whether the RAM cache keeps runs of bytes, which are only read ahead, and not rows."""
    source, ranking = found.source, found.tiers.ranking
    extents = source.extents if isinstance(source, BundledSource) else None
    if extents is None or ranking.runs(0, 1) is None:
        return False
    return extents.num_bytes <= _MOST_SHARED * len(source) * source.spec.row_bytes
