"""The order of a source and its steps: what the section ``sampling`` asks for, or the rule that the source brings."""

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.config.sampling import INVERSE_FREQUENCY, SamplingConfig
from flodl_pipe.errors import ConfigError
from flodl_pipe.loader.labels import labels_of
from flodl_pipe.loader.lane_order import lanes_order, rows_together
from flodl_pipe.loader.making import Making, making_for
from flodl_pipe.loader.parts import Parts
from flodl_pipe.sampling.batch_sampler import BatchSamplerOrder, BatchSteps
from flodl_pipe.sampling.blocked import RUNS_OF_A_BLOCK, BlockedOrder
from flodl_pipe.sampling.bucketed import BucketedOrder, rows_in
from flodl_pipe.sampling.drawn import DrawnOrder
from flodl_pipe.sampling.inverse_frequency import inverse_frequency
from flodl_pipe.sampling.lanes import LanesOrder
from flodl_pipe.sampling.mixture_order import MixtureOrder
from flodl_pipe.sampling.orders import Order, SequentialOrder, UniformOrder
from flodl_pipe.sampling.planned_steps import planned
from flodl_pipe.sampling.sampler_order import SamplerOrder
from flodl_pipe.sampling.steps import EpochSteps, Steps
from flodl_pipe.sampling.weighted import WeightedOrder
from flodl_pipe.sources.ordering import Drawn, Mixed, Ordering
from flodl_pipe.sources.protocol import BundledSource, HasLengths, HasShards, Source

__all__ = ["held_by", "may_be_made_ahead", "order_and_steps", "order_for"]


def order_and_steps(
    source: Source,
    config: LoaderConfig,
    sampling: SamplingConfig,
    parts: Parts,
    *,
    global_batch: int,
    context: RunContext,
) -> tuple[Order, EpochSteps, Making]:
    """Return what a source is read in, how that is cut into steps, and how batches are made.

    Args:
        source: The samples, at least one.
        config: Section ``loader``.
        sampling: Section ``sampling``.
        parts: Functions and arrays that no section holds.
        global_batch: Rows of a step over all ranks.
        context: Rank, world size and shares.

    Raises:
        ConfigError: if the sections ask for what the source, or each other, exclude; if an epoch would have no batch.
    """
    making = making_for(source.delivered.renamed(config.names), parts, context.world_size)
    order = order_for(source, sampling, parts, global_batch)
    together = rows_together(order, making.unit, global_batch=global_batch, world_size=context.world_size)
    steps: EpochSteps
    if isinstance(order, BatchSamplerOrder):
        steps = BatchSteps(order, context.rank, context.world_size, ratios=context.ratios, unit=making.unit)
    else:
        steps = Steps(
            order.num_picks,
            global_batch,
            sampling.drop_last,
            rank=context.rank,
            world_size=context.world_size,
            ratios=context.ratios,
            unit=making.unit,
            full_unit=together,
        )
    if context.shares is not None and context.world_size > 1:
        steps = planned(steps, context.shares, context.ratios, together)
    return order, steps, making


def order_for(source: Source, sampling: SamplingConfig, parts: Parts, global_batch: int) -> Order:
    """Return the family of orders that a source is read in.

    Args:
        source: The samples, at least one.
        sampling: Section ``sampling``.
        parts: Samplers, weights and lengths.
        global_batch: Rows of a step over all ranks, which bucketing makes batches of.

    Raises:
        ConfigError: if the section asks for what the source's own rule excludes, or what is given does not fit it.
    """
    ordering = source.ordering if isinstance(source, BundledSource) else None
    if ordering is not None:
        return _own_order(source, ordering, sampling, parts)
    num_samples, seed, repeats = len(source), sampling.seed, sampling.augment
    if parts.sampler is not None:
        return SamplerOrder(parts.sampler, num_samples, seed, shared=parts.shared)
    if parts.batch_sampler is not None:
        return BatchSamplerOrder(parts.batch_sampler, num_samples, seed, shared=parts.shared)
    if sampling.order == "weighted":
        weights = _weights(source, sampling, parts)
        return WeightedOrder(weights, sampling.num_draws or num_samples, seed, num_samples=num_samples)
    if sampling.order == "blocked":
        starts = (
            _cut_up(source.shard_starts(), num_samples, sampling.block_samples)
            if isinstance(source, HasShards)
            else None
        )
        return BlockedOrder(
            num_samples, seed, block_samples=sampling.block_samples, run_starts=starts, num_repeats=repeats
        )
    if sampling.order == "lanes":
        return lanes_order(num_samples, sampling, parts.order_tag, global_batch)
    if sampling.order == "bucketed":
        first_rows = None if parts.order_tag is None else rows_in(parts.order_tag)
        return BucketedOrder(
            _lengths(source, parts),
            seed,
            rows=first_rows or global_batch,
            pool_batches=sampling.pool_batches,
            num_repeats=repeats,
            num_samples=num_samples,
        )
    if not sampling.shuffle:
        return SequentialOrder(num_samples * repeats, num_repeats=repeats)
    return UniformOrder(num_samples * repeats, seed, num_repeats=repeats)


def held_by(order: Order) -> int:
    """Return the bytes that an order holds in memory: weights, lengths, a sampler's indices."""
    if isinstance(order, WeightedOrder | BlockedOrder | BucketedOrder | LanesOrder | SamplerOrder | BatchSamplerOrder):
        return order.held_bytes
    return 0


def may_be_made_ahead(order: Order) -> bool:
    """Return whether a reader may make an epoch: not where the loop's own random states would change meanwhile."""
    return not (isinstance(order, SamplerOrder | BatchSamplerOrder) and order.draws_globally)


def _own_order(source: Source, ordering: Ordering, sampling: SamplingConfig, parts: Parts) -> Order:
    """Return the order of a source that brings its rule along."""
    what = "mixes its parts by weight" if isinstance(ordering, Mixed) else "draws its samples at random"
    for key, is_asked in (
        ("order", sampling.order != "uniform"),
        ("augment", sampling.augment > 1),
        ("sampler", parts.sampler is not None),
        ("batch_sampler", parts.batch_sampler is not None),
    ):
        if is_asked:
            raise ConfigError.at(
                f"sampling.{key}",
                f"has no meaning for a source that {what}, and so says itself which sample comes how often; leave it "
                "at its default",
            )
    if isinstance(ordering, Mixed):
        return MixtureOrder(
            ordering.parts,
            ordering.schedule,
            block=ordering.block,
            num_picks=ordering.num_picks,
            seed=sampling.seed,
            shuffle=sampling.shuffle,
        )
    assert isinstance(ordering, Drawn)
    if not sampling.shuffle:
        raise ConfigError.at(
            "sampling.shuffle",
            "false asks for storage order, but this source draws its samples at random, with replacement; leave "
            "sampling.shuffle at true, or read windows one after the other with source.starts=stride",
        )
    return DrawnOrder(len(source), ordering.num_picks, sampling.seed)


def _cut_up(starts: IndexArray, num_samples: int, block_samples: int) -> IndexArray:
    """Cut shards into runs that are a small part of a block: one large shard would be read in storage order."""
    most = max(1, block_samples // RUNS_OF_A_BLOCK)
    counts = np.diff(starts, append=num_samples)
    pieces = -(-counts // most)
    first = np.repeat(np.cumsum(pieces) - pieces, pieces)
    cut: IndexArray = np.repeat(starts, pieces) + (np.arange(pieces.sum(), dtype=np.int64) - first) * most
    return cut


def _weights(source: Source, sampling: SamplingConfig, parts: Parts) -> Array:
    if parts.weights is not None:
        return parts.weights
    if sampling.weights == INVERSE_FREQUENCY:
        return inverse_frequency(labels_of(source, sampling.label_field))
    raise ConfigError.at("sampling.weights", "must be given for order=weighted: one weight for each sample")


def _lengths(source: Source, parts: Parts) -> IndexArray:
    if parts.lengths is not None:
        return parts.lengths
    if isinstance(source, HasLengths):
        return np.asarray(source.lengths(), dtype=np.int64)
    raise ConfigError.at(
        "sampling.lengths",
        f"must be given for order=bucketed: {type(source).__name__} does not say how long its samples are; give a .npy "
        "file of integers, one for each sample, or in Python Loader(lengths=array)",
    )
