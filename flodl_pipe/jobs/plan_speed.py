"""Who sets the pace: what was measured of reading, what is known of copying, and the step time that a config states."""

from dataclasses import dataclass
from typing import final

from flodl_pipe.config.root import Config
from flodl_pipe.jobs.plan_held import Pace
from flodl_pipe.jobs.plan_probe import ReadProbe
from flodl_pipe.loader.outline import Outline
from flodl_pipe.loader.stream_outline import StreamOutline
from flodl_pipe.reports.figures import rate
from flodl_pipe.staging.expect import EpochWork, expected_bottleneck
from flodl_pipe.units import format_bytes, format_duration

__all__ = ["Speeds", "bottleneck", "pace_of", "speeds_of"]

Rows = tuple[tuple[str, str], ...]

_SIMULATED = "simulated"


@final
@dataclass(frozen=True)
class Speeds:
    """How fast each stage is.

    Attributes:
        probe: What was measured of reading.
        num_readers: Readers that read at once; 0: the loop reads by itself.
        is_on_device: Whether batches are copied to a device.
        copy_bytes_per_s: To the device; None where that is not known.
        latency_s: What each copy takes beside.
        step_s: A training step; None where it is not stated.
    """

    probe: ReadProbe
    num_readers: int
    is_on_device: bool
    copy_bytes_per_s: float | None
    latency_s: float
    step_s: float | None

    def read_s(self, rows: float) -> float:
        """Return the time of reading rows, all readers together."""
        return rows * self.probe.row_s / max(1, self.num_readers)

    def copy_s(self, num_bytes: float) -> float:
        """Return the time of copying a step; 0.0 where it is not known."""
        if self.copy_bytes_per_s is None or not num_bytes:
            return 0.0
        return num_bytes / self.copy_bytes_per_s + self.latency_s


def speeds_of(config: Config, found: Outline | StreamOutline, probe: ReadProbe, step_time_s: float) -> Speeds:
    """Return what is known of each stage.

    Args:
        config: The config.
        found: What a loader would be made of.
        probe: What was measured of reading.
        step_time_s: ``job.step_time_s``; 0.0 is not stated.
    """
    device, loader = found.device, config.loader
    shared = found.source.thread_safe or loader.reader_kind == "process" if isinstance(found, Outline) else False
    readers = found.plan.num_readers
    is_simulated = device is not None and device.shared.device.name.startswith(_SIMULATED)
    return Speeds(
        probe,
        readers if shared else min(readers, 1),
        device is not None,
        float(loader.simulated.copy_bytes_per_s) if is_simulated else None,
        loader.simulated.latency_s if is_simulated else 0.0,
        step_time_s or None,
    )


def pace_of(speeds: Speeds, found: Outline) -> Pace:
    """Return how fast a first epoch goes, all rows of which are read."""
    step_rows = found.steps.batch_rows
    read_s = speeds.read_s(step_rows)
    copy_s = speeds.copy_s(step_rows * found.layout.spec.row_bytes) if speeds.is_on_device else 0.0
    step_s = speeds.step_s or 0.0
    loop_s = read_s + copy_s + step_s if not speeds.num_readers else max(read_s, copy_s, step_s)
    return Pace(read_s, loop_s, speeds.probe.fill_bytes_per_s)


def bottleneck(speeds: Speeds, num_steps: int, work: list[EpochWork] | None) -> Rows:
    """Return what limits the loop, in words.

    Args:
        speeds: What is known.
        num_steps: Steps of an epoch.
        work: What each epoch moves; None where that is not foretold.
    """
    rows = [("read probe", _probe(speeds.probe))]
    if speeds.is_on_device:
        rows.append(("copy speed", _copy(speeds)))
    if speeds.step_s is None:
        rows.append(("step time", "not stated (job.step_time_s)"))
    else:
        rows.append(("step time", f"{format_duration(speeds.step_s)} (job.step_time_s)"))
    if speeds.probe.row_s and work:
        first, last = work[0], work[-1]
        rows.append(("epoch 1", _words(speeds, first, num_steps)))
        if len(work) > 1:
            rows.append(("later epochs", _words(speeds, last, num_steps)))
    return tuple(rows)


def _words(speeds: Speeds, work: EpochWork, num_steps: int) -> str:
    read_s = speeds.read_s(work.source_rows / num_steps)
    copy_s = speeds.copy_s(work.link_bytes / num_steps)
    if not speeds.num_readers:
        times = [f"reading {format_duration(read_s)}"]
        if speeds.is_on_device:
            times.append(f"copying {format_duration(copy_s)}")
        times.append(
            "and the step's own time" if speeds.step_s is None else f"training {format_duration(speeds.step_s)}"
        )
        return f"one after the other, for without readers nothing overlaps: {', '.join(times)} a step"
    if not (read_s or copy_s or speeds.step_s):
        return "nothing is read or copied: the loop runs at the speed of the step"
    words = expected_bottleneck(read_s, copy_s, speeds.step_s)[1]
    unknown = speeds.is_on_device and speeds.copy_bytes_per_s is None and work.link_bytes > 0
    return f"{words}, copying left out" if unknown else words


def _probe(probe: ReadProbe) -> str:
    if not probe.num_rows:
        return f"not measured: {probe.why}"
    per_s = probe.num_rows / max(probe.took_s, 1e-9)
    text = (
        f"{probe.num_rows:,} rows, {format_bytes(probe.num_bytes)}, in the run's order by one thread in "
        f"{format_duration(probe.took_s)}: {rate(per_s)} rows/s, as disk and page cache are now"
    )
    if probe.fill_bytes_per_s:
        text += f"; front to back {format_bytes(probe.fill_bytes_per_s)}/s"
    return text


def _copy(speeds: Speeds) -> str:
    if speeds.copy_bytes_per_s is None:
        return "not measured: nothing is started on the device"
    each = format_duration(speeds.latency_s)
    return f"{format_bytes(speeds.copy_bytes_per_s)}/s, and {each} a copy, as loader.simulated says"
