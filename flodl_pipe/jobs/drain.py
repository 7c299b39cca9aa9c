"""The loop of ``job=run``: take every batch, as a training loop would, and keep the place.

Between two steps the loader's cursor and its digest say the same: everything up to here was handed out, nothing beyond.
Saves are made only there. Of several ranks the first one writes them, when all have met at the same step.
"""

import logging
import time
from pathlib import Path
from typing import Literal, final

from flodl_pipe.config.job import RunJob
from flodl_pipe.errors import FlodlPipeError, ResumeError
from flodl_pipe.jobs.describe import last_batch, last_batch_of_a_stream
from flodl_pipe.jobs.interrupt import Interrupt
from flodl_pipe.jobs.ranks import Part, Ranks, whole
from flodl_pipe.jobs.save_file import SavedRun, read_saved, write_saved
from flodl_pipe.keyed.digest import Digest
from flodl_pipe.loader.ledger import to_text
from flodl_pipe.loader.loader import Loader
from flodl_pipe.reports.figures import plural
from flodl_pipe.reports.metrics import MemoryPeak, Moment
from flodl_pipe.reports.progress import ProgressView
from flodl_pipe.sampling.steps import DropLast, EpochSteps

__all__ = ["Drain", "End"]

_log = logging.getLogger("flodl_pipe")

_LOOK_EVERY_S = 0.25

End = Literal["finished", "max_steps", "interrupted", "nothing left"]


@final
class Drain:
    """A run of a loader, from where an earlier one stopped.

    Args:
        loader: The loader, new, with a digest.
        job: Section ``job``.
        drop_last: The last-batch rule, as the loader has it.
        saved: Where to continue; None starts anew.
        ranks: Those that share the steps.

    Raises:
        ResumeError: if the saved place belongs to other data or another order.

    Attributes:
        steps_before: Steps before this start.
        last_step: Steps of the whole run when it will be done; None where a stream's end decides.
        epoch: The epoch it stands in.
        memory: Memory, looked at while it runs.
        took_s: Seconds the loop took so far.
        first_batch_at: ``time.perf_counter()`` when the first batch was there; None before.
        saved_at: The state that was written last, None before.
        parts: What each rank has done, when it has ended.
    """

    def __init__(self, loader: Loader, job: RunJob, drop_last: DropLast, saved: SavedRun | None, ranks: Ranks) -> None:
        self._loader = loader
        self._job = job
        self._ranks = ranks
        self.parts: list[Part] = []
        self._stop_at: int | None = None
        self._before = saved or SavedRun({}, Digest().hex(), 0, 0)
        if saved is not None:
            try:
                loader.load_state_dict(saved.loader)
            except ResumeError as error:
                raise ResumeError(f"{job.resume}: {error}") from error
        self.steps_before = self._before.num_steps
        self.epoch = int(self._before.loader.get("epoch", 0))
        self._position = int(self._before.loader.get("position", 0))
        self._drop_last = drop_last
        self._steps = loader.steps  # a stream's are not known before its end
        self.last_step = self._last_step()
        self.memory = MemoryPeak()
        self.took_s = 0.0
        self.first_batch_at: float | None = None
        self.saved_at: SavedRun | None = None
        self._num_steps = 0
        self._began = 0.0
        self._there = _mark(job.save)
        self._warned = False
        if job.save is not None:
            # The data's fingerprint is taken now: later, a changed file would be saved as if it were the one we read.
            loader.state_dict()

    @property
    def num_steps(self) -> int:
        """Steps of the whole run so far."""
        return self.steps_before + self._num_steps

    @property
    def rows_before(self) -> int:
        """Rows before this start."""
        return self._before.num_rows

    @property
    def skipped(self) -> tuple[tuple[int, str], ...]:
        """Samples that could not be read, on any rank once it has ended, ascending, with the reason."""
        parts = self.parts or [self._part()]
        return tuple(sorted(dict(entry for part in parts for entry in part.skipped).items()))

    @property
    def num_rows(self) -> int:
        """Rows of the whole run so far, of all ranks once it has ended."""
        return self._before.num_rows + whole(self.parts or [self._part()]).num_rows

    @property
    def last_batch(self) -> str:
        """What happens at an epoch's end, in words."""
        return last_batch_of_a_stream(self._drop_last) if self._steps is None else last_batch(self._steps)

    @property
    def digest(self) -> str:
        """Digest of the whole run so far, of all ranks once it has ended."""
        return self._digest(self.parts or [self._part()])

    def moment(self) -> Moment:
        """Return where the run stands."""
        counted = self._loader.statistics()
        at_s = time.perf_counter() - self._began if self._began else 0.0
        num_rows = self._num_steps * self._loader.global_batch_size if self._ranks.several else counted.num_samples
        return Moment(at_s, self.epoch, self.num_steps, num_rows, counted.wait_s)

    def run(self, view: ProgressView, interrupt: Interrupt) -> End:
        """Run to the end, to ``max_steps``, or to Ctrl-C or SIGTERM. The place is saved then, and before an error.

        Raises:
            FlodlPipeError: what the loader raised, if a save cannot be written, or if a rank does not come to a save.
        """
        try:
            end = self._run(view, interrupt)
        except FlodlPipeError:
            # Of several ranks only this one stands here, and a save is of all.
            if self._job.save is not None and not self._ranks.several:
                self._save([self._part()])
                _log.error(
                    "ended by an error after %s; everything before it is saved, go on with job.resume=%s",
                    plural(self.num_steps, "step"),
                    self._job.save,
                )
            raise
        finally:
            self.took_s = time.perf_counter() - self._began
            self.memory.look()
            view.update(self.moment())
        self.parts = self._meet_at_the_end()
        self._save(self.parts)
        return end

    def _run(self, view: ProgressView, interrupt: Interrupt) -> End:
        self._began = time.perf_counter()
        if self.last_step == self.steps_before or self.epoch >= self._job.epochs:
            return "nothing left"
        for epoch in range(self.epoch, self._job.epochs):
            self.epoch = epoch
            self._pass(view, interrupt)
            if self._stop_at is not None and self.num_steps >= self._stop_at:
                return "interrupted"
            if self.num_steps == self._job.max_steps:
                return "max_steps"
            self._position = 0
        return "finished"

    def _pass(self, view: ProgressView, interrupt: Interrupt) -> None:
        """Take the batches of one epoch."""
        job, loader = self._job, self._loader
        steps_left = None if self._steps is None else self._steps.of_epoch(self.epoch).num_steps(self._position)
        if steps_left == 0:  # a loaded place may be an epoch's end
            return
        look_at = 0.0
        for _ in loader.epoch(self.epoch):
            if self.first_batch_at is None:
                self.first_batch_at = time.perf_counter()
            self._num_steps += 1
            steps_left = None if steps_left is None else steps_left - 1
            if job.step_time_s:
                interrupt.sleep(job.step_time_s)
            now = time.perf_counter()
            if now >= look_at:
                look_at = now + _LOOK_EVERY_S
                self.memory.look()
                view.update(self.moment())
            if interrupt.asked is not None and self._stop_at is None:
                self._meet(stops=True)
            if (
                job.save_every_steps is not None
                and self.num_steps % job.save_every_steps == 0
                and self._stop_at is None
            ):
                self._save(self._meet())
            if self.num_steps in (self._stop_at, job.max_steps):
                if steps_left != 0:
                    return
                break
        view.epoch_done(self.moment())

    def _last_step(self) -> int | None:
        if self._steps is None:
            return None if self._job.max_steps is None else max(self._job.max_steps, self.steps_before)
        return self.steps_before + self._steps_left(self._steps)

    def _steps_left(self, steps: EpochSteps) -> int:
        """Steps from the loaded place to the end of the run."""
        left = 0
        if self.epoch < self._job.epochs:
            later = self._job.epochs - self.epoch - 1
            left = steps.of_epoch(self.epoch).num_steps(self._position) + later * steps.num_steps()
        if self._job.max_steps is not None:
            left = min(left, max(0, self._job.max_steps - self.steps_before))
        return left

    def _part(self, *, stops: bool = False) -> Part:
        counted = self._loader.statistics()
        assert counted.digest is not None
        return Part(
            self.num_steps,
            counted.num_samples,
            counted.digest,
            counted.wait_s,
            time.perf_counter() - self._began if self._began else 0.0,
            stops,
            self._loader.skipped,
        )

    def _meet(self, *, stops: bool = False) -> list[Part]:
        """Hear from all ranks; where one is asked to stop, all will at the step of the foremost."""
        parts = self._ranks.meet(self._part(stops=stops))
        if self._stop_at is None and any(part.stops for part in parts):
            self._stop_at = max(part.num_steps for part in parts)
        return parts

    def _meet_at_the_end(self) -> list[Part]:
        """Wait until all ranks have come to the step at which this one ended."""
        while True:
            parts = self._meet()
            if len({part.num_steps for part in parts}) == 1:
                return parts

    def _digest(self, parts: list[Part]) -> str:
        total = Digest.from_hex(self._before.digest, self._before.num_rows)
        total.merge(whole(parts))
        return total.hex()

    def _save(self, parts: list[Part]) -> None:
        """Write the place where all ranks stand; nothing if they do not, for one of them has to stop."""
        if self._job.save is None or len({part.num_steps for part in parts}) > 1:
            return
        state = self._loader.state_dict()
        # Each lists what all have skipped, as far as they could tell each other.
        skipped = [*self._loader.skipped, *(entry for part in parts for entry in part.skipped)]
        if skipped:
            state["skipped"] = to_text(skipped)
        now = SavedRun(state, self._digest(parts), self._before.num_rows + whole(parts).num_rows, self.num_steps)
        if now == self.saved_at:
            return
        if self._ranks.is_first:
            self._write(self._job.save, now)
        self.saved_at = now

    def _write(self, path: str, now: SavedRun) -> None:
        if not self._warned and _mark(path) not in (self._there, None):
            self._warned = True
            _log.warning(
                "%s was saved by another run meanwhile and is written over; give each run a job.save of its own", path
            )
        write_saved(path, now)
        self._there = (now.digest, now.num_steps)


def _mark(path: str | None) -> tuple[str, int] | None:
    """Return what tells one save from another, of the save that lies there now; None: there is none."""
    if path is None or not Path(path).exists():
        return None
    try:
        saved = read_saved(path)
    except ResumeError:
        return None
    return saved.digest, saved.num_steps
