"""``job=plan``: say what a run would do, without doing it.

Headers are read, and the blocks of the files that the fingerprint covers; no reader starts and no memory is taken. The
figures come from the same outline that a loader is built from, and what a run would refuse is refused here.
"""

import sys

from flodl_pipe.config.job import PlanJob
from flodl_pipe.config.root import Config
from flodl_pipe.jobs.describe import batch_size_of, fields, last_batch, making_rows, told
from flodl_pipe.jobs.plan_stream import plan_stream_sections
from flodl_pipe.loader.outline import Outline
from flodl_pipe.loader.stream_outline import StreamOutline
from flodl_pipe.pipeline import outline
from flodl_pipe.reports.figures import plural, size
from flodl_pipe.reports.tables import Section, print_sections
from flodl_pipe.sources.protocol import BundledSource
from flodl_pipe.sources.stream_protocol import Stream
from flodl_pipe.units import format_bytes

__all__ = ["main", "plan_sections"]

Rows = tuple[tuple[str, str], ...]


def main(config: Config) -> None:
    """Print what a run of a config would do.

    Args:
        config: The config.

    Raises:
        FlodlPipeError: what building the loader would raise.
    """
    found = outline(config)
    try:
        job = config.job
        if isinstance(job, PlanJob) and job.max_steps is None and isinstance(found, Outline):
            found.require_epochs(job.epochs)
        if isinstance(found, StreamOutline):
            sections = plan_stream_sections(config, found)
        else:
            sections = plan_sections(config, found)
        print_sections(sections, sys.stdout)
    finally:
        if isinstance(found.source, BundledSource | Stream):
            found.source.close()


def plan_sections(config: Config, found: Outline) -> tuple[Section, ...]:
    """Return the plan, section by section.

    Args:
        config: The config.
        found: What a loader would be made of.
    """
    made = making_rows(found.making)
    return (
        Section("Source", _source(config, found)),
        Section("Order and steps", _steps(config, found)),
        *((Section("Batch", made),) if made else ()),
        Section("Memory", _memory(found)),
        Section("Reading", _reading(found)),
        Section("Notes", _notes(config, found)),
    )


def _source(config: Config, found: Outline) -> Rows:
    source = found.source
    fingerprint = source.fingerprint()
    covers = "every byte" if fingerprint.full else fingerprint.covers
    return (
        ("kind", config.source.kind),
        *told(source),
        ("samples", f"{len(source):,}"),
        ("stored", fields(source.spec)),
        ("delivered", fields(found.making.rows)),
        ("fingerprint", f"{fingerprint.digest} over {covers}"),
    )


def _steps(config: Config, found: Outline) -> Rows:
    steps = found.steps
    num_picks, num_samples = steps.num_picks, len(found.source)
    drawn = (("picks an epoch", f"{num_picks:,} of {num_samples:,} samples"),) if num_picks != num_samples else ()
    return (
        ("order", found.order.tag),
        ("batch", f"{batch_size_of(config, steps.global_batch)}, {format_bytes(found.layout.slot_bytes)} delivered"),
        *drawn,
        ("steps an epoch", f"{steps.num_steps():,}"),
        ("last batch", last_batch(steps)),
    )


def _memory(found: Outline) -> Rows:
    plan = found.plan
    resident = size(plan.resident_bytes) if plan.resident_bytes else "none"
    held = (("source", f"{format_bytes(found.held_bytes)}, held by the source itself"),) if found.held_bytes else ()
    total = plan.ring_bytes + plan.resident_bytes + found.held_bytes
    return (
        ("mode", f"{plan.mode}: {plan.why}"),
        *held,
        ("resident set", resident),
        ("ring", f"{format_bytes(plan.ring_bytes)}: {plan.num_slots} batches, and the rows of a group per reader"),
        ("together", f"{format_bytes(total)} of {format_bytes(plan.share.num_bytes)} that this process may hold"),
        ("host share", str(plan.share)),
    )


def _reading(found: Outline) -> Rows:
    plan, steps = found.plan, found.steps
    if plan.num_readers:
        parts = f", each split among {plan.step_parts} readers" if plan.step_parts > 1 else ""
        group = f"in groups of {plan.group_steps}" if plan.group_steps > 1 else "one by one"
        how = plural(plan.num_readers, "thread")
        ahead = f"up to {plural(plan.depth, 'batch')} ahead of the loop, read {group}{parts}"
    else:
        how, ahead = "none: the training loop reads inside next()", "nothing"
    num_rows = steps.num_picks if steps.drop_last is False else steps.num_steps() * steps.global_batch
    epoch_bytes = num_rows * found.source.spec.row_bytes
    if plan.mode == "streaming":
        first = later = f"{format_bytes(epoch_bytes)}, row by row"
    elif not plan.resident_bytes:
        first = later = "nothing: batches are gathered from memory"
    else:
        first = f"{format_bytes(plan.resident_bytes)}, front to back"
        if plan.num_readers:
            first += f", and the batches before that is done (at most {format_bytes(epoch_bytes)} more)"
        later = "nothing: batches are gathered from memory"
    return (("readers", how), ("prefetch", ahead), ("first epoch reads", first), ("later epochs read", later))


def _notes(config: Config, found: Outline) -> Rows:
    """Return what was asked for and has no effect here, or another one than asked."""
    loader, plan = config.loader, found.plan
    notes = [("loader.vram_max_usage", f"{loader.vram_max_usage:g}, checked; no effect on a CPU")]
    if loader.global_batch_size is not None:
        notes.append(("loader.batch_size", f"{loader.batch_size}, no effect: loader.global_batch_size decides"))
    if loader.prefetch != "auto" and not plan.num_readers:
        notes.append(("loader.prefetch", f"{loader.prefetch}, no effect: without readers nothing is read ahead"))
    if not config.sampling.shuffle:
        notes.append(("sampling.seed", f"{config.sampling.seed}, no effect on the order: sampling.shuffle=false"))
    notes += [(f"sampling.{key}", text) for key, text in config.sampling.notes()]
    notes += [(f"source.{key}", text) for key, text in config.source.notes()]
    return tuple(notes)
