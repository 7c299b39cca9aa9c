"""``job=run``: drain the pipeline as a training loop would, show how it goes, keep the place, and sum up.

::

    flodl-pipe +recipe=olmo_shards job.epochs=2 job.step_time_s=0.01
    flodl-pipe +recipe=olmo_shards job.save=run.json job.save_every_steps=100 job.resume=run.json

``epochs`` and ``max_steps`` count from the first start of a run, however often it is resumed. ``resume`` names a file
that must exist, with one exception: when it is also the file to ``save``, and is not there yet, the run starts anew and
says so. The second command above can therefore be given again and again until the run is complete.

Under torchrun each rank takes its share of every step. The first rank reads and writes the save, keeps the run folder
and prints; the digest is that of all ranks, and equals that of one process.
"""

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from flodl_pipe.config.compose import instantiate_engine, run_folder
from flodl_pipe.config.job import RunJob
from flodl_pipe.config.root import Config
from flodl_pipe.jobs.describe import moved, tokens_per_sample, told
from flodl_pipe.jobs.drain import Drain, End
from flodl_pipe.jobs.interrupt import Interrupt
from flodl_pipe.jobs.ranks import Ranks, job_ranks
from flodl_pipe.jobs.save_file import SavedRun, read_saved, require_writable
from flodl_pipe.loader.ledger import json_lines
from flodl_pipe.loader.loader import Loader
from flodl_pipe.reports.figures import plural, share
from flodl_pipe.reports.metrics import peak_rss_bytes
from flodl_pipe.reports.progress import progress_view
from flodl_pipe.reports.summary import RunReport, run_sections
from flodl_pipe.reports.tables import Section, print_sections
from flodl_pipe.sources.protocol import HasArtifacts
from flodl_pipe.units import format_duration

__all__ = ["main"]

_log = logging.getLogger("flodl_pipe")

_LEDGER = "skipped.jsonl"


def main(config: Config) -> float:
    """Run the pipeline of a config.

    Args:
        config: The config; its ``job`` is a :class:`RunJob`.

    Returns:
        Samples per second of the loop since this start; 0.0 when nothing was left to do.

    Raises:
        ConfigError: if a save could not be written or would replace another file, or an epoch would have no batch.
        ResumeError: if the file to resume from is missing, damaged, or of another stream.
        FlodlPipeError: what building or iterating the loader raises.
        KeyboardInterrupt: after Ctrl-C, once the place is saved and the table printed.
        SystemExit: after SIGTERM, likewise, with status 143.
    """
    with job_ranks(config.cluster) as ranks:
        return _run(config, ranks)


def _run(config: Config, ranks: Ranks) -> float:
    job = config.job
    assert isinstance(job, RunJob)
    saved = ranks.first(lambda: _start_from(job), SavedRun, "reading job.resume")
    began = time.perf_counter()
    loader: Loader = instantiate_engine(config, keep_digest=True, num_epochs=job.epochs, joined=ranks.joined)
    with loader, Interrupt() as interrupt:
        drain = Drain(loader, job, config.sampling.drop_last, saved, ranks)
        if job.max_steps is None:  # with a limit the run may end before a part is used up
            loader.require_epochs(job.epochs)
        if ranks.is_first:
            _keep_artifacts(loader.dataset)
        _say_start(loader, drain, job)
        if ranks.several and ranks.is_first:
            print_sections((Section("Layout", ranks.layout(loader.global_batch_size)),), sys.stdout)
        view = progress_view(
            config.reports.progress if ranks.is_first else False,
            sys.stderr,
            start=drain.moment(),
            num_epochs=job.epochs,
            last_step=drain.last_step,
        )
        with view, torch.no_grad():  # nothing is trained here, so nothing has to be weighted
            end = drain.run(view, interrupt)
        report = _report(loader, drain, job, end, began, ranks)
    if ranks.is_first:
        print_sections(run_sections(report), sys.stdout)
    if end == "interrupted":
        interrupt.leave()
    return report.samples_per_s


def _start_from(job: RunJob) -> SavedRun | None:
    saved = _saved(job)
    if job.save is not None and require_writable(job.save) and job.save != job.resume:
        _log.warning(
            "%s holds the place of an earlier run and will be written over; job.resume=%s goes on from there",
            job.save,
            job.save,
        )
    return saved


def _saved(job: RunJob) -> SavedRun | None:
    if job.resume is None:
        return None
    if job.resume == job.save and not Path(job.resume).exists():
        _log.info("%s is not there yet: the run starts anew, and will be saved there", job.resume)
        return None
    return read_saved(job.resume)


def _keep_artifacts(source: object) -> None:
    """Write what belongs beside the run, such as a vocabulary, into its folder."""
    folder = run_folder()
    if folder is None:
        return
    for name, text in (source.artifacts() if isinstance(source, HasArtifacts) else {}).items():
        (folder / name).write_text(text, encoding="utf-8")
        _log.info("%s is kept in %s", name, folder)


def _say_start(loader: Loader, drain: Drain, job: RunJob) -> None:
    rows = plural(loader.global_batch_size, "row")
    if loader.num_picks is None:
        _log.info("a stream of unknown length, in steps of %s; %s", rows, drain.last_batch)
    else:
        samples, steps = plural(loader.num_samples, "sample"), plural(loader.num_batches, "step")
        _log.info("%s, %s of %s an epoch; %s", samples, steps, rows, drain.last_batch)
    _log.info("%s: %s", *loader.mode)
    if drain.steps_before:
        to_go = "the stream's end is not known"
        if drain.last_step is not None:
            left = drain.last_step - drain.steps_before
            to_go = f"{plural(left, 'step')} to go" if left else "nothing is left to do"
        _log.info(
            "resumed from %s after %s, in epoch %d of %d; %s",
            job.resume,
            plural(drain.steps_before, "step"),
            min(drain.epoch + 1, job.epochs),
            job.epochs,
            to_go,
        )


def _report(loader: Loader, drain: Drain, job: RunJob, end: End, began: float, ranks: Ranks) -> RunReport:
    counted = loader.statistics()
    mode, why = loader.mode
    return RunReport(
        end=_end_in_words(end, drain, job),
        source=told(loader.dataset),
        parts=tuple((name, _part(count, size)) for name, size, count in loader.parts()),
        mode=mode,
        why=why,
        epoch=min(drain.epoch, job.epochs - 1),
        num_epochs=job.epochs,
        num_steps=drain.num_steps,
        steps_before=drain.steps_before,
        num_rows=drain.num_rows,
        rows_before=drain.rows_before,
        tokens_per_sample=tokens_per_sample(loader.dataset),
        stored_bytes=counted.stored_bytes * (drain.num_rows - drain.rows_before) // max(1, counted.num_samples),
        took_s=drain.took_s,
        wait_s=counted.wait_s,
        first_batch_s=None if drain.first_batch_at is None else drain.first_batch_at - began,
        peak_rss_bytes=peak_rss_bytes(),
        peak_anonymous_bytes=drain.memory.most_bytes,
        start_anonymous_bytes=drain.memory.start_bytes,
        granted=loader.granted(),
        moved=moved(loader.tiers(), loader.traffic(), loader.device_name),
        skipped=_skipped(drain.skipped),
        ranks=_ranks(drain, ranks),
        digest=drain.digest,
        cursor="not saved (job.save is not set)" if job.save is None else f"saved in {job.save}",
    )


def _ranks(drain: Drain, ranks: Ranks) -> tuple[tuple[str, str], ...]:
    """Tell of each rank how many of the rows it took, and how long it waited."""
    num_rows = max(1, drain.num_rows - drain.rows_before)
    told = []
    for name, part in zip(ranks.names, drain.parts, strict=False):
        rows = f"{plural(part.num_rows, 'row')}, {share(part.num_rows, num_rows)} of all"
        told.append((name, f"{rows}; waited {share(part.wait_s, part.took_s)} of {format_duration(part.took_s)}"))
    return tuple(told)


def _skipped(ledger: Sequence[tuple[int, str]]) -> str:
    """Tell which samples could not be read, and keep the ledger beside the run."""
    folder = run_folder()
    if not ledger:
        return ""
    named = ", ".join(f"{sample:,}" for sample, _ in ledger[:5]) + (", ..." if len(ledger) > 5 else "")
    text = f"{plural(len(ledger), 'sample')} that could not be read: {named}"
    if folder is None:
        return text
    (folder / _LEDGER).write_text(json_lines(ledger), encoding="utf-8")
    return f"{text}; why is in {folder / _LEDGER}"


def _part(count: int, num_samples: int) -> str:
    return f"{plural(count, 'sample')}, {count / num_samples:.2f} times its {num_samples:,}"


def _end_in_words(end: End, drain: Drain, job: RunJob) -> str:
    if end == "finished":
        return f"finished, {plural(job.epochs, 'epoch')}"
    if end == "max_steps":
        return f"stopped at job.max_steps={job.max_steps}"
    if end == "nothing left":
        limit = f"job.epochs={job.epochs}"
        if job.max_steps is not None:
            limit += f" and job.max_steps={job.max_steps}"
        return f"nothing was left to do: the run was complete already, {limit}"
    how = "its place is lost" if job.save is None else f"go on with job.resume={job.save}"
    of = "" if drain.last_step is None else f" of {drain.last_step:,}"
    return f"interrupted after {plural(drain.num_steps, 'step')}{of}; {how}"
