"""How many steps are in flight on a device. Pure arithmetic.

A step in flight is a batch that was copied in, or is being copied, before the loop asked for it. A few of them hide the
latency of reading and copying; many more hide nothing, and would take memory that the sample pool turns into hits.
"""

from flodl_pipe.errors import StagingError
from flodl_pipe.units import format_bytes

__all__ = ["DEPTH_AT_BUILD", "depth_and_reason", "depth_for"]

DEPTH_AT_BUILD = 4
"""Steps in flight until the model is there: enough to overlap reading, copying and computing."""

_SMALLEST_OVERLAP = 2
# 64 steps bridge the longest pauses of reading that are worth bridging with device memory (a slow file, a page-out):
# the host's ring waits behind them with steps of its own.
_MOST_STEPS = 64
# Three quarters are the sample pool's: a step in flight saves a wait once, a row in the pool one copy every epoch.
_PART_OF_BUDGET = 4


def depth_and_reason(
    budget_bytes: int,
    step_bytes: int,
    *,
    at_build: bool,
    forced: int | None,
    num_steps: int,
    most: int = _MOST_STEPS,
    forced_budget_bytes: int | None = None,
) -> tuple[int, str]:
    """Return how many steps may be in flight, and why; see :func:`depth_for`."""
    num_steps = max(1, num_steps)
    fit = budget_bytes // max(1, step_bytes)
    in_budget = f"{format_bytes(step_bytes)} each, of a device budget of {format_bytes(budget_bytes)}"
    if forced is not None:
        depth = min(forced, num_steps)
        limit_bytes = budget_bytes if forced_budget_bytes is None else forced_budget_bytes
        if depth > 1 and depth * step_bytes > limit_bytes:
            raise StagingError(
                f"prefetch depth {forced}: {depth} steps in flight of {format_bytes(step_bytes)} take "
                f"{format_bytes(depth * step_bytes)}, and the device budget is {format_bytes(limit_bytes)}, enough for "
                f"{limit_bytes // max(1, step_bytes)}; lower loader.prefetch or loader.batch_size, or raise "
                "loader.vram_max_usage"
            )
        return depth, f"{depth} steps, as asked for"
    if fit < _SMALLEST_OVERLAP:
        return 1, f"1 step, for not even {_SMALLEST_OVERLAP} fit: {in_budget}"
    if at_build:
        depth = min(DEPTH_AT_BUILD, fit, num_steps)
        return depth, f"{depth} steps until training starts: {in_budget}"
    part = max(_SMALLEST_OVERLAP, fit // _PART_OF_BUDGET)
    depth = min(most, part, num_steps)
    if depth == num_steps:
        return depth, f"{depth} steps, a whole epoch: {in_budget}"
    if depth == most:
        return depth, f"{depth} steps, more would hide nothing: {in_budget}"
    return depth, f"{depth} steps, a quarter of the budget, the rest is for samples to stay: {in_budget}"


def depth_for(
    budget_bytes: int,
    step_bytes: int,
    *,
    at_build: bool,
    forced: int | None,
    num_steps: int,
    most: int = _MOST_STEPS,
    forced_budget_bytes: int | None = None,
) -> int:
    """Return how many steps may be in flight on a device.

    At build 4; later as many as a quarter of the budget holds, at most ``most``. At least 2, so that copying and
    computing overlap, and 1 where not even 2 fit: a loop cannot be fed with less.

    Args:
        budget_bytes: The device budget.
        step_bytes: What a step in flight takes on the device.
        at_build: Whether training has not started.
        forced: The user's depth, at least 1; None decides by itself.
        num_steps: Steps of an epoch.
        most: Cap.
        forced_budget_bytes: What a forced depth is held against: the budget without its first-step discount. By default
            ``budget_bytes``.

    Raises:
        StagingError: if a forced depth of more than one step does not fit.
    """
    depth, _ = depth_and_reason(
        budget_bytes,
        step_bytes,
        at_build=at_build,
        forced=forced,
        num_steps=num_steps,
        most=most,
        forced_budget_bytes=forced_budget_bytes,
    )
    return depth
