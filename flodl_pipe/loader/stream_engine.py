"""The engine behind a loader of a stream: lanes, slots, and the grants for them."""

import logging
import os
import threading
from typing import NoReturn, final

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.errors import ConfigError, LoaderError, ResumeError
from flodl_pipe.loader.device_engine import DeviceEngine
from flodl_pipe.loader.device_side import DeviceSide
from flodl_pipe.loader.feed import Feed, Pass
from flodl_pipe.loader.identity import Spot
from flodl_pipe.loader.parts import Parts
from flodl_pipe.loader.slots import SlotPool
from flodl_pipe.loader.statistics import Traffic
from flodl_pipe.loader.stream_outline import outline_stream
from flodl_pipe.loader.stream_reading import StreamReading
from flodl_pipe.loader.stream_sequence import StreamSequence
from flodl_pipe.loader.stream_state import StreamState
from flodl_pipe.loader.stream_steps import StreamSteps
from flodl_pipe.memory.ledger import process_ledger
from flodl_pipe.sampling.cursor import Cursor
from flodl_pipe.sampling.steps import EpochSteps
from flodl_pipe.sources.stream_protocol import Stream
from flodl_pipe.staging.protocol import TierCount

__all__ = ["StreamEngine"]

_log = logging.getLogger("flodl_pipe")

_NO_INDEX = "a stream has no samples by number; batch.pick_keys tells what a batch holds"


@final
class StreamEngine:
    """Everything behind a loader of a stream; a :class:`flodl_pipe.loader.feed.Feed`.

    Args:
        source: The data.
        config: Section ``loader``.
        sampling: Section ``sampling``.
        parts: Functions and arrays that no section holds.
        global_batch: Rows of a step over all ranks.
        context: Rank and world size.
        keep_digest: Whether to hash delivered rows.

    Raises:
        ConfigError: if there are more ranks than lanes, or a knob does not fit a stream.
        StagingError: if memory is refused.
    """

    def __init__(
        self,
        source: Stream,
        config: LoaderConfig,
        sampling: SamplingConfig,
        parts: Parts,
        *,
        global_batch: int,
        context: RunContext,
        keep_digest: bool,
    ) -> None:
        if parts.max_skipped is not None:
            raise ConfigError.at(
                "source.on_error",
                "skip is not for streams: where a sample cannot be read, it is not known where the next one begins, "
                "and positions would shift; use raise, or a source with an index",
            )
        outline = outline_stream(source, config, sampling, parts, global_batch=global_batch, context=context)
        self._source, self._sampling, self._context = source, sampling, context
        self._turn_rows, self._making = outline.turn_rows, outline.host_making
        self._keep_digest = keep_digest
        self.stream, self.plan = outline.stream, outline.plan
        estimate = source.num_samples_estimate
        self.num_samples: int | None = estimate
        self.num_picks: int | None = None
        self.has_repeats = False
        self.steps: EpochSteps | None = None
        self.num_batches: int | None = None if estimate is None else max(1, estimate // global_batch)
        self.max_rows = outline.layout.max_rows
        self.names = outline.making.spec.names
        self._ledger = process_ledger()
        self._owner = self._ledger.new_owner()
        try:
            self._ledger.take(self._owner, "stream buffers", source.buffer_bytes, self.plan.share)
            self._ledger.take(self._owner, "ring", self.plan.ring_bytes, self.plan.share)
            self._device = (
                None
                if outline.device is None
                else DeviceEngine(
                    outline.device,
                    outline.making,
                    outline.layout,
                    None,
                    config,
                    reads_ahead=False,
                    seed=sampling.seed,
                    owner=self._owner,
                    keep_digest=keep_digest,
                )
            )
        except BaseException:
            self._ledger.release(self._owner)
            raise
        device = self._device
        self.side: DeviceSide | None = None if device is None else device.side
        self.pool = SlotPool(outline.layout, self.plan.num_slots, None if device is None else device.host_slab)
        self._pool_lock = threading.RLock()
        self._lengths: tuple[int, tuple[int, ...]] | None = None
        self._reading: Pass | None = None
        self._process = os.getpid()

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that built the engine, and no forked child of it."""
        return os.getpid() == self._process

    @property
    def mode(self) -> tuple[str, str]:
        """The mode, and why."""
        return self.plan.mode, self.plan.why

    @property
    def is_loaded(self) -> bool:
        """Nothing of a stream is kept."""
        return False

    def is_end(self, spot: Spot) -> bool:
        """Return whether every lane has ended there."""
        return spot.lanes is not None and spot.lanes.is_end

    def require_global_batch(self, global_batch: int) -> None:
        """Refuse a saved global batch that this world cannot serve; see :class:`flodl_pipe.loader.feed.Feed`."""
        try:
            self._steps(Spot(0, 0), global_batch)
        except ConfigError as error:
            raise ResumeError(
                f"the saved global batch of {global_batch:,} cannot be kept: {error.problems[0].message}; or resume "
                "from a state of this run"
            ) from None

    def spot(self, cursor: Cursor) -> Spot:
        """Return the place of a cursor; see :class:`flodl_pipe.loader.feed.Feed`."""
        if cursor.mixture:
            raise ResumeError(
                "loader state: it holds the weights of a mixture, and this source is a stream; the state was edited or "
                "damaged, resume from another one"
            )
        if cursor.skipped:
            raise ResumeError(
                "loader state: it lists skipped samples, and this source is a stream, which skips none; the state was "
                "edited or damaged, resume from another one"
            )
        if not cursor.streams:
            if cursor.position:
                raise ResumeError(
                    f"loader state: position {cursor.position} of a stream needs the state of its lanes, and streams "
                    "is empty; the state was edited or damaged, resume from another one"
                )
            return Spot(cursor.epoch, 0)
        place = cursor.epoch, cursor.position, cursor.global_batch
        lanes = StreamState.from_text(cursor.streams, self._source.num_lanes, place)
        return Spot(cursor.epoch, cursor.position, lanes)

    def inherit(self, other: Feed) -> None:
        """Do nothing: a stream remembers nothing but its place."""

    def parts(self, spot: Spot) -> tuple[tuple[str, int, int], ...]:  # noqa: ARG002 - a stream has no parts
        """Return nothing: a stream is no mixture."""
        return ()

    def require_epochs(self, num_epochs: int) -> None:
        """Do nothing: a stream may be read again and again, or says itself that it cannot."""

    def where(self, sample: int, epoch: int, repeat: int) -> NoReturn:
        """Refuse: what stands where in a stream is known once it was read."""
        raise LoaderError(f"sample {sample}, repeat {repeat}, of epoch {epoch} cannot be found: {_NO_INDEX}")

    def what(self, epoch: int, step: int) -> NoReturn:
        """Refuse: what stands where in a stream is known once it was read."""
        raise LoaderError(f"step {step} of epoch {epoch} cannot be told beforehand: {_NO_INDEX}")

    def counts(self) -> tuple[TierCount, ...]:
        """Nothing of a stream is kept."""
        return ()

    def traffic(self) -> Traffic:
        """Return what was copied to the device so far; what is read is the stream's."""
        return Traffic(0, 0, 0 if self._device is None else self._device.upload.num_bytes)

    def read(self, spot: Spot) -> Pass:
        """Start reading an epoch from a place on; see :class:`flodl_pipe.loader.feed.Feed`."""
        self._source.check_unchanged()

        def begin() -> tuple[StreamSequence, int | None]:
            lengths = self._count(spot.epoch) if self._context.world_size > 1 else None
            sequence = StreamSequence(
                self._source,
                seed=self._sampling.seed,
                epoch=spot.epoch,
                shuffle=self._sampling.shuffle,
                turn_rows=self._turn_rows,
                lengths=lengths,
                state=spot.lanes or StreamState.begin(self._source.num_lanes),
            )
            return sequence, None if lengths is None else sum(lengths)

        inner = StreamReading(
            self.plan,
            self._source,
            begin,
            self.pool,
            self._pool_lock,
            making=self._making,
            steps=self._steps(spot, self.stream.global_batch),
            seed=self._sampling.seed,
            keep_digest=self._keep_digest,
        )
        self._reading = inner
        if self._device is not None:
            self._device.side.epoch_starts()
            self._reading = self._device.wrap(
                inner, self.pool, self._pool_lock, None, num_readers=self.plan.num_readers
            )
        return self._reading

    def granted(self) -> tuple[tuple[str, int], ...]:
        """Return the bytes of memory granted, by purpose."""
        return tuple(self._ledger.grants(self._owner).items())

    def start_resident(self) -> None:
        """Do nothing: a stream is never resident."""

    def pass_ended(self) -> None:
        """Do nothing: a stream is kept nowhere."""

    def close(self) -> None:
        """Stop the reader, give back grants and files. In a forked child, where none of them are, do nothing."""
        if not self.is_own_process:
            return
        if self._reading is not None:
            self._reading.stop()
        if self._device is not None:
            self._device.close()
        self._ledger.release(self._owner)
        self._source.close()

    def _steps(self, spot: Spot, global_batch: int) -> StreamSteps:
        return StreamSteps(
            global_batch,
            self._sampling.drop_last,
            epoch=spot.epoch,
            position=spot.position,
            context=self._context,
            unit=self._making.unit,
        )

    def _count(self, epoch: int) -> tuple[int, ...]:
        """Return the rows of each lane in an epoch; the last count is kept."""
        if self._lengths is None or self._lengths[0] != epoch:
            _log.info(
                "counting the rows of %d lanes for epoch %d: several ranks must agree on the steps of an epoch",
                *(self._source.num_lanes, epoch + 1),
            )
            seed, shuffle = self._sampling.seed, self._sampling.shuffle
            lanes = range(self._source.num_lanes)
            counts = (self._source.count_lane(lane, seed=seed, epoch=epoch, shuffle=shuffle) for lane in lanes)
            self._lengths = epoch, tuple(counts)
        return self._lengths[1]
