"""What a run would be granted, and why: host, disk and device."""

from flodl_pipe.config.job import PlanJob
from flodl_pipe.config.root import Config
from flodl_pipe.jobs.plan_held import Allowances, HeldTiers
from flodl_pipe.jobs.plan_spans import Held
from flodl_pipe.loader.device_plan import DevicePlan
from flodl_pipe.loader.outline import Outline
from flodl_pipe.loader.stream_outline import StreamOutline
from flodl_pipe.loader.tiers import TierRange, once_only, ranking_for
from flodl_pipe.reports.figures import plural, size
from flodl_pipe.reports.tables import Section
from flodl_pipe.sources.protocol import is_dear
from flodl_pipe.staging.ranking import StorageOrder
from flodl_pipe.units import format_bytes

__all__ = ["device_section", "memory_rows", "mode_words", "tier_rows"]

Rows = tuple[tuple[str, str], ...]


def mode_words(found: Outline | StreamOutline) -> str:
    """Return the mode and why; a set that is put on the device later is told."""
    plan, device = found.plan, found.device
    if device is not None and device.decision == "promote":
        return f"streaming, then resident from the second batch on, if it still fits: {device.why}"
    return f"{plan.mode}: {plan.why}"


def memory_rows(found: Outline) -> Rows:
    """Return what is taken of the host."""
    plan, tiers = found.plan, found.tiers
    rows = [("mode", mode_words(found))]
    if found.held_bytes:
        rows.append(("source", f"{format_bytes(found.held_bytes)}, held by the source itself"))
    resident = plan.resident_bytes if found.device is None else 0
    kept = resident or tiers.ram.num_bytes
    if plan.mode == "resident" and found.device is None:
        rows.append(("resident set", size(resident) if resident else "none"))
    else:
        rows += [("resident set", "none")] if found.device is None else []
        rows.append(("RAM cache", _granted(tiers.ram)))
    pinned = ", page-locked" if found.device is not None and found.device.shared.device.pins else ""
    slots = f"{plan.num_slots} batches{pinned}, and the rows of a group per reader"
    rows.append(("ring", f"{format_bytes(plan.ring_bytes)}: {slots}"))
    if tiers.table_bytes:
        rows.append(("tables", f"{format_bytes(tiers.table_bytes)}: where rows lie"))
    total = plan.ring_bytes + kept + found.held_bytes + tiers.table_bytes
    rows.append(
        ("together", f"{format_bytes(total)} of {format_bytes(plan.share.num_bytes)} that this process may hold")
    )
    rows.append(("host share", str(plan.share)))
    if tiers.disk.num_rows:
        rows.append(("disk stage", f"{_granted(tiers.disk)}; on disk, not in memory"))
        if tiers.disk.warning:
            rows.append(("", tiers.disk.warning))
    return tuple(rows)


def device_section(device: DevicePlan, allowed: Allowances, *, set_rows: int | None) -> Section:
    """Return what is taken of a device.

    Args:
        device: What may be held of it.
        allowed: The same as a run goes on.
        set_rows: Samples of the source; None for a stream.
    """
    port, first, later = device.shared.device, allowed.first, allowed.later
    memory = port.memory()
    own = ", the host's own memory" if memory.is_shared else ""
    rows = [
        ("device", f"{port.name}, {format_bytes(memory.total_bytes)}, {format_bytes(memory.free_bytes)} free{own}"),
        ("budget at first", str(first.budget)),
    ]
    if later.budget != first.budget:
        rows.append(("budget later", f"from the second batch on {later.budget}"))
    rows.append(("steps in flight", first.why))
    if later.why != first.why:
        rows.append(("in flight later", later.why))
    if device.work_bytes:
        rows.append(("work", f"{format_bytes(device.work_bytes)} left free for work on a step; counted as in use"))
    if device.pool_off is not None:
        rows.append(("sample pool", f"off: {device.pool_off}"))
    elif device.decision == "stream":
        rows.append(("sample pool", str(later.pool)))
    else:
        when = "" if device.decision == "resident" else " after the second batch"
        rows.append(("sample pool", f"{format_bytes(device.set_bytes)}{when}: all {set_rows or 0:,} samples"))
    return Section("Device", tuple(rows))


def tier_rows(config: Config, found: Outline, held: HeldTiers) -> Rows:
    """Return which samples each tier holds, in the order in which they are asked; what is off says why."""
    num_samples = len(found.source)
    device, tiers, plan = found.device, found.tiers, found.plan
    ranking = ranking_for(found.source, found.order, found.steps)
    unit = "samples" if isinstance(ranking, StorageOrder) else "ranks"
    rows = []
    if device is not None:
        if device.pool_off is not None:
            rows.append(("sample pool", f"off: {device.pool_off}"))
        else:
            how = "uploaded ahead, front to back" if held.pool.ahead else "kept as they are uploaded"
            rows.append(("sample pool", _held(held.pool, num_samples, unit, how)))
    if device is None and plan.mode == "resident":
        filled = "kept as they are read" if is_dear(found.source) else "read front to back"
        how = f"in the resident set, {filled}" if plan.resident_bytes else "held by the source itself"
        rows.append(("all samples", how))
    elif tiers.ram.num_rows:
        how = " and ".join(
            word
            for word, is_so in (
                ("kept as they are read", held.ram.offers),
                ("which the source holds in memory itself", not tiers.ram.num_bytes),
                ("read ahead, front to back", held.ram.ahead and bool(tiers.ram.num_bytes)),
            )
            if is_so
        )
        rows.append(("RAM cache", _held(held.ram, num_samples, unit, how)))
    else:
        rows.append(("RAM cache", f"off: {tiers.ram.why}"))
    if tiers.disk.num_rows:
        rows.append(("disk stage", _held(held.disk, num_samples, unit, "kept as they are read")))
    else:
        rows.append(("disk stage", f"off: {tiers.disk.why}"))
    rows.append(("source", _rest(held, num_samples)))
    if any(0 < tier.num_rows < num_samples for tier in (held.pool, held.ram, held.disk)):
        rows.append(("ranked", ranking.why))
    if isinstance(config.job, PlanJob) and config.job.epochs == 1 and once_only(found.order, 1) == tiers.ram.why:
        rows.append(("later epochs", "none in this run; job.epochs=2 shows what they would find in the tiers"))
    return tuple(rows)


def _granted(tier: TierRange) -> str:
    if not tier.num_rows:
        return f"none: {tier.why}"
    return f"{format_bytes(tier.num_bytes)}: {tier.why}"


def _held(tier: Held, num_samples: int, unit: str, how: str) -> str:
    if not tier.num_rows:
        return "no sample: there is no room for one"
    if tier.num_rows == num_samples:
        return f"all {num_samples:,} samples, {how}"
    part = f"{100 * tier.num_rows / num_samples:.1f} %"
    which = f"{unit} {tier.first_rank:,} .. {tier.end_rank - 1:,}"
    return f"{tier.num_rows:,} of {num_samples:,} samples ({part}), {which}, {how}"


def _rest(held: HeldTiers, num_samples: int) -> str:
    end = left = 0
    for tier in sorted((held.pool, held.ram, held.disk), key=lambda tier: tier.first_rank):
        if tier.num_rows:
            left += max(0, tier.first_rank - end)
            end = max(end, tier.end_rank)
    left += max(0, num_samples - end)
    if not left:
        return "what no tier has yet; nothing once they are full"
    return f"what no tier has: {plural(left, 'sample')} in the end"
