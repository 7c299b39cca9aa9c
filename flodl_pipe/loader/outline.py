"""What a loader will be, worked out from headers, knobs and probes: nothing is read, granted or started.

An engine is built from its outline, and ``job=plan`` prints one, so the two cannot tell different stories.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.errors import SourceError
from flodl_pipe.loader.device_plan import DevicePlan, plan_device
from flodl_pipe.loader.host_budget import collect_gone_loaders, host_budget
from flodl_pipe.loader.host_side import host_side
from flodl_pipe.loader.identity import StreamIdentity
from flodl_pipe.loader.lane_order import num_own
from flodl_pipe.loader.making import Making
from flodl_pipe.loader.order import held_by, order_and_steps
from flodl_pipe.loader.parts import Parts
from flodl_pipe.loader.plan import EnginePlan, Knobs, Sizes, plan_engine
from flodl_pipe.loader.resident import resident_bytes
from flodl_pipe.loader.slots import SlotLayout
from flodl_pipe.loader.source_reads import require_readable
from flodl_pipe.loader.targets import target_device
from flodl_pipe.loader.tiers import TierPlan, plan_tiers
from flodl_pipe.loader.upload import number_bytes
from flodl_pipe.memory.budget import require_batch
from flodl_pipe.memory.ledger import process_ledger
from flodl_pipe.memory.probe import num_cpus
from flodl_pipe.sampling.mixture_order import MixtureOrder
from flodl_pipe.sampling.orders import Order
from flodl_pipe.sampling.planned_steps import PlannedSteps
from flodl_pipe.sampling.steps import EpochSteps
from flodl_pipe.sources.impure import ImpureSource
from flodl_pipe.sources.protocol import BundledSource, Source, is_dear
from flodl_pipe.staging.shared_room import Together

__all__ = ["Outline", "first_global_batch", "outline_engine"]

_log = logging.getLogger("flodl_pipe")

# Rows that are read together by processes.
_PROCESS_GROUP_ROWS = 256


@final
@dataclass(frozen=True)
class Outline:
    """A loader on paper.

    Attributes:
        source: The samples.
        order: Which pick stands at each position of an epoch.
        steps: How an epoch is cut into steps.
        stream: Identity of the stream.
        making: How delivered rows become batches.
        layout: Where each field of a step lies.
        plan: Mode, ring, readers, and what they take.
        held_bytes: What the source itself holds in memory.
        tiers: What the tiers of the host may hold.
        tiers_beside: The same, where something else takes so many bytes more: reader processes, whose size shows late.
        tiers_together: The same again, with a RAM cache that the ranks of this host keep together; None: how much of it
            this rank could hold.
        device: What may be held of a device; None where batches are delivered on the CPU.
    """

    source: Source
    order: Order
    steps: EpochSteps
    stream: StreamIdentity
    making: Making
    layout: SlotLayout
    plan: EnginePlan
    held_bytes: int
    tiers: TierPlan
    tiers_beside: Callable[[int], TierPlan]
    tiers_together: Callable[[int, Together | None], TierPlan]
    device: DevicePlan | None = None

    @property
    def host_making(self) -> Making:
        """What readers make: batches, or what a device makes batches of."""
        return self.making if self.device is None else self.device.host.making

    def require_epochs(self, num_epochs: int) -> None:
        """Refuse more epochs than the source can serve; see :meth:`flodl_pipe.loader.feed.Feed.require_epochs`."""
        if isinstance(self.order, MixtureOrder):
            self.order.check_epochs(num_epochs)


def first_global_batch(config: LoaderConfig, context: RunContext) -> int:
    """Return the rows of a step over all ranks, for a run that starts anew."""
    return config.global_batch_size or (config.batch_size or 1) * context.world_size


def outline_engine(
    source: Source,
    config: LoaderConfig,
    sampling: SamplingConfig,
    parts: Parts,
    *,
    global_batch: int,
    context: RunContext,
) -> Outline:
    """Work out how a source would be served here and now.

    Args:
        source: The samples.
        config: Section ``loader``.
        sampling: Section ``sampling``.
        parts: Functions and arrays that no section holds.
        global_batch: Rows of a step over all ranks.
        context: Rank and world size.

    Raises:
        ConfigError: if an epoch would have no batch.
        SourceError: if the source is empty.
        StagingError: if a forced mode cannot fit.
    """
    num_samples = len(source)
    if not num_samples:
        raise SourceError(f"{type(source).__name__} has 0 samples, and a loader needs at least one")
    order, steps, making = order_and_steps(source, config, sampling, parts, global_batch=global_batch, context=context)
    shared = target_device(config)
    host = None if shared is None else host_side(source, making)
    made = making if host is None else host.making
    layout = SlotLayout(made.spec, steps.max_rows, 0 if host is None else number_bytes(steps.max_rows))
    num_steps = _num_ahead(steps, config)
    sizes = Sizes(
        step_rows=steps.max_rows,
        num_steps=num_steps,
        stored_row_bytes=source.spec.row_bytes,
        slot_bytes=layout.slot_bytes,
        resident_bytes=resident_bytes(source),
        tiers_off=source.tiers_off if isinstance(source, BundledSource) else None,
        pass_bytes=made.pass_bytes(steps.max_rows),
        thread_safe=source.thread_safe or config.reader_kind == "process",
        further_slots=0 if host is None else 2,
        is_dear=is_dear(source),
    )
    source_bytes = (source.held_bytes if isinstance(source, BundledSource) else 0) + held_by(order)
    collect_gone_loaders(config, shared, context, wanted_bytes=sizes.most_bytes + source_bytes)
    held_bytes = process_ledger().held_bytes + source_bytes
    memory, share, _ = host_budget(config, shared, held_bytes, context)
    require_batch(memory, layout.slot_bytes, num_rows=steps.max_rows)
    require_readable(source, config)
    # The set would be read in this process, beside those that read it for the loop: what they read is kept instead.
    kept_as_read = config.reader_kind == "process" and config.mode == "auto" and config.readers != 0
    inline = isinstance(source, ImpureSource) and config.reader_kind == "thread"
    mode = "streaming" if shared is not None or kept_as_read else config.mode
    knobs = Knobs(mode, config.prefetch, 0 if inline else config.readers)
    plan = plan_engine(
        knobs,
        sizes,
        share=share,
        held_bytes=held_bytes,
        available_bytes=memory.available_bytes,
        num_cpus=num_cpus(),
    )
    if made.is_apart or not steps.is_even:
        # Batches that are made apart are made whole; steps of different sizes are read one by one.
        plan = replace(plan, step_parts=1)
    if not steps.is_even:
        plan = replace(plan, group_steps=1, handover_group_steps=1)
    elif config.reader_kind == "process":
        # Its samples take long: a large group would keep the first batch waiting.
        few = max(1, min(plan.group_steps, _PROCESS_GROUP_ROWS // steps.max_rows))
        plan = replace(plan, group_steps=few, handover_group_steps=min(few, plan.handover_group_steps))
    if kept_as_read and plan.why == "loader.mode=streaming":
        plan = replace(plan, why="reader processes: samples are kept as they are read")
    device = None
    if shared is not None and host is not None:
        device = plan_device(
            shared,
            host,
            source,
            order,
            config,
            step_rows=steps.max_rows,
            num_steps=num_steps,
            row_bytes=made.spec.row_bytes,
            delivered_row_bytes=making.spec.row_bytes,
            num_epochs=parts.num_epochs,
            num_samples=num_own(order, steps, num_samples),
        )
        plan = replace(plan, mode="resident" if device.decision == "resident" else "streaming", why=device.why)
    tiers_in = partial(
        plan_tiers,
        source,
        order,
        steps,
        config,
        mode=plan.mode,
        on_device=device is not None,
        has_pool=device is not None and device.pool_off is None,
        num_epochs=parts.num_epochs,
        num_readers=plan.num_readers,
        skips=parts.max_skipped is not None,
    )
    room_bytes = plan.share.num_bytes - held_bytes - plan.ring_bytes
    return Outline(
        source=source,
        order=order,
        steps=steps,
        stream=StreamIdentity(
            source,
            order.tag,
            steps.global_batch,
            mixing=order if isinstance(order, MixtureOrder) else None,
            transforms=parts.chain.tag,
        ),
        making=making,
        layout=layout,
        plan=plan,
        held_bytes=source_bytes,
        tiers=tiers_in(room_bytes=room_bytes),
        tiers_beside=lambda taken_bytes: tiers_in(room_bytes=room_bytes - taken_bytes),
        tiers_together=lambda taken_bytes, together: tiers_in(
            room_bytes=room_bytes - taken_bytes,
            mode="streaming" if device is None else plan.mode,
            together=together,
        ),
        device=device,
    )


def _num_ahead(steps: EpochSteps, config: LoaderConfig) -> int:
    """Return how many steps may be planned ahead: an epoch, or those whose shares are settled."""
    if not isinstance(steps, PlannedSteps):
        return steps.num_steps()
    most = steps.plan.lead_steps
    if config.prefetch != "auto" and config.prefetch > most:
        _log.warning(
            "loader.prefetch=%d: %d steps are read ahead at most, since cluster.balance=auto may change the shares of "
            "later ones; raise cluster.balance_every_steps for more",
            *(config.prefetch, most),
        )
    return min(steps.num_steps(), most)
