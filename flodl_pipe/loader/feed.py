"""What a loader asks of the engine behind it, whether its data has an index or is a stream.

A :class:`Feed` is built once per global batch; a :class:`Pass` reads one epoch of it, from a place on.
"""

from typing import Protocol

from flodl_pipe.loader.device_side import DeviceSide
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.identity import Spot, StreamIdentity
from flodl_pipe.loader.places import RowPlace, StepRows
from flodl_pipe.loader.plan import EnginePlan
from flodl_pipe.loader.slots import SlotPool
from flodl_pipe.loader.statistics import Traffic
from flodl_pipe.sampling.cursor import Cursor
from flodl_pipe.sampling.steps import EpochSteps, RankStep
from flodl_pipe.staging.protocol import TierCount

__all__ = ["Ahead", "Feed", "Pass"]


class Ahead(Protocol):
    """The steps of a pass."""

    epoch: int

    @property
    def num_steps(self) -> int:
        """Steps of the pass; of a stream that has not ended yet, more than there can be."""
        ...

    def step(self, step: int) -> RankStep:
        """Return what a step is, counted from where the pass begins."""
        ...


class Pass(Protocol):
    """One pass over an epoch, read ahead of the loop."""

    wait_s: float
    """Time the loop waited for groups that were not ready."""

    @property
    def ahead(self) -> Ahead:
        """Its steps."""
        ...

    def require_own_process(self) -> None:
        """Refuse to go on in a forked child, which has no readers.

        Raises:
            LoaderError: if this is not the process that made the pass.
        """
        ...

    def take(self) -> Group:
        """Return the next group, waiting for it if need be; one of no steps at the end of a stream.

        Raises:
            LoaderError: after :meth:`stop`.
        """
        ...

    def hand_over(self) -> None:
        """Let a reader that waits for the interpreter pass, between two steps."""
        ...

    def stop(self, *, wait: bool = True) -> None:
        """Stop the readers; with ``wait``, return only when their threads have ended."""
        ...


class Feed(Protocol):
    """Everything behind a loader."""

    stream: StreamIdentity
    pool: SlotPool
    plan: EnginePlan
    steps: EpochSteps | None
    """How epochs are cut; None for a stream, whose end cuts it."""

    num_samples: int | None
    """Samples of the source; of a stream an estimate, or None."""

    num_picks: int | None
    """Positions of an epoch, likewise."""

    num_batches: int | None
    """Steps of an epoch, likewise."""

    has_repeats: bool
    """Whether a sample may come several times in an epoch."""

    max_rows: int
    """Rows of a full step on this rank."""

    names: tuple[str, ...]
    """Field names of a batch, as far as they are known."""

    side: DeviceSide | None
    """The device that batches are delivered to; None for the CPU."""

    def counts(self) -> tuple[TierCount, ...]:
        """Return what each tier was asked for so far, in the order in which they are asked."""
        ...

    def traffic(self) -> Traffic:
        """Return what was read from the source and copied to the device so far."""
        ...

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that built the engine, and no forked child of it."""
        ...

    @property
    def mode(self) -> tuple[str, str]:
        """The mode as it is now, and why."""
        ...

    @property
    def is_loaded(self) -> bool:
        """Whether the resident set is complete."""
        ...

    def is_end(self, spot: Spot) -> bool:
        """Return whether no step is left of an epoch from a place on."""
        ...

    def require_global_batch(self, global_batch: int) -> None:
        """Refuse a saved global batch that this source and world cannot serve.

        Raises:
            ResumeError: with the numbers.
        """
        ...

    def spot(self, cursor: Cursor) -> Spot:
        """Return the place of a cursor that belongs to this stream, and take over what the cursor remembers.

        Raises:
            ResumeError: if it is not a place of this stream.
        """
        ...

    def inherit(self, other: "Feed") -> None:
        """Take over what an engine that this one replaces remembers: changed weights of a mixture, skipped samples."""
        ...

    def parts(self, spot: Spot) -> tuple[tuple[str, int, int], ...]:
        """Return of each part of a mixture its name, its samples, and how often one of them was drawn up to a place."""
        ...

    def require_epochs(self, num_epochs: int) -> None:
        """Refuse more epochs than the source can serve.

        Raises:
            SourceError: naming what runs out, and where.
        """
        ...

    def where(self, sample: int, epoch: int, repeat: int) -> RowPlace | None:
        """Return the place of a sample's appearance in an epoch; see :func:`flodl_pipe.loader.places.where_is`."""
        ...

    def what(self, epoch: int, step: int) -> StepRows:
        """Return what stands in a step of an epoch; see :func:`flodl_pipe.loader.places.rows_of`."""
        ...

    def read(self, spot: Spot) -> Pass:
        """Start reading an epoch from a place on.

        Raises:
            ChangedError: if the source's files are not what they were.
        """
        ...

    def granted(self) -> tuple[tuple[str, int], ...]:
        """Return the bytes of memory granted, by purpose."""
        ...

    def start_resident(self) -> None:
        """Begin to load the resident set, now that the first batch has been served."""
        ...

    def pass_ended(self) -> None:
        """Note that a pass was handed out whole."""
        ...

    def close(self) -> None:
        """Stop every thread, give back grants and files. In a forked child, where none of them are, do nothing."""
        ...
