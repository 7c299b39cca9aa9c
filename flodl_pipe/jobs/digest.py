"""``job=digest``: go through the data and print one number for everything that was delivered.

::

    flodl-pipe +recipe=olmo_shards job=digest
    flodl-pipe +recipe=olmo_shards job=digest job.expect=0123456789abcdef0123456789abcdef
    flodl-pipe +recipe=olmo_shards job=digest job.world_size=2 job.rank=1 loader.global_batch_size=32 'job.add=[...]'

A digest is the sum of a hash of every delivered row: its epoch, position, sample, repeat and stored bytes. It is the
number that ``job=run`` prints. Digests of parts that do not overlap (ranks, what came before an interruption and what
came after it) add up to the digest of the whole; ``add`` does the sum.
"""

import sys

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.job import DigestJob, RunJob
from flodl_pipe.config.root import Config
from flodl_pipe.jobs.checks import fail, require_alone
from flodl_pipe.jobs.describe import told
from flodl_pipe.jobs.drain import Drain, End
from flodl_pipe.jobs.interrupt import Interrupt
from flodl_pipe.jobs.ranks import Ranks
from flodl_pipe.jobs.save_file import read_saved
from flodl_pipe.keyed.digest import Digest
from flodl_pipe.loader.loader import Loader
from flodl_pipe.pipeline import build_loader
from flodl_pipe.reports.figures import plural
from flodl_pipe.reports.progress import progress_view
from flodl_pipe.reports.tables import Section, print_sections

__all__ = ["main"]

Rows = tuple[tuple[str, str], ...]


def main(config: Config) -> None:
    """Print the digest of what a config delivers.

    Args:
        config: The config; its ``job`` is a :class:`DigestJob`.

    Raises:
        ResumeError: if the file to resume from is missing, damaged, or of another stream.
        FlodlPipeError: what building or iterating the loader raises.
        KeyboardInterrupt: after Ctrl-C, once the digest so far is printed.
        SystemExit: with status 1 if another digest was expected; with 143 after SIGTERM.
    """
    job = config.job
    assert isinstance(job, DigestJob)
    require_alone("digest", "job.rank and job.world_size choose a rank's part")
    saved = None if job.resume is None else read_saved(job.resume)
    loader = build_loader(config, keep_digest=True, context=RunContext(job.rank, job.world_size))
    with loader, Interrupt() as interrupt:
        if job.max_steps is None:  # with a limit the run may end before a part is used up
            loader.require_epochs(job.epochs)
        run = RunJob(epochs=job.epochs, max_steps=job.max_steps, resume=job.resume)
        drain = Drain(loader, run, config.sampling.drop_last, saved, Ranks())
        view = progress_view(
            config.reports.progress,
            sys.stderr,
            start=drain.moment(),
            num_epochs=job.epochs,
            last_step=drain.last_step,
        )
        with view:
            end = drain.run(view, interrupt)
        digest = loader.statistics().digest
        assert digest is not None
        total = _sum(digest, job.add)
        sections = (
            Section("Data", (*told(loader.dataset), ("fingerprint", str(loader.dataset.fingerprint())))),
            Section("Delivered", _delivered(loader, drain, job, end)),
            Section("Digest", _digests(job, digest, total)),
        )
    print_sections(sections, sys.stdout)
    if end == "interrupted":
        interrupt.leave()
    if job.expect not in (None, total):
        fail(
            f"the digest is {total}, and job.expect={job.expect}; compare data, order and steps, which this job and "
            "job=plan print, with those of the run that the expected digest is from; job=verify finds out whether "
            "this recipe can be repeated"
        )


def _sum(digest: str, others: list[str]) -> str:
    total = Digest.from_hex(digest, 0)
    for other in others:
        total.merge(Digest.from_hex(other, 0))
    return total.hex()


def _delivered(loader: Loader, drain: Drain, job: DigestJob, end: End) -> Rows:
    counted = loader.statistics()
    steps = plural(counted.num_steps, "step")
    if drain.steps_before:
        steps += f", after the {plural(drain.steps_before, 'step')} before {job.resume} was saved"
    ends = {
        "finished": plural(job.epochs, "epoch"),
        "max_steps": f"up to job.max_steps={job.max_steps}",
        "interrupted": "interrupted: this is the digest of a part",
        "nothing left": "nothing was left to do",
    }
    part = () if job.world_size == 1 else (("part", f"rank {job.rank} of {job.world_size}"),)
    return (
        ("order", str(loader.state_dict()["order"])),
        ("batch", f"{plural(loader.global_batch_size, 'row')} over all ranks; {drain.last_batch}"),
        *part,
        ("end", ends[end]),
        ("steps", steps),
        ("rows", f"{counted.num_samples:,}"),
    )


def _digests(job: DigestJob, digest: str, total: str) -> Rows:
    rows = [("digest", digest)]
    if job.add:
        rows += [("", f"+ {other}") for other in job.add]
        rows.append(("sum", total))
    if job.expect is not None:
        rows.append(("expected", f"{job.expect}, {'equal' if job.expect == total else 'DIFFERENT'}"))
    return tuple(rows)
