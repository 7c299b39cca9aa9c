"""The lanes order of a loader: its constants, and which lanes this rank owns.

The constants are fixed when a run starts first: as many lanes as the global batch has rows, or ``sampling.num_lanes``,
and as many rows of each as fill a global batch. From then on they stand in cursors, and a resumed run takes them from
there, whatever its global batch and its ranks are.
"""

import math
from typing import NamedTuple, final

from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.errors import ConfigError
from flodl_pipe.sampling.lanes import LaneConstants, LanesOrder, constants_in
from flodl_pipe.sampling.orders import Order
from flodl_pipe.sampling.steps import EpochSteps

__all__ = ["OwnLanes", "lanes_order", "num_own", "own_lanes", "rows_together"]


@final
class OwnLanes(NamedTuple):
    """Lanes that follow each other.

    Attributes:
        first: The first.
        num_lanes: How many.
    """

    first: int
    num_lanes: int


def lanes_order(num_samples: int, sampling: SamplingConfig, saved_tag: str | None, global_batch: int) -> LanesOrder:
    """Return the lanes order of a source.

    Args:
        num_samples: Its samples.
        sampling: Section ``sampling``.
        saved_tag: Tag of the order that a cursor continues; None for a run that starts anew.
        global_batch: Rows of a step over all ranks.

    Raises:
        ConfigError: if there are more lanes than samples, or they do not divide the global batch.
    """
    saved = None if saved_tag is None else constants_in(saved_tag)
    num_lanes, rows = saved or _first_constants(sampling, global_batch)
    if num_lanes > num_samples:
        which = f"{num_lanes}" if sampling.num_lanes else f"null makes {num_lanes} lanes, one for each row of a step;"
        raise ConfigError.at(
            "sampling.num_lanes",
            f"{which} are more than the {num_samples:,} samples, and each lane needs one; set a smaller one, or use "
            "order=uniform",
        )
    return LanesOrder(num_samples, sampling.seed, num_lanes=num_lanes, rows=rows, num_repeats=sampling.augment)


def _first_constants(sampling: SamplingConfig, global_batch: int) -> LaneConstants:
    num_lanes = sampling.num_lanes or global_batch
    if global_batch % num_lanes:
        near = max(count for count in range(1, num_lanes + 1) if not global_batch % count)
        raise ConfigError.at(
            "sampling.num_lanes",
            f"{num_lanes} does not divide the global batch of {global_batch}, and a step takes equally many rows of "
            f"each lane; set {near}, another divisor, or null for {global_batch} lanes",
        )
    return LaneConstants(num_lanes, global_batch // num_lanes)


def rows_together(order: Order, unit: int, *, global_batch: int, world_size: int) -> int:
    """Return the rows of a full step that are not cut apart: those of a lane, where steps are blocks of lanes.

    Args:
        order: The order.
        unit: Rows that are never cut apart, for another reason.
        global_batch: Rows of a step over all ranks.
        world_size: Number of ranks.

    Raises:
        ConfigError: if there are more ranks than lanes.
    """
    if not isinstance(order, LanesOrder):
        return unit
    if order.num_lanes < world_size:
        raise ConfigError.at(
            "sampling.num_lanes",
            f"{order.num_lanes} lanes are fewer than the {world_size} ranks, and each rank has at least one for "
            f"itself; start anew with at least {world_size} lanes, or with fewer ranks",
        )
    together = math.lcm(unit, order.rows)
    # Else lanes are cut apart: ranks have samples in common, and keep none of them for themselves.
    return together if global_batch == order.block and global_batch >= world_size * together else unit


def own_lanes(order: Order, steps: EpochSteps) -> OwnLanes | None:
    """Return the lanes that a rank's share of each full step consists of.

    None where there is no such thing: for another order, for one rank alone, and where steps are no blocks of the order
    (any more).
    """
    if not isinstance(order, LanesOrder) or steps.world_size == 1 or steps.global_batch != order.block:
        return None
    if order.num_picks < order.block:
        return None
    step = steps.step(0)
    first, before = divmod(step.start, order.rows)
    count, rest = divmod(step.num_rows, order.rows)
    return None if before or rest else OwnLanes(first, count)


def num_own(order: Order, steps: EpochSteps, num_samples: int) -> int:
    """Return how many of a source's samples a rank asks for in full steps, in all epochs together."""
    own = own_lanes(order, steps)
    if own is None or not isinstance(order, LanesOrder):
        return num_samples
    in_last = max(0, min(own.first + own.num_lanes, order.deal.last_stripe) - own.first)
    return order.deal.num_stripes * own.num_lanes + in_last
