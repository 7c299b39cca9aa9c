"""What a loader is made of beside its source and its sections: objects that no config can hold."""

from dataclasses import dataclass, field, replace
from typing import Self, final

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.cluster.bulletin import Bulletin
from flodl_pipe.cluster.world import World
from flodl_pipe.sampling.collate import Collate, make_collate
from flodl_pipe.transforms.chain import Chain

__all__ = ["Parts"]


def _stack() -> Collate:
    return make_collate("stack")


@final
@dataclass(frozen=True)
class Parts:
    """Arrays, samplers and functions that decide order and batches.

    Attributes:
        weights: Weight of each sample, for the weighted order, shape ``(N,)``.
        lengths: Length of each sample, for the bucketed order, int64, shape ``(N,)``.
        sampler: The user's sampler.
        batch_sampler: The user's batch sampler.
        shared: Objects that a sampler may hold, and that are not copied with it: the data set.
        chain: The transforms.
        collate: How rows become a batch.
        passes_through: Whether samples are delivered one by one, without a batch axis.
        order_tag: Tag of the order that a cursor continues, for constants that were fixed when the run started first;
            None for a run that starts anew.
        max_skipped: How many samples that cannot be read are skipped, at most; None: the first one is an error.
        skipped_by_all: Where ranks tell each other which these are; None: nowhere.
        num_epochs: Epochs of the run, where they are known: what would never be asked for again is not kept.
    """

    weights: Array | None = None
    lengths: IndexArray | None = None
    sampler: object | None = None
    batch_sampler: object | None = None
    shared: tuple[object, ...] = ()
    chain: Chain = field(default_factory=lambda: Chain(()))
    collate: Collate = field(default_factory=_stack)
    passes_through: bool = False
    order_tag: str | None = None
    max_skipped: int | None = None
    skipped_by_all: Bulletin | None = None
    num_epochs: int | None = None

    def among(self, world: World | None) -> Self:
        """Return the same for a loader of one of several ranks; all ranks ask for their loaders in the same order."""
        if world is None or self.max_skipped is None:
            return self
        return replace(self, skipped_by_all=world.bulletin("skipped samples"))
