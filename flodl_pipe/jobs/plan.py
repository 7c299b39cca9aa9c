"""``job=plan``: say what a run would do, without doing it; the EXPLAIN of a pipeline.

Headers are read, the blocks of the files that the fingerprint covers, and, for a second at most, some samples to see
how long reading takes (``job.probe``). No reader starts, no memory is granted, nothing is started on a device. The
figures come from the same outline that a loader is built from, and what a run would refuse is refused here.
"""

import sys

from flodl_pipe.config.job import PlanJob
from flodl_pipe.config.root import Config
from flodl_pipe.jobs.describe import batch_size_of, fields, last_batch, making_rows, told
from flodl_pipe.jobs.plan_cluster import cluster_sections, unused_keys
from flodl_pipe.jobs.plan_epochs import MOST_EPOCHS, epoch_grid
from flodl_pipe.jobs.plan_held import HeldTiers, allowances, held_tiers
from flodl_pipe.jobs.plan_memory import device_section, memory_rows, tier_rows
from flodl_pipe.jobs.plan_notes import notes
from flodl_pipe.jobs.plan_probe import ReadProbe, probe_reads
from flodl_pipe.jobs.plan_speed import bottleneck, pace_of, speeds_of
from flodl_pipe.jobs.plan_stream import plan_stream_sections
from flodl_pipe.jobs.plan_work import Uploads, epochs_of, pieces_of, why_not_foretold
from flodl_pipe.loader.outline import Outline
from flodl_pipe.loader.stream_outline import StreamOutline
from flodl_pipe.loader.tiers import ranking_for
from flodl_pipe.pipeline import outline
from flodl_pipe.reports.figures import plural
from flodl_pipe.reports.tables import Grid, Section, print_sections
from flodl_pipe.sources.protocol import BundledSource, is_dear
from flodl_pipe.sources.stream_protocol import Stream
from flodl_pipe.staging.expect import EpochWork
from flodl_pipe.units import format_bytes

__all__ = ["main", "plan_sections"]

Rows = tuple[tuple[str, str], ...]

_ALONE = "one rank that runs alone, with its own global batch; the described hosts come after it"


def main(config: Config) -> None:
    """Print what a run of a config would do.

    Args:
        config: The config.

    Raises:
        FlodlPipeError: what building the loader would raise.
    """
    job, unused = config.job, unused_keys(config)
    if isinstance(job, PlanJob) and job.num_samples is not None:
        print_sections(cluster_sections(config, None), sys.stdout)
        return
    found = outline(config)
    try:
        if isinstance(job, PlanJob) and job.max_steps is None and isinstance(found, Outline):
            found.require_epochs(job.epochs)
        sections = (
            plan_stream_sections(config, found) if isinstance(found, StreamOutline) else plan_sections(config, found)
        )
        here = (Section("This machine", (("planned as", _ALONE),)),) if config.cluster.hosts else ()
        beside = (Section("Cluster", unused),) if unused else cluster_sections(config, found)
        print_sections((*here, *sections, *beside), sys.stdout)
    finally:
        if isinstance(found.source, BundledSource | Stream):
            found.source.close()


def plan_sections(config: Config, found: Outline) -> tuple[Section | Grid, ...]:
    """Return the plan, section by section.

    Args:
        config: The config.
        found: What a loader would be made of.
    """
    device = found.device
    epochs, step_time_s, probes = _of_job(config, found)
    allowed = None if device is None else allowances(device)
    held = held_tiers(found, allowed)
    fills = held.ram.ahead or held.pool.ahead
    probe = probe_reads(found, fills=fills) if probes else ReadProbe(why="job.probe=false")
    speeds = speeds_of(config, found, probe, step_time_s)
    held = held_tiers(found, allowed, pace_of(speeds, found))
    unknown = why_not_foretold(found)
    work = [] if unknown else expected_work(found, held, min(epochs, MOST_EPOCHS))
    made, noted = making_rows(found.making), notes(config, found)
    on_device = device is not None
    foretold = (
        epoch_grid(work, epochs, on_device=on_device) if work else Section("Epochs", (("not foretold", unknown),))
    )
    return (
        Section("Source", _source(config, found)),
        Section("Order and steps", _steps(config, found)),
        *((Section("Batch", made),) if made else ()),
        Section("Memory", memory_rows(found)),
        *(() if device is None or allowed is None else (device_section(device, allowed, set_rows=len(found.source)),)),
        Section("Tiers", tier_rows(config, found, held)),
        foretold,
        Section("Reading", _reading(config, found, work)),
        Section("Bottleneck", bottleneck(speeds, max(1, found.steps.num_steps()), work)),
        *((Section("Notes", noted),) if noted else ()),
    )


def expected_work(found: Outline, held: HeldTiers, num_epochs: int) -> list[EpochWork]:
    """Return what the first epochs of a run move.

    Args:
        found: What a loader would be made of.
        held: What its tiers hold.
        num_epochs: How many epochs.
    """
    device = found.device
    uploads = None
    if device is not None:
        row_bytes = found.layout.spec.row_bytes
        uploads = Uploads(row_bytes, has_digest=device.host.rows is not None, in_order=device.decision == "resident")
    pieces = pieces_of(found, ranking_for(found.source, found.order, found.steps))
    return epochs_of(pieces, held.pool, held.ram, held.disk, num_epochs, uploads=uploads)


def _of_job(config: Config, found: Outline) -> tuple[int, float, bool]:
    """Return the epochs of the run, the time of a step, and whether to probe."""
    job = config.job
    if not isinstance(job, PlanJob):
        return 1, 0.0, False
    epochs = job.epochs
    if job.max_steps is not None:
        epochs = min(epochs, -(-job.max_steps // max(1, found.steps.num_steps())))
    return epochs, job.step_time_s, job.probe


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


def _reading(config: Config, found: Outline, work: list[EpochWork]) -> Rows:
    plan = found.plan
    if plan.num_readers:
        parts = f", each split among {plan.step_parts} readers" if plan.step_parts > 1 else ""
        group = f"in groups of {plan.group_steps}" if plan.group_steps > 1 else "one by one"
        how = plural(plan.num_readers, "process" if config.loader.reader_kind == "process" else "thread")
        ahead = f"up to {plural(plan.depth, 'batch')} ahead of the loop, read {group}{parts}"
        if plan.paced:  # a sample may take long
            ahead += ", growing from one step as far as measured times allow"
    else:
        how, ahead = "none: the training loop reads inside next()", "nothing"
    first, later = _volumes(found, work)
    return (("readers", how), ("prefetch", ahead), ("first epoch reads", first), ("later epochs read", later))


def _volumes(found: Outline, work: list[EpochWork]) -> tuple[str, str]:
    """Return what the first epoch reads from the source, and the later ones, in words."""
    plan, steps = found.plan, found.steps
    num_rows = steps.num_picks if steps.drop_last is False else steps.num_steps() * steps.global_batch
    epoch_bytes = num_rows * found.source.spec.row_bytes
    if found.device is None and plan.mode == "resident" and not is_dear(found.source):
        later = "nothing: batches are gathered from memory"
        if not plan.resident_bytes:
            return later, later
        first = f"{format_bytes(plan.resident_bytes)}, front to back"
        if plan.num_readers:
            first += f", and the batches before that is done (at most {format_bytes(epoch_bytes)} more)"
        return first, later
    if not work:
        first = later = f"{format_bytes(epoch_bytes)}, row by row"
        return first, later
    return _volume(work[0]), _volume(work[-1])


def _volume(work: EpochWork) -> str:
    parts = []
    if work.source_bytes >= 1:
        parts.append(f"{format_bytes(work.source_bytes)}, row by row")
    if work.fill_bytes >= 1:
        parts.append(f"{format_bytes(work.fill_bytes)} front to back, to fill tiers ahead")
    return "; ".join(parts) if parts else "nothing: the tiers have every row"
