"""What the loader of a stream will be, worked out from knobs and probes: nothing is read, granted or started."""

from dataclasses import dataclass, replace
from typing import final

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.errors import ConfigError, StagingError
from flodl_pipe.loader.device_plan import DevicePlan, plan_device
from flodl_pipe.loader.host_budget import collect_gone_loaders, host_budget
from flodl_pipe.loader.host_side import host_side
from flodl_pipe.loader.identity import StreamIdentity
from flodl_pipe.loader.making import Making, making_for
from flodl_pipe.loader.parts import Parts
from flodl_pipe.loader.plan import EnginePlan, Knobs, Sizes, plan_engine
from flodl_pipe.loader.slots import SlotLayout
from flodl_pipe.loader.stream_steps import StreamSteps
from flodl_pipe.loader.targets import target_device
from flodl_pipe.loader.upload import number_bytes
from flodl_pipe.memory.ledger import process_ledger
from flodl_pipe.memory.probe import num_cpus
from flodl_pipe.sources.stream_protocol import Stream
from flodl_pipe.units import format_bytes

__all__ = ["StreamOutline", "outline_stream"]

NO_TIERS = "a stream has no index, so no memory tier can hold its samples"


@final
@dataclass(frozen=True)
class StreamOutline:
    """The loader of a stream on paper.

    Attributes:
        source: The data.
        order_tag: What decides the order.
        turn_rows: Rows that a lane gives before the next one's turn.
        stream: Identity of the stream.
        making: How delivered rows become batches.
        layout: Where each field of a step lies.
        plan: Ring and reader, and what they take.
        device: What may be held of a device; None where batches are delivered on the CPU.
    """

    source: Stream
    order_tag: str
    turn_rows: int
    stream: StreamIdentity
    making: Making
    layout: SlotLayout
    plan: EnginePlan
    device: DevicePlan | None = None

    @property
    def host_making(self) -> Making:
        """What the reader makes: batches, or what a device makes batches of."""
        return self.making if self.device is None else self.device.host.making


def outline_stream(
    source: Stream,
    config: LoaderConfig,
    sampling: SamplingConfig,
    parts: Parts,
    *,
    global_batch: int,
    context: RunContext,
) -> StreamOutline:
    """Work out how a stream would be served here and now.

    Args:
        source: The data.
        config: Section ``loader``.
        sampling: Section ``sampling``.
        parts: Functions and arrays that no section holds.
        global_batch: Rows of a step over all ranks.
        context: Rank and world size.

    Raises:
        ConfigError: if there are more ranks than lanes, ``drop_last`` is ``pad``, or the section asks for an order that
            needs an index.
        StagingError: if the mode is forced to be resident, or memory would be refused.
    """
    if config.reader_kind == "process":
        raise ConfigError.at(
            "loader.reader_kind",
            "process, but a stream's rows come one after the other, from one reader; use thread",
        )
    if sampling.drop_last == "pad":
        raise ConfigError.at(
            "sampling.drop_last",
            "pad repeats the epoch's head, which a stream does not keep; use true or false",
        )
    _refuse_orders(sampling)
    if config.mode == "resident":
        raise StagingError(f"loader.mode=resident, but {NO_TIERS}; use loader.mode=auto or streaming")
    if context.world_size > source.num_lanes:
        raise ConfigError.at(
            "source.lanes",
            f"the stream has {source.num_lanes} logical shards (lanes), fewer than the {context.world_size} ranks, and "
            "each rank reads lanes of its own; give more files and set source.lanes, or start fewer ranks",
        )
    making = making_for(source.delivered.renamed(config.names), parts, context.world_size)
    steps = StreamSteps(global_batch, sampling.drop_last, epoch=0, position=0, context=context, unit=making.unit)
    shared = target_device(config)
    host = None if shared is None else host_side(source, making)
    made = making if host is None else host.making
    layout = SlotLayout(made.spec, steps.max_rows, 0 if host is None else number_bytes(steps.max_rows))
    estimate = source.num_samples_estimate
    sizes = Sizes(
        step_rows=steps.max_rows,
        num_steps=1 << 61 if estimate is None else max(1, estimate // global_batch),
        stored_row_bytes=source.spec.row_bytes,
        slot_bytes=layout.slot_bytes,
        resident_bytes=0,
        thread_safe=False,
        tiers_off=NO_TIERS,
        pass_bytes=made.pass_bytes(steps.max_rows),
        further_slots=0 if host is None else 2,
    )
    # Rows of a stream come one after the other: one reader, or the loop itself.
    readers = config.readers if config.readers == "auto" else min(config.readers, 1)
    collect_gone_loaders(config, shared, context, wanted_bytes=sizes.most_bytes + source.buffer_bytes)
    held_bytes = process_ledger().held_bytes
    memory, share, _ = host_budget(config, shared, held_bytes, context)
    if source.buffer_bytes > share.num_bytes - held_bytes:
        raise StagingError(
            f"the buffers of {source.num_lanes} lanes take {format_bytes(source.buffer_bytes)}, and "
            f"{format_bytes(max(0, share.num_bytes - held_bytes))} may be held ({share.reason}); lower "
            "source.shuffle_buffer, source.lanes or the length of a row (source.seq_len, source.max_length), or raise "
            "loader.ram_max_usage"
        )
    plan = plan_engine(
        Knobs(config.mode, config.prefetch, readers),
        sizes,
        share=share,
        held_bytes=held_bytes + source.buffer_bytes,
        available_bytes=memory.available_bytes - source.buffer_bytes,
        num_cpus=num_cpus(),
    )
    device = None
    if shared is not None and host is not None:
        device = plan_device(
            shared,
            host,
            None,
            None,
            config,
            step_rows=steps.max_rows,
            num_steps=sizes.num_steps,
            row_bytes=made.spec.row_bytes,
            delivered_row_bytes=making.spec.row_bytes,
            num_epochs=None,
        )
    shuffle = f"shuffled seed={sampling.seed}" if sampling.shuffle else "in storage order"
    order_tag = f"stream {source.tag} {shuffle}"
    return StreamOutline(
        source=source,
        order_tag=order_tag,
        turn_rows=-(-global_batch // source.num_lanes),
        stream=StreamIdentity(source, order_tag, global_batch, transforms=parts.chain.tag),
        making=making,
        layout=layout,
        plan=replace(plan, group_steps=1, handover_group_steps=1, step_parts=1),
        device=device,
    )


def _refuse_orders(sampling: SamplingConfig) -> None:
    """Refuse what needs samples by number."""
    asked = {
        "order": sampling.order != "uniform",
        "augment": sampling.augment > 1,
        "sampler": sampling.sampler is not None,
        "batch_sampler": sampling.batch_sampler is not None,
    }
    for key, is_asked in asked.items():
        if is_asked:
            raise ConfigError.at(
                f"sampling.{key}",
                f"{getattr(sampling, key)} needs samples by number, and a stream only comes in its order; leave it at "
                "its default, or use a source with an index",
            )
