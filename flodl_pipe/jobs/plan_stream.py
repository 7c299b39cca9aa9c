"""The plan of a stream: what can be told of data that has no index and shows its end only when it gets there."""

from flodl_pipe.config.root import Config
from flodl_pipe.jobs.describe import batch_size_of, fields, last_batch_of_a_stream, making_rows, told
from flodl_pipe.jobs.plan_held import allowances
from flodl_pipe.jobs.plan_memory import device_section, mode_words
from flodl_pipe.jobs.plan_notes import device_notes
from flodl_pipe.loader.stream_outline import NO_TIERS, StreamOutline
from flodl_pipe.reports.figures import plural
from flodl_pipe.reports.tables import Grid, Section
from flodl_pipe.units import format_bytes

__all__ = ["plan_stream_sections"]

Rows = tuple[tuple[str, str], ...]


def plan_stream_sections(config: Config, found: StreamOutline) -> tuple[Section | Grid, ...]:
    """Return the plan of a stream, section by section.

    Args:
        config: The config.
        found: What a loader would be made of.
    """
    made, noted, device = making_rows(found.making), _notes(config, found), found.device
    return (
        Section("Source", _source(config, found)),
        Section("Order and steps", _steps(config, found)),
        *((Section("Batch", made),) if made else ()),
        Section("Memory", _memory(found)),
        *(() if device is None else (device_section(device, allowances(device), set_rows=None),)),
        Section("Tiers", (("all", f"off: {NO_TIERS}"),)),
        Section("Reading", _reading(found)),
        Section("Bottleneck", (("read probe", "not measured: a stream is read in its own order only"),)),
        *((Section("Notes", noted),) if noted else ()),
    )


def _source(config: Config, found: StreamOutline) -> Rows:
    stream = found.source
    fingerprint, estimate = stream.fingerprint(), stream.num_samples_estimate
    return (
        ("kind", config.source.kind),
        *told(stream),
        ("samples", "not known before the end" if estimate is None else f"about {estimate:,}, from sizes"),
        ("stored", fields(stream.spec)),
        ("delivered", fields(found.making.rows)),
        ("fingerprint", fingerprint.digest),
    )


def _steps(config: Config, found: StreamOutline) -> Rows:
    global_batch, estimate = found.stream.global_batch, found.source.num_samples_estimate
    steps = "not known before the end" if estimate is None else f"about {estimate // global_batch:,}"
    lanes = plural(found.source.num_lanes, "lane")
    return (
        ("order", found.order_tag),
        ("turns", f"{lanes}, {plural(found.turn_rows, 'row')} from each in turn"),
        ("batch", f"{batch_size_of(config, global_batch)}, {format_bytes(found.layout.slot_bytes)} delivered"),
        ("steps an epoch", steps),
        ("last batch", last_batch_of_a_stream(config.sampling.drop_last)),
    )


def _memory(found: StreamOutline) -> Rows:
    plan, buffers = found.plan, found.source.buffer_bytes
    together = f"{format_bytes(plan.ring_bytes + buffers)} of {format_bytes(plan.share.num_bytes)}"
    return (
        ("mode", mode_words(found)),
        ("stream buffers", format_bytes(buffers)),
        ("ring", f"{format_bytes(plan.ring_bytes)}: {plan.num_slots} batches, and the rows of one"),
        ("together", f"{together} that this process may hold"),
        ("host share", str(plan.share)),
    )


def _reading(found: StreamOutline) -> Rows:
    plan, estimate = found.plan, found.source.num_samples_estimate
    every = "all of the data, front to back"
    if estimate is not None:
        every += f", about {format_bytes(estimate * found.source.spec.row_bytes)} as rows"
    if not plan.num_readers:
        return (
            ("reader", "none: the training loop reads inside next()"),
            ("prefetch", "nothing"),
            ("epochs read", every),
        )
    return (
        ("reader", "1 thread: the rows of a stream come one after the other"),
        ("prefetch", f"up to {plural(plan.depth, 'batch')} ahead of the loop"),
        ("epochs read", every),
    )


def _notes(config: Config, found: StreamOutline) -> Rows:
    loader = config.loader
    notes = device_notes(loader, found.device)
    if loader.disk_stage:
        notes.append(("loader.disk_stage", f"{format_bytes(loader.disk_stage)}, no effect: {NO_TIERS}"))
    if loader.readers != "auto" and loader.readers > 1:
        notes.append(("loader.readers", f"{loader.readers}, read as 1: a stream has one reader"))
    if loader.prefetch != "auto" and not found.plan.num_readers:
        notes.append(("loader.prefetch", f"{loader.prefetch}, no effect: without a reader nothing is read ahead"))
    return tuple(notes)
