"""One comm hook between a model and a loader: gradients weighted by rows, and a clock.

DistributedDataParallel averages gradients over ranks. Where ranks have different numbers of rows, the mean over the
global batch needs each rank's gradient times ``batch.weight`` first. The hook does that to each bucket as it becomes
ready, and notes when the last one was::

    forward     which batch is it? its weight is kept
    backward    bucket ready -> times weight -> the wrapped hook (all-reduce, unless the user has another)
                last bucket ready -> the clock: this rank has computed, and waits for others from here on

A weight of zero makes the bucket zero, whatever is in it: the filler row of a rank without a share may give NaN.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from flodl_pipe.batch.batch import Batch
from flodl_pipe.errors import ClusterError, LoaderError
from flodl_pipe.loader.delivered import Delivered
from flodl_pipe.loader.loader import Loader
from flodl_pipe.loader.watch import Watch

__all__ = ["Attached", "CommHook", "accumulation_weights", "attach"]

_log = logging.getLogger("flodl_pipe")

CommHook = Callable[[Any, Any], torch.futures.Future[torch.Tensor]]
"""What reduces a bucket of gradients over ranks; see ``DistributedDataParallel.register_comm_hook``."""


@final
class Attached:
    """A model and a loader that were attached. Made by :func:`attach`.

    Args:
        model: The model; its hooks are set.
        watch: What the loader tells.
        delivered: The loader's last batches.
        weight: Whether gradients are weighted.
        reduce: Reduces a bucket over ranks.
        state: Its first argument.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        watch: Watch,
        delivered: Delivered,
        *,
        weight: bool,
        reduce: CommHook,
        state: Any,
    ) -> None:
        self._watch = watch
        self._delivered = delivered
        self._weighs = weight
        self._reduce, self._state = reduce, state
        self._pending: list[float] = []  # of forward passes whose gradients were not exchanged yet
        self._factor: float | None = None
        self._named: float | None = None
        self._untrained: float | LoaderError | None = None
        self._is_detached = self._has_warned = False
        try:
            model.register_comm_hook(None, self._hook)
        except RuntimeError as error:
            raise LoaderError(
                "this model has a comm hook already, and torch allows one; do not register it, but pass it on: "
                f"attach(model, loader, comm_hook=..., comm_state=...) ({error})"
            ) from error
        self._handle = model.register_forward_pre_hook(self._forward, with_kwargs=True) if weight else None

    def use(self, batch: Batch) -> None:
        """Name the batch that the next forward pass works on, where its inputs do not tell: when they were computed.

        Args:
            batch: A batch of the loader.
        """
        self._named = batch.weight

    def detach(self) -> None:
        """Weigh gradients and take times no longer. Torch keeps a comm hook for as long as the model lives: this one
        only calls the one it wraps from now on.
        """
        self._is_detached = True
        self._pending.clear()
        if self._handle is not None:
            self._handle.remove()

    def _forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        if not module.training:
            # Validation without no_grad, mostly. If gradients come of it, it was training with layers held still.
            try:
                self._untrained = self._weight_of(args, kwargs)
            except LoaderError as error:
                self._untrained = error
            return
        weight = self._weight_of(args, kwargs)
        if self._pending and weight != self._pending[0]:
            weights = [*self._pending, weight]
            self._pending.clear()
            raise LoaderError(
                f"gradients of {len(weights)} batches are accumulated that weigh differently ({weights}), and what is "
                "accumulated can be weighted only as one; use attach(model, loader, weight=False), and multiply the "
                "loss of each batch by its own of flodl_pipe.accumulation_weights(batches), which also divides by "
                "their number"
            )
        self._pending.append(weight)

    def _weight_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        if self._named is not None:
            weight, self._named = self._named, None
            return weight
        weight, is_sure = self._delivered.weight_of((args, kwargs))
        if not is_sure and self._delivered.may_differ and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "attach: the model's inputs are no tensors of a batch, nor as many rows as one, and batches of this "
                "loader may weigh differently (an epoch's last, or when shares change), which will be an error then; "
                "call attached.use(batch) before each forward pass"
            )
        return weight

    def _hook(
        self,
        _: object,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]  # torch compares it with this very class
    ) -> torch.futures.Future[torch.Tensor]:
        if self._is_detached:
            return self._reduce(self._state, bucket)
        if self._weighs:
            self._scale(bucket.buffer())
        if bucket.is_last():
            self._pending.clear()
            self._watch.clock.computed()
        return self._reduce(self._state, bucket)

    def _scale(self, gradients: torch.Tensor) -> None:
        if self._pending:
            self._factor = self._pending[0]
        elif self._untrained is not None:
            if isinstance(self._untrained, LoaderError):
                raise self._untrained
            self._factor = self._untrained
        if self._factor is None:
            raise LoaderError(
                "gradients came of a forward pass that did not go through the model that was attached; call the "
                "DistributedDataParallel model itself, or use attach(model, loader, weight=False) and multiply the "
                "loss by batch.weight"
            )
        if self._factor == 0.0:
            gradients.zero_()  # NaN times 0 would be NaN
        elif self._factor != 1.0:
            gradients.mul_(self._factor)


def attach(
    ddp_model: torch.nn.Module,
    loader: Loader,
    *,
    weight: bool = True,
    comm_hook: CommHook | None = None,
    comm_state: Any = None,
) -> Attached:
    """Make gradients those of the global batch, however unequal the ranks' shares; and tell how fast this rank is.

    ::

        model = DistributedDataParallel(model)
        flodl_pipe.attach(model, loader)
        for x, y in loader:
            loss = criterion(model(x), y)     # the mean over the rows of this rank
            loss.backward()                   # gradients are of the mean over all ranks' rows

    Call it once, after the model is wrapped and before the first step. Beside it the loss stays as it is: a mean over
    the rows that count. Without it, or with FSDP and other wrappers that have no comm hook, multiply the loss by
    ``batch.weight``; for ``cluster.balance=auto`` call ``loader.compute_done()`` too.

    Accumulated gradients (``no_sync``) are weighted as one, which is right as long as the batches weigh the same; where
    they do not, the forward pass raises, and :func:`flodl_pipe.accumulation_weights` has the factors.

    Args:
        ddp_model: The model, wrapped by DistributedDataParallel.
        loader: The loader of its training batches.
        weight: Whether to weigh gradients; False where the loss is weighted.
        comm_hook: What reduces buckets of gradients instead of torch's all-reduce. It is given weighted ones.
        comm_state: Its first argument.

    Returns:
        The two together; :meth:`Attached.use` names a batch where a model's inputs do not.

    Raises:
        LoaderError: if the model is not wrapped, or has a comm hook already.
        ClusterError: if loader and model are of different numbers of ranks.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise LoaderError(
            f"attach() needs a model wrapped by torch's DistributedDataParallel, got {type(ddp_model).__name__}; wrap "
            "it first, and give the wrapped model itself where it was compiled; with FSDP and others multiply the "
            "loss by batch.weight instead"
        )
    ranks: int = ddp_model.process_group.size()
    rank: int = ddp_model.process_group.rank()
    context = loader.context
    if (rank, ranks) != (context.rank, context.world_size):
        raise ClusterError(
            f"the model is rank {rank} of {ranks}, and the loader is rank {context.rank} of {context.world_size}; "
            "build the loader after init_process_group() by flodl_pipe.load(), or give "
            "Loader(context=RunContext.from_environment()); its ranks must be those that average gradients"
        )
    watch = loader.watched()
    assert watch.delivered is not None
    return Attached(
        ddp_model,
        watch,
        watch.delivered,
        weight=weight,
        reduce=allreduce_hook if comm_hook is None else comm_hook,
        state=comm_state,
    )


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
        LoaderError: if there is no batch, or it cannot be told how many rows a step had.
    """
    if not batches:
        raise LoaderError("accumulation_weights() of no batch; give those whose gradients are accumulated")
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
    cursor, earlier = batch.cursor, None if before is None else before.cursor
    if cursor is not None:
        epoch, position, rows = (int(cursor[key]) for key in ("epoch", "position", "global_batch"))
        if earlier is not None and earlier["epoch"] == epoch:
            return position - int(earlier["position"])
        if not str(cursor["order"]).startswith("batch sampler"):
            return position % rows or rows
    raise LoaderError(
        "accumulation_weights(): the first batch has no row of this rank, and how many all ranks have is not known; "
        "begin with the batch before it, or multiply each loss by batch.weight and divide by the number of batches"
    )
