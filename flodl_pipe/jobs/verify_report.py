"""What ``job=verify`` prints."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

from flodl_pipe.jobs.verify_combinations import NUM_KILLS, Setting
from flodl_pipe.jobs.verify_reference import Reference
from flodl_pipe.reports.figures import plural
from flodl_pipe.reports.tables import Section
from flodl_pipe.units import format_duration

__all__ = ["LeftOut", "Report", "verify_sections"]

Rows = tuple[tuple[str, str], ...]


@final
@dataclass(frozen=True)
class LeftOut:
    """Combinations that were not run, and why."""

    count: int
    why: str


@final
@dataclass(frozen=True)
class Report:
    """Everything that is printed.

    Attributes:
        source: What the source tells.
        checks: Name and finding of each check of the data.
        order: Tag of the order.
        reference: The stream that was compared with.
        num_run: Combinations that were run.
        num_matrix: Combinations there are.
        used: The first setting of each that was run.
        served: Of each tier its name, the rows it was asked for, and those it had.
        num_legs: Loaders' lives, over all combinations.
        left_out: What was not run.
        notes: What else should be known.
        num_epochs: Epochs that were asked for.
        max_steps: Most steps that were asked for.
        took_s: Seconds.
        difference: The first difference, in words; None: there is none.
    """

    source: Rows
    checks: Rows
    order: str
    reference: Reference
    num_run: int
    num_matrix: int
    used: tuple[Setting, ...]
    served: tuple[tuple[str, int, int], ...]
    num_legs: int
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    num_epochs: int
    max_steps: int | None
    took_s: float
    difference: str | None


def verify_sections(report: Report) -> tuple[Section, ...]:
    """Return the tables."""
    left_out = tuple((f"{left.count:,}", left.why) for left in report.left_out if left.count)
    return (
        Section("Data", (*report.source, *report.checks)),
        Section("Compared", _compared(report)),
        Section("Left out", left_out or (("nothing", "the whole matrix was run"),)),
        Section("Result", _result(report)),
    )


def _compared(report: Report) -> Rows:
    reference, used = report.reference, report.used
    steps = reference.steps
    epochs = steps[-1].epoch + 1 if steps else 0
    ends = len(reference.ends) + reference.is_whole
    first = f"the first {f'{epochs} epochs' if epochs > 1 else 'epoch'}"
    at = f"of {plural(epochs, 'epoch') if epochs == report.num_epochs else first}"
    crossed = (
        f"{plural(ends, 'end')} of an epoch among them"
        if ends
        else (f"no end of an epoch among them (job.max_steps={report.max_steps}; null is no limit)")
    )
    rows = sum(len(step.rows) for step in steps)
    return (
        ("order", report.order),
        ("steps", f"{plural(len(steps), 'step')} {at}, {crossed}"),
        ("batch", f"{plural(reference.global_batch, 'row')} over all ranks; {plural(rows, 'row')} a combination"),
        ("reference", f"{reference.setting}, not interrupted"),
        ("combinations", f"{report.num_run:,} of {report.num_matrix:,}; built anew {report.num_legs:,} times"),
        ("ways", _counted(used, lambda setting: setting.way)),
        ("readers", _counted(used, lambda setting: setting.readers)),
        ("world sizes", _counted(used, lambda setting: setting.world_size)),
        ("shares", _counted(used, lambda setting: "equal" if setting.is_equal else "unequal")),
        *_served(report),
        ("kill points", f"{NUM_KILLS} of each setting, each with up to two more after it"),
    )


def _result(report: Report) -> Rows:
    reference = report.reference
    notes = tuple(("note", note) for note in report.notes)
    took = ("took", format_duration(report.took_s))
    if report.difference is not None:
        return ("DIFFERENT", report.difference), *notes, took
    return (
        ("hash", reference.digest.hex()),
        ("", "stored rows with epoch, position, sample and repeat, as job=digest has them"),
        ("batches", reference.batches.hex()),
        ("", "delivered tensors with sample, repeat and validity; weights and cursors were compared too"),
        *notes,
        took,
    )


def _served(report: Report) -> Rows:
    told = [f"{name} {hits:,} of {rows:,}" for name, rows, hits in report.served if rows]
    return (("rows kept", f"{', '.join(told)}: rows that each had of those asked of it"),) if told else ()


def _counted(used: Iterable[Setting], what: Callable[[Setting], object]) -> str:
    counts = Counter(what(setting) for setting in used)
    return ", ".join(f"{key}: {counts[key]:,}" for key in sorted(counts, key=str)) or "none"
