"""``job=verify``: prove that the stream is the same however it is read, or show where it is not.

::

    flodl-pipe +recipe=cifar10 job=verify
    flodl-pipe +recipe=cifar10 job=verify job.max_combinations=all

One reading of the stream is the reference: one rank, on the CPU, nothing kept, no readers, never interrupted. Then come
combinations of ways to serve (from memory, a cache or a disk, on a simulated device), readers, world sizes (each rank
is a loader of this process), equal and unequal shares, and interruptions, after which everything is built anew from the
saved state, often as another setting. Each must deliver the same global batches, row by row and byte by byte. The hash
it prints is the digest of the stored rows, as ``job=digest`` prints it for the same epochs and steps.
"""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.job import VerifyJob
from flodl_pipe.config.root import Config
from flodl_pipe.jobs.checks import fail, require_alone
from flodl_pipe.jobs.describe import told
from flodl_pipe.jobs.verify_combinations import NUM_KILLS, Setting, choice, settings
from flodl_pipe.jobs.verify_data import DataCheck, check_data, limits_of
from flodl_pipe.jobs.verify_difference import Difference
from flodl_pipe.jobs.verify_possible import possible_settings
from flodl_pipe.jobs.verify_ranks import Refused
from flodl_pipe.jobs.verify_reference import Reference, read_reference
from flodl_pipe.jobs.verify_report import LeftOut, Report, verify_sections
from flodl_pipe.jobs.verify_stream import Checker
from flodl_pipe.jobs.verify_ways import Subject, sizes_of
from flodl_pipe.loader.loader import Loader
from flodl_pipe.pipeline import build_loader
from flodl_pipe.reports.progress import LINE_EVERY_S
from flodl_pipe.reports.tables import Section, print_sections

__all__ = ["main"]

_log = logging.getLogger("flodl_pipe")

_AUTO_S = 120.0
_DATA_SHARE = 0.25
"""Of the time there is, what reading every sample may take."""


def main(config: Config) -> None:
    """Check the stream of a config and print what was found.

    Args:
        config: The config; its ``job`` is a :class:`VerifyJob`.

    Raises:
        FlodlPipeError: what building and iterating the loader raises without any interruption.
        SystemExit: with status 1 if something differs.
    """
    job = config.job
    assert isinstance(job, VerifyJob)
    require_alone("verify", "It makes the ranks itself")
    began_s = time.monotonic()
    limit_s = job.max_s if job.max_s != "auto" else None if job.max_combinations == "all" else _AUTO_S
    deadline_s = None if limit_s is None else began_s + limit_s
    progress = _Progress(config.reports.progress is not False)
    with build_loader(config, context=RunContext()) as loader:
        about, global_batch = told(loader.dataset), loader.global_batch_size
        order = str(loader.state_dict()["order"])
        checks = _check_data(
            config, job, loader, None if limit_s is None else began_s + limit_s * _DATA_SHARE, progress
        )
    wrong = next((check for check in checks if check.failed), None)
    if wrong is not None:
        data = Section("Data", (*about, *((check.name, check.found) for check in checks)))
        print_sections([data], sys.stdout)
        fail(f"the data fails the check of {wrong.name}: {wrong.found}")
    with _quiet():
        run = _run(config, job, global_batch, deadline_s, progress)
    report = Report(
        source=about,
        checks=tuple((check.name, check.found) for check in checks),
        order=order,
        reference=run.reference,
        num_run=run.num_run,
        num_matrix=run.num_matrix,
        used=tuple(run.used),
        served=tuple((name, *counts) for name, counts in run.served.items()),
        num_legs=run.num_legs,
        left_out=tuple(run.left_out),
        notes=tuple(run.notes),
        num_epochs=job.epochs,
        max_steps=job.max_steps,
        took_s=time.monotonic() - began_s,
        difference=None if run.difference is None else str(run.difference),
    )
    print_sections(verify_sections(report), sys.stdout)
    if run.difference is not None:
        fail(f"the stream is not the same in {run.difference}", run.difference.cause)


@final
@dataclass
class _Run:
    """What was run so far."""

    reference: Reference
    num_matrix: int
    num_run: int = 0
    num_legs: int = 0
    used: list[Setting] = field(default_factory=list)
    served: dict[str, tuple[int, int]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    difference: Difference | None = None


def _check_data(
    config: Config, job: VerifyJob, loader: Loader, deadline_s: float | None, progress: "_Progress"
) -> list[DataCheck]:
    checks: list[DataCheck] = []
    progress.say(
        "reading the data for its fingerprint and its values" if job.read_all else "reading some samples twice"
    )
    for check in check_data(
        loader.dataset,
        limits_of(config.source),
        read_all=job.read_all,
        deadline_s=deadline_s,
        seed=job.choice,
        skips=config.source.on_error == "skip",
    ):
        checks.append(check)
        if check.failed:
            break
    return checks


def _run(config: Config, job: VerifyJob, global_batch: int, deadline_s: float | None, progress: "_Progress") -> _Run:
    everything = settings(job.choice)
    subject = Subject(config, global_batch, sizes_of(config))
    possible, refused = possible_settings(subject, everything)
    ways = [setting.way for _, setting in possible]
    base = Setting("streaming" if not ways or "streaming" in ways else ways[0])
    progress.say("reading the reference")
    reference = read_reference(subject, base, job.epochs, job.max_steps)
    run = _Run(reference, num_matrix=len(everything) * NUM_KILLS)
    run.left_out += [LeftOut(count * NUM_KILLS, reason) for reason, count in refused.items()]
    checker = Checker(subject, reference, possible, job.choice)
    wanted = len(possible) * NUM_KILLS
    if job.max_combinations != "all":
        wanted = min(wanted, job.max_combinations)
    late: dict[str, int] = {}
    out_of_time = False
    for combination in choice(possible, job.choice):
        if run.num_run + sum(late.values()) == wanted:
            break
        if deadline_s is not None and time.monotonic() > deadline_s:
            out_of_time = True
            break
        progress.now_and_then(f"{run.num_run:,} of {wanted:,} combinations are the same")
        try:
            run.difference = checker.run(combination)
        except Refused as why:
            late[str(why)] = late.get(str(why), 0) + 1
            continue
        run.num_run += 1
        run.used.append(combination.setting)
        if run.difference is not None:
            break
    _say_rest(run, job, len(possible) * NUM_KILLS, wanted, late, out_of_time=out_of_time)
    run.num_legs = checker.num_legs
    run.served = checker.served
    run.notes += checker.notes()
    return run


def _say_rest(
    run: _Run, job: VerifyJob, num_possible: int, wanted: int, late: dict[str, int], *, out_of_time: bool
) -> None:
    run.left_out += [LeftOut(count, reason) for reason, count in late.items()]
    done = run.num_run + sum(late.values())
    if run.difference is not None:
        run.left_out.append(LeftOut(num_possible - done, "a difference was found before them"))
        return
    if out_of_time:
        limit = "120 s (job.max_s=auto)" if job.max_s == "auto" else f"job.max_s={job.max_s:g}"
        run.left_out.append(LeftOut(wanted - done, f"no time for them within {limit}; null is no limit"))
    if num_possible > wanted:
        run.left_out.append(
            LeftOut(num_possible - wanted, f"not chosen, job.max_combinations={job.max_combinations}; all is every one")
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Let each warning through once: hundreds of loaders are built from one config, and all say the same."""
    said: set[str] = set()

    def once(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if record.levelno < logging.WARNING or text in said:
            return False
        said.add(text)
        return True

    _log.addFilter(once)
    try:
        yield
    finally:
        _log.removeFilter(once)


@final
class _Progress:
    """Lines on standard error, one every few seconds."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._said_s = time.monotonic()

    def say(self, text: str) -> None:
        if self._wanted:
            sys.stderr.write(f"verify: {text}\n")
            sys.stderr.flush()

    def now_and_then(self, text: str) -> None:
        now = time.monotonic()
        if now - self._said_s >= LINE_EVERY_S:
            self._said_s = now
            self.say(text)
