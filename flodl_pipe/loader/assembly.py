"""From a loader on paper to what it holds: grants taken, processes started, tiers and the device's part set up.

Grants come first. If anything is refused, all of it is given back.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.loader.device_engine import DeviceEngine
from flodl_pipe.loader.feed import Pass
from flodl_pipe.loader.host_sharing import HostMeeting, why_not_together
from flodl_pipe.loader.host_tiers import HostTiers
from flodl_pipe.loader.outline import Outline, outline_engine
from flodl_pipe.loader.parts import Parts
from flodl_pipe.loader.source_reads import SourceReads, reader_processes
from flodl_pipe.loader.statistics import Traffic
from flodl_pipe.memory.ledger import DISK, process_ledger
from flodl_pipe.sources.protocol import Source, is_dear
from flodl_pipe.staging.protocol import TierCount

__all__ = ["Assembly", "assemble"]


@final
@dataclass(frozen=True)
class Assembly:
    """What stands between a source and an engine's readers, and between those and a device.

    Attributes:
        reads: Reads the source.
        tiers: The tiers of the host.
        device: The device's part; None where batches are delivered on the CPU.
        owner: Whom the ledger grants to.
        outline: The loader on paper, with the tiers and the mode that came out.
    """

    reads: SourceReads
    tiers: HostTiers
    device: DeviceEngine | None
    owner: int
    outline: Outline

    def granted(self) -> tuple[tuple[str, int], ...]:
        """Return the bytes of memory granted, by purpose: on the host, on disk, on the device."""
        ledger = process_ledger()
        device = {} if self.device is None else ledger.grants(self.owner, self.device.side.account)
        return tuple({**ledger.grants(self.owner), **ledger.grants(self.owner, DISK), **device}.items())

    def counts(self) -> tuple[TierCount, ...]:
        """Return what each tier was asked for so far, in the order in which they are asked."""
        return (*(() if self.device is None else self.device.side.counts()), *self.tiers.counts())

    def traffic(self) -> Traffic:
        """Return what was read from the source and copied to the device so far."""
        read = self.tiers.cascade.source_count()
        uploaded = 0 if self.device is None else self.device.upload.num_bytes
        picks = self.reads.num_picks
        return Traffic(read.num_rows + picks, read.num_bytes + picks * self.reads.spec.row_bytes, uploaded)

    def close(self, reading: Pass | None, close_source: Callable[[], None], end_rest: Callable[[], None]) -> None:
        """End a pass and give everything back, the rest too where one part fails.

        Args:
            reading: The pass, if there was one.
            close_source: Closes the source's files.
            end_rest: Ends what reads between passes.
        """
        with ExitStack() as ending:
            ending.callback(close_source)
            ending.callback(process_ledger().release, self.owner)
            if self.device is not None:
                ending.callback(self.device.close)
            ending.callback(self.reads.close)
            ending.callback(self.tiers.stop)
            ending.callback(end_rest)
            if reading is not None:
                ending.callback(reading.stop)


def assemble(
    source: Source,
    config: LoaderConfig,
    sampling: SamplingConfig,
    parts: Parts,
    *,
    global_batch: int,
    context: RunContext,
    keep_digest: bool,
) -> Assembly:
    """Work out a loader, and set up what its outline says. All ranks of a run do so, and meet meanwhile.

    Args:
        source: The samples.
        config: Section ``loader``.
        sampling: Section ``sampling``.
        parts: Functions and arrays that no section holds.
        global_batch: Rows of a step over all ranks.
        context: Rank and world.
        keep_digest: Whether to hash delivered rows.

    Raises:
        ConfigError: if an epoch would have no batch.
        SourceError: if the source is empty.
        ClusterError: if a loader could not be built on all ranks, or not for the same samples.
        StagingError: if memory or disk is refused.
        LoaderError: if reader processes cannot be started.
    """
    with HostMeeting(context, why_not=why_not_together(sampling)) as meeting:
        outline = outline_engine(source, config, sampling, parts, global_batch=global_batch, context=context)
        return _assemble(
            outline, config, sampling, keep_digest=keep_digest, skips=parts.max_skipped is not None, meeting=meeting
        )


def _assemble(
    outline: Outline,
    config: LoaderConfig,
    sampling: SamplingConfig,
    *,
    keep_digest: bool,
    skips: bool,
    meeting: HostMeeting,
) -> Assembly:
    source, plan, ledger = outline.source, outline.plan, process_ledger()
    owner = ledger.new_owner()
    with ExitStack() as undo:
        undo.callback(ledger.release, owner)
        processes = reader_processes(source, config, plan.num_readers, outline.steps.max_rows * plan.group_steps)
        reads, tier_plan = SourceReads(source, processes), outline.tiers
        undo.callback(reads.close)
        taken_bytes = 0 if processes is None else processes.num_bytes
        if taken_bytes:
            ledger.take(owner, "reader processes", taken_bytes, plan.share)
            tier_plan = outline.tiers_beside(taken_bytes)
        shared = meeting.share(outline, config, taken_bytes)
        if shared is not None:
            tier_plan = shared.tiers
            if plan.mode == "resident":
                plan = replace(plan, mode="streaming", why=f"the RAM cache has {shared.why}", resident_bytes=0)
        ledger.take(owner, "source", outline.held_bytes + tier_plan.table_bytes, plan.share)
        ledger.take(owner, "ring", plan.ring_bytes, plan.share)
        kept_bytes = plan.resident_bytes or tier_plan.ram.num_bytes
        kept = "resident set" if plan.resident_bytes else "RAM cache"
        if kept_bytes:
            ledger.take(owner, kept, kept_bytes, plan.share)
        if tier_plan.disk.warning is not None:  # a disk that is memory
            ledger.take(owner, "disk stage in memory", tier_plan.disk.num_bytes, plan.share)
        tiers = HostTiers(
            source,
            reads,
            tier_plan,
            config,
            is_resident=plan.mode == "resident" and outline.device is None,
            owner=owner,
            on_give_up=partial(ledger.release, owner, kept),
            needs_rows=keep_digest or outline.making.is_apart or outline.device is not None,
            skips=skips,
            part=None if shared is None else shared.part,
        )
        undo.callback(tiers.stop)
        device = None
        if outline.device is not None:
            device = DeviceEngine(
                outline.device,
                outline.making,
                outline.layout,
                None if outline.device.pool_off is not None else tier_plan.ranking,
                config,
                reads_ahead=not is_dear(source),
                seed=sampling.seed,
                owner=owner,
                keep_digest=keep_digest,
            )
        undo.pop_all()
    return Assembly(reads, tiers, device, owner, replace(outline, plan=plan, tiers=tier_plan))
