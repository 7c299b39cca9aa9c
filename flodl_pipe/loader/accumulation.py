"""Factors for the losses of batches whose gradients are accumulated, for the mean over all their rows on all ranks."""

from collections.abc import Sequence

from torch import distributed

from flodl_pipe.batch.batch import Batch
from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.attach import require_unweighted
from flodl_pipe.loader.identity import Place

__all__ = ["accumulation_weights"]


def accumulation_weights(batches: Sequence[Batch], world_size: int | None = None) -> list[float]:
    """Return factors for the losses of batches whose gradients are accumulated, for the mean over all their rows.

    ::

        attach(model, loader, weight=False)
        for batch, factor in zip(batches, accumulation_weights(batches)):
            (criterion(model(batch["x"]), batch["y"]) * factor).backward()     # all but the last under no_sync

    A factor is this rank's rows of a batch, times the number of ranks, over the rows of all the batches on all ranks.

    Args:
        batches: Consecutive batches of a loader.
        world_size: Number of ranks; None: that of torch.distributed, 1 without it.

    Raises:
        LoaderError: if there is no batch, their gradients are weighted by :func:`flodl_pipe.attach` already, or it
            cannot be told how many rows a step had.
    """
    if not batches:
        raise LoaderError("accumulation_weights() of no batch; give those whose gradients are accumulated")
    require_unweighted(batches)
    if world_size is None:
        started = distributed.is_available() and distributed.is_initialized()
        world_size = distributed.get_world_size() if started else 1
    sizes = []
    for place, batch in enumerate(batches):
        counted = batch.size if batch.valid is None else int(batch.valid.sum())
        if batch.weight > 0.0:
            sizes.append(round(counted * world_size / batch.weight))
        else:
            sizes.append(_rows_of_all(batch, batches[place - 1] if place else None))
    total = sum(sizes)
    return [batch.weight * size / total for batch, size in zip(batches, sizes, strict=True)]


def _rows_of_all(batch: Batch, before: Batch | None) -> int:
    """Return the rows of a step over all ranks in which this rank had none that counts."""
    place = batch.stands()
    if isinstance(place, Place) and place.begin is not None:
        return place.spot.position - place.begin
    cursor, earlier = batch.cursor, None if before is None else before.cursor
    if cursor is not None and earlier is not None and earlier["epoch"] == cursor["epoch"]:
        return int(cursor["position"]) - int(earlier["position"])
    raise LoaderError(
        "accumulation_weights(): the first batch has no row of this rank, and how many all ranks have is not known; "
        "give batches as the loader handed them out, or multiply each loss by batch.weight and divide by the number "
        "of batches"
    )
