"""What a loader tells about itself, apart from what it does."""

import torch

from flodl_pipe.loader.feed import Feed
from flodl_pipe.loader.ledger import Skipped
from flodl_pipe.loader.passes import Passes
from flodl_pipe.loader.places import RowPlace, StepRows
from flodl_pipe.loader.plan import EnginePlan
from flodl_pipe.loader.statistics import Counters, Statistics, Traffic
from flodl_pipe.sampling.steps import EpochSteps
from flodl_pipe.sources.protocol import Source
from flodl_pipe.sources.stream_protocol import Stream
from flodl_pipe.staging.protocol import TierCount

__all__ = ["LoaderFacts"]


class LoaderFacts:
    """The read-only side of :class:`flodl_pipe.Loader`: answers of its source and its engine."""

    _engine: Feed
    _passes: Passes
    _counters: Counters
    _source: Source | Stream

    def __len__(self) -> int:
        return self.num_batches

    @property
    def num_batches(self) -> int:
        """Batches per epoch on this rank; of a stream an estimate.

        Raises:
            TypeError: if it is a stream whose length nothing tells.
        """
        return _known(self._engine.num_batches)

    @property
    def num_samples(self) -> int:
        """Samples of the source; of a stream an estimate.

        Raises:
            TypeError: if it is a stream whose length nothing tells.
        """
        return _known(self._engine.num_samples)

    @property
    def num_picks(self) -> int | None:
        """Positions of an epoch: its samples, or as many as its source mixes or draws; None for a stream."""
        return self._engine.num_picks

    @property
    def steps(self) -> EpochSteps | None:
        """How epochs are cut into this rank's steps; None for a stream."""
        return self._engine.steps

    @property
    def batch_size(self) -> int:
        """Rows of a full batch on this rank."""
        return self._engine.max_rows

    @property
    def global_batch_size(self) -> int:
        """Rows of a full step over all ranks."""
        return self._engine.stream.global_batch

    @property
    def names(self) -> tuple[str, ...]:
        """Field names of a batch."""
        return self._engine.names

    @property
    def device(self) -> torch.device:
        """Where batches are delivered."""
        side = self._engine.side
        return torch.device("cpu") if side is None else side.device.torch_device

    @property
    def dataset(self) -> Source | Stream:
        """The source."""
        return self._source

    @property
    def num_workers(self) -> int:
        """Reader threads."""
        return self._engine.plan.num_readers

    @property
    def pin_memory(self) -> bool:
        """Whether readers fill page-locked memory; batches themselves are on the device then."""
        side = self._engine.side
        return side is not None and side.device.pins

    @property
    def is_resident(self) -> bool:
        """Whether the whole source is, or is being, held in memory."""
        return self._engine.mode[0] == "resident"

    @property
    def is_loaded(self) -> bool:
        """Whether the resident set is complete, so that batches come from memory; False when streaming."""
        return self._engine.is_loaded

    @property
    def mode(self) -> tuple[str, str]:
        """The mode, and why."""
        return self._engine.mode

    def tiers(self) -> tuple[TierCount, ...]:
        """Return what each tier was asked for and did so far, in the order in which they are asked."""
        return self._engine.counts()

    def traffic(self) -> Traffic:
        """Return what was read from the source and copied to the device so far."""
        return self._engine.traffic()

    @property
    def device_name(self) -> str:
        """Name of the device that batches are delivered to, for example ``cuda:0`` or ``simulated``."""
        side = self._engine.side
        return "cpu" if side is None else side.device.name

    def granted(self) -> tuple[tuple[str, int], ...]:
        """Return the bytes of memory granted to this loader, by purpose."""
        return self._engine.granted()

    def parts(self) -> tuple[tuple[str, int, int], ...]:
        """Return of each part of a mixture its name, its samples, and how many were handed out over the whole run.

        Empty for any other source.
        """
        return self._engine.parts(self._passes.spot)

    def require_epochs(self, num_epochs: int) -> None:
        """Refuse more epochs than the source can serve: those that a mixture's ``max_epochs`` allow.

        Raises:
            SourceError: naming the part that runs out, and where.
        """
        self._engine.require_epochs(num_epochs)

    def statistics(self) -> Statistics:
        """Return what was handed out so far."""
        return self._counters.snapshot()

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Samples that could not be read and are skipped, ascending, each with the reason.

        Those that this rank and the others have met by now, also ahead of the loop, and those of the state that the
        run was resumed from.
        """
        ledger = self._engine.stream.skipped
        return () if ledger is None else ledger.entries()

    def where(self, sample: int, epoch: int, repeat: int = 0) -> RowPlace | None:
        """Return the step, rank and row in which a sample comes, computed without reading data.

        Steps are counted from the epoch's begin, in the present global batch.

        Args:
            sample: Sample index.
            epoch: Epoch number.
            repeat: Which of its appearances in the epoch, ``0 .. augment - 1``.

        Returns:
            The place; None where the last-batch rule leaves it out of this epoch.

        Raises:
            IndexError: if there is no such sample or repeat.
            LoaderError: if the order draws samples, so that one may come several times or not at all; or of a stream.
        """
        return self._engine.where(sample, epoch, repeat)

    def what(self, epoch: int, step: int) -> StepRows:
        """Return the samples of a step over all ranks, computed without reading data; the inverse of :meth:`where`.

        Raises:
            IndexError: if the epoch has no such step.
            LoaderError: of a stream.
        """
        return self._engine.what(epoch, step)

    @property
    def plan(self) -> EnginePlan:
        """How this loader runs."""
        return self._engine.plan

    def __repr__(self) -> str:
        engine, (mode, _) = self._engine, self.mode
        about = "about " if engine.num_picks is None else ""
        size = f", {about}{engine.num_samples:,} samples" if engine.num_samples is not None else ""
        steps = f", {about}{engine.num_batches:,} batches an epoch" if engine.num_batches is not None else ""
        return f"Loader({type(self._source).__name__}{size}, batch {self.batch_size}{steps}, {mode})"


def _known(number: int | None) -> int:
    if number is None:
        raise TypeError("the length of this loader's stream is not known before its end")
    return number
