"""The closing table of a run: what was done, how fast, with how much memory, and where to go on."""

from dataclasses import dataclass
from typing import final

from flodl_pipe.reports.figures import rate, share, short_rate
from flodl_pipe.reports.tables import Section
from flodl_pipe.units import format_bytes, format_count, format_duration

__all__ = ["RunReport", "run_sections"]


@final
@dataclass(frozen=True)
class RunReport:
    """What happened in a run. Counts named ``..._before`` are those of earlier starts that it was resumed from.

    Attributes:
        end: How it ended, in words.
        source: What to tell about the data, as pairs of name and value.
        parts: What came of each part of a mixture, as pairs of name and value; empty for other sources.
        mode: ``resident`` or ``streaming``.
        why: Reason for the mode.
        epoch: Epoch it stands in, counted from 0.
        num_epochs: Epochs of the whole run.
        num_steps: Steps of the whole run so far.
        steps_before: Those of earlier starts.
        num_rows: Samples of the whole run so far.
        rows_before: Those of earlier starts.
        tokens_per_sample: Tokens of a sample; 0 where samples are no tokens.
        stored_bytes: Bytes of the samples before widening.
        took_s: Seconds in the loop.
        wait_s: Seconds of these that the loop waited.
        first_batch_s: Seconds from the start of building the loader to its first batch; None without one.
        peak_rss_bytes: Most physical memory of the process.
        peak_anonymous_bytes: Most private memory of the process, as seen.
        start_anonymous_bytes: Private memory when the loop began.
        granted: Bytes granted to the loader, by purpose.
        moved: Where rows came from since this start, as pairs of name and value; empty where nobody counts.
        skipped: Samples that could not be read, in words; empty where none were.
        ranks: What each rank did, as pairs of name and value; empty for one process.
        digest: Digest of the whole run so far.
        cursor: Where the cursor was saved, in words.
    """

    end: str
    source: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, str], ...]
    mode: str
    why: str
    epoch: int
    num_epochs: int
    num_steps: int
    steps_before: int
    num_rows: int
    rows_before: int
    tokens_per_sample: int
    stored_bytes: int
    took_s: float
    wait_s: float
    first_batch_s: float | None
    peak_rss_bytes: int
    peak_anonymous_bytes: int
    start_anonymous_bytes: int
    granted: tuple[tuple[str, int], ...]
    moved: tuple[tuple[str, str], ...]
    skipped: str
    ranks: tuple[tuple[str, str], ...]
    digest: str
    cursor: str

    @property
    def samples_per_s(self) -> float:
        """Samples per second since this start."""
        return (self.num_rows - self.rows_before) / self.took_s if self.took_s > 0 else 0.0


def run_sections(report: RunReport) -> tuple[Section, ...]:
    """Return the closing table of a run, section by section."""
    data = Section("Data", (*report.source, ("mode", f"{report.mode}: {report.why}")))
    run = Section(
        "Run",
        (
            ("end", report.end),
            ("epoch", f"{report.epoch + 1} of {report.num_epochs}"),
            ("steps", _counted(report.num_steps, report.steps_before)),
            ("samples", _counted(report.num_rows, report.rows_before)),
            *((("skipped", report.skipped),) if report.skipped else ()),
            ("digest", report.digest),
            ("cursor", report.cursor),
        ),
    )
    parts = (Section("Parts", report.parts),) if report.parts else ()
    ranks = (Section("Ranks", report.ranks),) if report.ranks else ()
    done = (data, run, *parts, *ranks)
    of_first = f" of {report.ranks[0][0]}" if report.ranks else ""  # of several ranks, the one that tells
    tiers = (Section(f"Tiers{of_first}", report.moved),) if report.moved else ()
    if report.first_batch_s is None:
        return *done, *tiers, _memory(report, of_first)
    since = " since this start" if report.steps_before else ""
    speed = Section(
        "Speed",
        (
            ("time", f"{format_duration(report.took_s)}{since}"),
            ("rate", _rates(report)),
            ("wait share", f"{share(report.wait_s, report.took_s)} of that time the loop{of_first} waited for data"),
            ("first batch", f"after {format_duration(report.first_batch_s)}, building the loader included"),
        ),
    )
    return *done, *tiers, speed, _memory(report, of_first)


def _memory(report: RunReport, of_first: str) -> Section:
    seen, before = format_bytes(report.peak_anonymous_bytes), format_bytes(report.start_anonymous_bytes)
    granted = ", ".join(f"{purpose} {format_bytes(num_bytes)}" for purpose, num_bytes in report.granted if num_bytes)
    return Section(
        f"Memory{of_first}",
        (
            ("peak RSS", f"{format_bytes(report.peak_rss_bytes)}, Python and its libraries included"),
            ("peak anonymous", f"{seen} seen, {before} when the loop began"),
            ("granted", granted),
        ),
    )


def _counted(total: int, before: int) -> str:
    parts = f" ({format_count(before)} before, {format_count(total - before)} now)" if before else ""
    return f"{format_count(total)}{parts}"


def _rates(report: RunReport) -> str:
    rates = [f"{rate(report.samples_per_s)} samples/s"]
    if report.tokens_per_sample:
        rates.append(f"{short_rate(report.samples_per_s * report.tokens_per_sample)} tokens/s")
    if report.took_s > 0:
        rates.append(f"{format_bytes(report.stored_bytes / report.took_s)}/s as stored")
    return ", ".join(rates)
