"""The order of a source: what the section ``sampling`` asks for, or the rule that the source brings along."""

from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.errors import ConfigError
from flodl_pipe.sampling.drawn import DrawnOrder
from flodl_pipe.sampling.mixture_order import MixtureOrder
from flodl_pipe.sampling.orders import Order, SequentialOrder, UniformOrder
from flodl_pipe.sources.ordering import Drawn, Mixed
from flodl_pipe.sources.protocol import BundledSource, Source

__all__ = ["order_for"]


def order_for(source: Source, sampling: SamplingConfig) -> Order:
    """Return the family of orders that a source is read in.

    Args:
        source: The samples, at least one.
        sampling: Section ``sampling``.

    Raises:
        ConfigError: if the section asks for what the source's own rule excludes.
    """
    ordering = source.ordering if isinstance(source, BundledSource) else None
    if isinstance(ordering, Mixed):
        return MixtureOrder(
            ordering.parts,
            ordering.schedule,
            block=ordering.block,
            num_picks=ordering.num_picks,
            seed=sampling.seed,
            shuffle=sampling.shuffle,
        )
    if isinstance(ordering, Drawn):
        if not sampling.shuffle:
            raise ConfigError.at(
                "sampling.shuffle",
                "false asks for storage order, but this source draws its samples at random, with replacement; leave "
                "sampling.shuffle at true, or read windows one after the other with source.starts=stride",
            )
        return DrawnOrder(len(source), ordering.num_picks, sampling.seed)
    if not sampling.shuffle:
        return SequentialOrder(len(source))
    return UniformOrder(len(source), sampling.seed)
