"""What a described cluster would read: a source that is here, or numbers that stand in for one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.job import PlanJob
from flodl_pipe.config.root import Config
from flodl_pipe.errors import ConfigError
from flodl_pipe.jobs.plan_work import why_not_foretold
from flodl_pipe.loader.lane_order import lanes_order, rows_together
from flodl_pipe.loader.making import making_for
from flodl_pipe.loader.order import order_and_steps
from flodl_pipe.loader.outline import Outline, first_global_batch
from flodl_pipe.loader.parts import Parts
from flodl_pipe.loader.resident import resident_bytes
from flodl_pipe.loader.stream_outline import NO_TIERS, StreamOutline, outline_stream
from flodl_pipe.sampling.drawn import DrawnOrder
from flodl_pipe.sampling.mixture_order import MixtureOrder
from flodl_pipe.sampling.steps import EpochSteps, Steps
from flodl_pipe.sampling.weighted import WeightedOrder
from flodl_pipe.sources.imports import import_callable
from flodl_pipe.sources.protocol import BundledSource, is_dear
from flodl_pipe.transforms.build import build_chain
from flodl_pipe.units import format_bytes

__all__ = ["ClusterData", "data_of"]

_ROW_EXTRA_BYTES = 1  # a RAM cache knows of each row whether it is there
_RECORD_EXTRA_BYTES = 8  # a disk stage checks each row


@final
@dataclass(frozen=True)
class ClusterData:
    """Numbers of the data, and how an epoch of them is cut into steps.

    Attributes:
        told: What the data is, in words.
        num_samples: Samples; an estimate for a stream, None where it has none.
        row_bytes: Bytes of a stored row.
        global_batch: Rows of a step over all ranks.
        unit: Rows of a step that are never cut apart.
        full_unit: The same of a full step; those of a lane.
        steps: Steps of an epoch, of the first rank; None for a stream.
        repeats: Picks of each sample in an epoch.
        is_lanes: Whether the order is ``lanes``.
        kept_bytes: What a RAM cache needs for a row.
        record_bytes: What a disk stage needs for a row.
        ahead: Whether the RAM cache is filled ahead.
        tiers_off: Why it cannot be told what tiers hold; empty where it can.
        is_in_memory: Whether every rank holds all of it from the start, and batches read nothing.
    """

    told: str
    num_samples: int | None
    row_bytes: int
    global_batch: int
    unit: int = 1
    full_unit: int = 1
    steps: EpochSteps | None = None
    repeats: int = 1
    is_lanes: bool = False
    kept_bytes: float = 1.0
    record_bytes: int = 1
    ahead: bool = True
    tiers_off: str = ""
    is_in_memory: bool = False


def data_of(config: Config, found: Outline | StreamOutline | None, context: RunContext) -> ClusterData:
    """Return what the ranks of a cluster would read, as the same code that builds loaders sees it.

    Args:
        config: The config.
        found: What a loader of this machine would be made of; None where ``job.num_samples`` stands in for the source.
        context: The first rank of the cluster.

    Raises:
        ConfigError: if the run would be refused: a global batch smaller than the world, an epoch without a batch.
    """
    global_batch = first_global_batch(config.loader, context)
    if found is None:
        return _stated(config, global_batch, context)
    if isinstance(found, StreamOutline):
        parts = found.making.parts
        found = outline_stream(
            found.source, config.loader, config.sampling, parts, global_batch=global_batch, context=context
        )
        return ClusterData(
            f"a stream of the kind {config.source.kind}",
            found.source.num_samples_estimate,
            found.source.spec.row_bytes,
            global_batch,
            found.making.unit,
            found.making.unit,
            tiers_off=NO_TIERS,
        )
    return _of_source(config, found, global_batch, context)


def _of_source(config: Config, found: Outline, global_batch: int, context: RunContext) -> ClusterData:
    source, parts = found.source, found.making.parts
    order, steps, making = order_and_steps(
        source, config.loader, config.sampling, parts, global_batch=global_batch, context=context
    )
    row_bytes = source.spec.row_bytes
    off = source.tiers_off if isinstance(source, BundledSource) else None
    off = off or why_not_foretold(found)
    if not off and isinstance(order, WeightedOrder | DrawnOrder | MixtureOrder):
        off = "samples are drawn, some more often than others; the tiers of one rank are foretold above"
    in_memory = not off and not resident_bytes(source)
    if in_memory:
        off = "every rank has the whole set in its own memory, where the source puts it; batches read nothing"
    extents = source.extents if isinstance(source, BundledSource) else None
    kept: float = row_bytes + _ROW_EXTRA_BYTES
    if extents is not None and not order.tag.startswith("lanes "):
        # Samples that overlap share their bytes, where a rank's samples are all of them.
        kept = min(kept, extents.num_bytes / len(source))
    return ClusterData(
        f"{len(source):,} samples of {format_bytes(row_bytes)}, from the source",
        len(source),
        row_bytes,
        steps.global_batch,
        making.unit,
        rows_together(order, making.unit, global_batch=steps.global_batch, world_size=context.world_size),
        steps,
        order.num_repeats or 1,
        order.tag.startswith("lanes "),
        kept,
        row_bytes + _RECORD_EXTRA_BYTES,
        found.plan.num_readers > 0 and not is_dear(source),
        off,
        in_memory,
    )


def _stated(config: Config, global_batch: int, context: RunContext) -> ClusterData:
    job, sampling = config.job, config.sampling
    assert isinstance(job, PlanJob)
    assert job.num_samples is not None
    assert job.sample_bytes is not None
    order: str = sampling.order
    for key, is_set in (
        ("order", order not in ("uniform", "blocked", "lanes")),
        ("sampler", sampling.sampler is not None),
        ("batch_sampler", sampling.batch_sampler is not None),
    ):
        if is_set:
            raise ConfigError.at(
                "job.num_samples",
                f"{job.num_samples:,} stands in for samples that are not there, and sampling.{key}="
                f"{getattr(sampling, key)} has to look at them; leave sampling.{key} at its default for this plan",
            )
    unit = _unit(config, job.sample_bytes, context.world_size)
    full_unit = unit
    if order == "lanes":
        lanes = lanes_order(job.num_samples, sampling, None, global_batch)
        full_unit = rows_together(lanes, unit, global_batch=global_batch, world_size=context.world_size)
    steps = Steps(
        job.num_samples * sampling.augment,
        global_batch,
        sampling.drop_last,
        world_size=context.world_size,
        ratios=context.ratios,
        unit=unit,
        full_unit=full_unit,
    )
    return ClusterData(
        f"{job.num_samples:,} samples of {format_bytes(job.sample_bytes)}, as job.num_samples and job.sample_bytes "
        "say; no data was looked at",
        job.num_samples,
        job.sample_bytes,
        global_batch,
        unit,
        full_unit,
        steps,
        sampling.augment,
        order == "lanes",
        job.sample_bytes + _ROW_EXTRA_BYTES,
        job.sample_bytes + _RECORD_EXTRA_BYTES,
        config.loader.readers != 0,
    )


def _unit(config: Config, sample_bytes: int, world_size: int) -> int:
    def imported(path: str, key: str) -> Callable[..., Any]:
        return import_callable(path, config.allow_import, key)

    chain = build_chain(config.transforms, imported)
    if chain.scope == "batch":  # refused where several ranks share a batch
        making_for(SampleSpec.of(sample=("uint8", (sample_bytes,))), Parts(chain=chain), world_size)
    return 2 if chain.scope == "pair" else 1
