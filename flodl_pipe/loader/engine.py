"""What a loader is made of: steps, plan, slots, resident set and the grants for them.

Built once per global batch. The engine holds no reference to the loader, so that a loader nobody wants is collected.
"""

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import final

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.devices.clock import NO_CLOCK
from flodl_pipe.errors import ConfigError, ResumeError
from flodl_pipe.loader.advice import Advice
from flodl_pipe.loader.assembly import assemble
from flodl_pipe.loader.device_side import DeviceSide
from flodl_pipe.loader.feed import Feed, Pass
from flodl_pipe.loader.fill import Filler
from flodl_pipe.loader.identity import Spot
from flodl_pipe.loader.ledger import SkipLedger, Skipped, from_text
from flodl_pipe.loader.lookahead import Lookahead
from flodl_pipe.loader.order import may_be_made_ahead
from flodl_pipe.loader.pace import Pace
from flodl_pipe.loader.parts import Parts
from flodl_pipe.loader.places import RowPlace, StepRows, rows_of, where_is
from flodl_pipe.loader.plan import EnginePlan
from flodl_pipe.loader.reading import Reading
from flodl_pipe.loader.rest import Rest
from flodl_pipe.loader.room import Room
from flodl_pipe.loader.skipping import SkippingReads
from flodl_pipe.loader.slots import SlotPool
from flodl_pipe.loader.source_reads import SourceReads
from flodl_pipe.loader.statistics import Traffic
from flodl_pipe.loader.upcoming import Upcoming
from flodl_pipe.memory.probe import num_cpus
from flodl_pipe.sampling.cursor import Cursor
from flodl_pipe.sampling.mixture_order import MixtureOrder
from flodl_pipe.sampling.steps import EpochSteps
from flodl_pipe.sources.ordering import Mixed
from flodl_pipe.sources.protocol import BundledSource, Source, is_dear
from flodl_pipe.sources.user_source import UserSource
from flodl_pipe.staging.protocol import TierCount

__all__ = ["Engine"]

_log = logging.getLogger("flodl_pipe")


@final
class Engine:
    """Everything behind a loader of a source with an index; a :class:`flodl_pipe.loader.feed.Feed`.

    Args:
        source: The samples.
        config: Section ``loader``.
        sampling: Section ``sampling``.
        parts: Functions and arrays that no section holds.
        global_batch: Rows of a step over all ranks.
        context: Rank and world size.
        keep_digest: Whether to hash delivered rows.

    Raises:
        ConfigError: if an epoch would have no batch.
        SourceError: if the source is empty.
        StagingError: if memory is refused.
    """

    def __init__(
        self,
        source: Source,
        config: LoaderConfig,
        sampling: SamplingConfig,
        parts: Parts,
        *,
        global_batch: int,
        context: RunContext,
        keep_digest: bool,
    ) -> None:
        self._parts = assemble(
            source, config, sampling, parts, global_batch=global_batch, context=context, keep_digest=keep_digest
        )
        outline = self._parts.outline
        self._source = source
        # Asked once: comparing an object with a protocol takes 20 us, every time.
        self._bundled = source if isinstance(source, BundledSource) else None
        self._order = outline.order
        self.steps: EpochSteps | None = outline.steps
        self._steps = outline.steps
        self._making = outline.making
        self.has_repeats = outline.order.num_repeats != 1
        self._skipped = None if parts.max_skipped is None else SkipLedger(parts.max_skipped, parts.skipped_by_all)
        self.stream = outline.stream.with_ledger(self._skipped)
        self.num_samples: int | None = len(source)
        self.num_picks: int | None = outline.order.num_picks
        self.num_batches: int | None = outline.steps.num_steps()
        self.max_rows = outline.steps.batch_rows
        self.names = outline.making.spec.names
        self.side: DeviceSide | None = None
        self.plan: EnginePlan = outline.plan
        self._reads, self._tiers, self._device = self._parts.reads, self._parts.tiers, self._parts.device
        device = self._device
        self.side = None if device is None else device.side
        self.pool = SlotPool(outline.layout, self.plan.num_slots, None if device is None else device.host_slab)
        self._pool_lock = threading.RLock()
        host = outline.host_making
        self._room = Room(self.plan.ring_bytes, self.plan.depth, is_known=host.is_known)
        self._advice = _advice(source, config, self.plan.num_readers)
        self._filler = Filler(
            source,
            outline.layout,
            host,
            tiers=self._tiers,
            reads=self._reads,
            step_parts=self.plan.step_parts,
            seed=sampling.seed,
            keep_digest=keep_digest and (device is None or not device.keeps_digest),
            check_purity=config.check_purity,
            skipped=self._skipped,
            as_stored=device is not None and device.delivers,
            plan=None if device is None else device.gather_plan,
            advice=self._advice,
        )
        self._upcoming = Upcoming(outline.steps, group_steps=self.plan.group_steps, draw=host.draw_for(sampling.seed))
        self._pace = Pace(self.plan.num_readers)
        self._close_source = close_of(source)
        self._interrupt = partial(_interrupt, self._filler.reads, self._reads, self._close_source)
        self._reading: Pass | None = None
        self._rest = Rest()
        self._process = os.getpid()

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that built the engine, and no forked child of it."""
        return os.getpid() == self._process

    @property
    def mode(self) -> tuple[str, str]:
        """The mode as it is now, and why."""
        if self._device is not None:
            return self._device.side.mode
        whole = self._tiers.whole
        if self.plan.mode == "resident" and whole is not None and whole.given_up is not None:
            return "streaming", f"the resident set was given up: {whole.given_up}"
        if self.plan.mode == "resident" and self._tiers.stopped is not None:
            return "streaming", f"the resident set is not complete: {self._tiers.stopped}"
        return self.plan.mode, self.plan.why

    @property
    def is_loaded(self) -> bool:
        """Whether every sample is in memory. Right after a pass, wait for the few that it left out."""
        self._rest.settle()
        if self._device is not None:
            return self._device.side.mode[0] == "resident" and self._device.side.is_complete
        whole = self.plan.mode == "resident" or self._parts.outline.tiers.ram.is_whole
        return whole and self._tiers.is_filled

    def counts(self) -> tuple[TierCount, ...]:
        """Return what each tier was asked for so far, in the order in which they are asked."""
        return self._parts.counts()

    def traffic(self) -> Traffic:
        """Return what was read from the source and copied to the device so far."""
        return self._parts.traffic()

    def require_global_batch(self, global_batch: int) -> None:
        """Refuse a saved global batch that this source and world cannot serve.

        Raises:
            ResumeError: with the numbers.
        """
        try:
            self._steps.with_global_batch(global_batch)
        except ConfigError as error:
            raise ResumeError(
                f"the saved global batch of {global_batch:,} cannot be kept: {error.problems[0].message}; or resume "
                "from a state of this run"
            ) from None

    def is_end(self, spot: Spot) -> bool:
        """Return whether no step is left; see :class:`flodl_pipe.loader.feed.Feed`."""
        return not self._steps.of_epoch(spot.epoch).num_steps(spot.position)

    def spot(self, cursor: Cursor) -> Spot:
        """Return the place of a cursor; see :class:`flodl_pipe.loader.feed.Feed`."""
        if cursor.streams or (cursor.mixture and not isinstance(self._order, MixtureOrder)):
            what = "lanes of a stream" if cursor.streams else "weights of a mixture"
            raise ResumeError(
                f"loader state: it holds the {what}, which this source is not; the state was edited or damaged, resume "
                "from another one"
            )
        self._steps.of_epoch(cursor.epoch).num_steps(cursor.position)  # a batch sampler's steps begin at few positions
        self._skip(from_text(cursor.skipped, num_samples=len(self._source)))
        if isinstance(self._order, MixtureOrder):
            position = cursor.epoch * self._order.num_picks + cursor.position
            self._follow(self._order.with_history(cursor.mixture, position))
        return Spot(cursor.epoch, cursor.position)

    def inherit(self, other: Feed) -> None:
        """Take over what an engine for the same source remembers; see :class:`flodl_pipe.loader.feed.Feed`."""
        mixing = other.stream.mixing
        if isinstance(mixing, MixtureOrder):
            self._follow(mixing)
        if self._skipped is not None and other.stream.skipped is not None:
            self._skipped.inherit(other.stream.skipped.entries())

    def _skip(self, entries: tuple[Skipped, ...]) -> None:
        """Take over samples that are skipped."""
        if self._skipped is not None:
            self._skipped.take_over(entries)
        elif entries:
            _log.warning(
                "the saved state lists %d skipped samples, which are read again: source.on_error is raise, and one "
                "that still cannot be read ends the run",
                len(entries),
            )

    def _follow(self, order: MixtureOrder) -> None:
        self._order = order
        self.stream = self.stream.with_mixing(order)

    def parts(self, spot: Spot) -> tuple[tuple[str, int, int], ...]:
        """Return name, samples and draws so far of each part of a mixture; see :class:`flodl_pipe.loader.feed.Feed`."""
        ordering = self._bundled.ordering if self._bundled else None
        if not isinstance(ordering, Mixed) or not isinstance(self._order, MixtureOrder):
            return ()
        counts = self._order.counts(spot.epoch, spot.position)
        return tuple((p.name, p.num_samples, count) for p, count in zip(ordering.parts, counts, strict=True))

    def require_epochs(self, num_epochs: int) -> None:
        """Refuse more epochs than the source can serve; see :class:`flodl_pipe.loader.feed.Feed`."""
        if isinstance(self._order, MixtureOrder):
            self._order.check_epochs(num_epochs)

    def where(self, sample: int, epoch: int, repeat: int) -> RowPlace | None:
        """Return the place of a sample's appearance in an epoch; see :func:`flodl_pipe.loader.places.where_is`."""
        num_samples = len(self._source)
        return where_is(self._order, self._steps, sample=sample, epoch=epoch, repeat=repeat, num_samples=num_samples)

    def what(self, epoch: int, step: int) -> StepRows:
        """Return what stands in a step of an epoch; see :func:`flodl_pipe.loader.places.rows_of`."""
        return rows_of(self._order, self._steps, epoch=epoch, step=step)

    def read(self, spot: Spot) -> Pass:
        """Start reading an epoch from a place on; see :class:`flodl_pipe.loader.feed.Feed`."""
        if self._bundled:
            self._bundled.check_unchanged()
        device = self._device
        if device is not None:
            device.side.epoch_starts()
        self._rest.settle()
        if not self.plan.num_readers:
            self._tiers.load()  # without threads there is no background to load in
            if device is not None:
                device.load(self._filler.read_stored)
        self._reads.begin()
        self._filler.reads.begin()
        ahead = self._upcoming.take(self._order, spot.epoch, spot.position)
        if device is not None and device.side.is_complete and device.is_quick:
            order, epoch, take = self._order, spot.epoch, self._upcoming.take
            self._reading = device.resident_pass(ahead, lambda position: self._read(take(order, epoch, position)))
        else:
            self._reading = self._read(ahead)
        return self._reading

    def _read(self, ahead: Lookahead) -> Pass:
        """Start readers."""
        device = self._device
        prepare = partial(self._upcoming.prepare, self._order, ahead.epoch + 1)
        ring = self.plan, self._filler, self.pool, self._pool_lock
        inner = Reading(
            *ring,
            ahead,
            self._pace,
            room=self._room if self._filler.is_apart else None,
            interrupt=self._interrupt,
            advice=self._advice,
            on_all_claimed=prepare if may_be_made_ahead(self._order) else lambda: None,
            clock=NO_CLOCK if device is None else device.side.device.clock,
        )
        read, count = self._filler.read_stored, self.plan.num_readers
        return device.wrap(inner, self.pool, self._pool_lock, read, num_readers=count) if device else inner

    def granted(self) -> tuple[tuple[str, int], ...]:
        """Return the bytes of memory granted, by purpose."""
        return self._parts.granted()

    def start_resident(self) -> None:
        """Begin to fill memory, now that the first batch has been served."""
        if self.plan.num_readers:
            self._tiers.start()

    def pass_ended(self) -> None:
        """Read what the pass left out, if that is less than a step and samples are kept as they are read."""
        most = self._steps.global_batch - 1
        # Samples that are skipped leave gaps, which would be tried again after every pass.
        if not self.plan.num_readers or not is_dear(self._source) or self._skipped is not None:
            return
        if self._device is not None:
            self._rest.start(partial(self._device.load_rest, self._filler.read_stored, most))
            return
        samples = self._tiers.rest(most)
        if len(samples):
            self._rest.start(partial(self._tiers.read_rest, samples))

    def close(self) -> None:
        """Stop every thread, give back grants and files. In a forked child, where none of them are, do nothing."""
        if not self.is_own_process:
            return
        self._parts.close(self._reading, self._close_source, self._rest.end)


def _advice(source: Source, config: LoaderConfig, num_readers: int) -> Advice | None:
    """Return what tells a loop that waits how to have more readers; None where nothing is to be said."""
    if not isinstance(source, UserSource) or not source.is_unsaid or config.reader_kind != "thread":
        return None
    return Advice(source.owner, num_cpus()) if num_readers and num_cpus() > 1 else None


def close_of(source: Source) -> Callable[[], None]:
    """Return what closes a source's files; nothing for one that has none."""
    return source.close if isinstance(source, BundledSource) else lambda: None


def _interrupt(reads: SkippingReads, source_reads: SourceReads, close_source: Callable[[], None]) -> None:
    reads.interrupt()
    source_reads.interrupt()
    close_source()
