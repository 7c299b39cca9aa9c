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
import weakref
from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from flodl_pipe.batch.batch import Batch
from flodl_pipe.cluster.agree import agree
from flodl_pipe.errors import ClusterError, LoaderError
from flodl_pipe.loader.delivered import Delivered
from flodl_pipe.loader.loader import Loader
from flodl_pipe.loader.watch import Watch

__all__ = ["Attached", "CommHook", "attach", "require_unweighted"]

_log = logging.getLogger("flodl_pipe")

CommHook = Callable[[Any, Any], torch.futures.Future[torch.Tensor]]
"""What reduces a bucket of gradients over ranks; see ``DistributedDataParallel.register_comm_hook``."""


@final
class _Relay:
    """The comm hook of a model. Torch keeps one for as long as the model lives; what it calls may change."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.attached: Attached | None = None
        try:
            model.register_comm_hook(None, self._hook)
        except RuntimeError as error:
            raise LoaderError(
                "this model has a comm hook already, and torch allows one; do not register it, but pass it on: "
                f"attach(model, loader, comm_hook=..., comm_state=...) ({error})"
            ) from error

    def _hook(
        self,
        _: object,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]  # torch compares it with this very class
    ) -> torch.futures.Future[torch.Tensor]:
        assert self.attached is not None
        return self.attached.reduce(bucket)


_relays: "weakref.WeakKeyDictionary[DistributedDataParallel, _Relay]" = weakref.WeakKeyDictionary()
# Those that weigh gradients now.
_weighing: "weakref.WeakSet[Attached]" = weakref.WeakSet()


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
        self._untrained: dict[float, LoaderError | None] = {}  # weights of those in evaluation mode, likewise
        self._factor: float | None = None  # of the exchange that is going on
        self._named: float | None = None
        self._has_warned = False
        self.is_detached = False
        self._handle = model.register_forward_pre_hook(self._forward, with_kwargs=True) if weight else None
        if weight:
            _weighing.add(self)
            watch.weighing.by_attach = True

    def use(self, batch: Batch) -> None:
        """Name the batch that the next forward pass works on, where its inputs do not tell: when they were computed.

        Args:
            batch: A batch of the loader.
        """
        self._named = batch.peek_weight()

    def detach(self) -> None:
        """Weigh gradients and take times no longer; the model can be attached anew. Torch keeps a comm hook for as long
        as the model lives: until then it calls the one that was wrapped here.
        """
        self.is_detached = True
        self._pending.clear()
        self._untrained.clear()
        if self._handle is not None:
            self._handle.remove()
            _weighing.discard(self)
            self._watch.weighing.by_attach = False

    def weighs(self, batches: Iterable[Batch]) -> bool:
        """Return whether one of these batches was handed out by the loader lately, and its gradients are weighted."""
        return self._weighs and any(self._delivered.has(batch) for batch in batches)

    def _forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        if not module.training:
            # Validation without no_grad, mostly. If gradients come of it, it was training with layers held still.
            try:
                self._untrained[self._weight_of(args, kwargs)] = None
            except LoaderError as error:
                self._untrained[-1.0] = error
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

    def reduce(
        self,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        """Weigh a bucket that is ready, and give it to the hook that reduces it over ranks; for torch."""
        if self.is_detached:
            return self._reduce(self._state, bucket)
        if self._weighs:
            gradients = bucket.buffer()
            if self._factor is None:
                self._factor = self._factor_now()
            if self._factor == 0.0:
                gradients.zero_()  # NaN times 0 would be NaN
            elif self._factor != 1.0:
                gradients.mul_(self._factor)
        if bucket.is_last():
            self._pending.clear()
            self._untrained.clear()
            self._factor = None
            self._watch.clock.computed()
        return self._reduce(self._state, bucket)

    def _factor_now(self) -> float:
        """Return the weight of the gradients that are exchanged now."""
        if self._pending:
            return self._pending[0]
        if not self._untrained:
            raise LoaderError(
                "gradients came of a forward pass that did not go through the model that was attached; call the "
                "DistributedDataParallel model itself, or use attach(model, loader, weight=False) and multiply the "
                "loss by batch.weight"
            )
        unknown = self._untrained.get(-1.0)
        if unknown is not None:
            raise unknown
        if len(self._untrained) > 1:
            raise LoaderError(
                "gradients came of forward passes in evaluation mode, and since the last exchange there were some that "
                f"weigh differently ({sorted(self._untrained)}); validate under torch.no_grad(), and where gradients "
                "are accumulated use attach(model, loader, weight=False) with flodl_pipe.accumulation_weights(batches)"
            )
        return next(iter(self._untrained))


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

    Call it once, on all ranks, after the model is wrapped and before the first step. Beside it the loss stays as it is:
    a mean over the rows that count. Without it, or with FSDP and other wrappers that have no comm hook, multiply the
    loss by ``batch.weight``. For another loader, :meth:`Attached.detach` what this returned and call it again.

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
        LoaderError: if the model is not wrapped, has a comm hook already, or is attached.
        ClusterError: if loader and model are of different numbers of ranks, or a rank does not come, or comes with
            another ``weight``.
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
    relay = _relays.get(ddp_model)
    if relay is not None and relay.attached is not None and not relay.attached.is_detached:
        raise LoaderError(
            "attach() was called for this model already; call it once, or detach() what it returned before the model "
            "is attached to another loader"
        )
    if context.world is not None:
        agree(context.world, {"attach": {"weight": weight, "own hook": comm_hook is not None}}, "at attach()")
    if relay is None:
        relay = _relays[ddp_model] = _Relay(ddp_model)
    watch = loader.watched()
    assert watch.delivered is not None
    relay.attached = Attached(
        ddp_model,
        watch,
        watch.delivered,
        weight=weight,
        reduce=allreduce_hook if comm_hook is None else comm_hook,
        state=comm_state,
    )
    return relay.attached


def require_unweighted(batches: Iterable[Batch]) -> None:
    """Refuse batches whose gradients are weighted by a comm hook: their losses must not be as well.

    Raises:
        LoaderError: if they are of a loader that was attached with weights.
    """
    batches = list(batches)
    if any(attached.weighs(batches) for attached in _weighing):
        raise LoaderError(
            "accumulation_weights(): attach() weighs the gradients of these batches already, and both together would "
            "count twice; use attach(model, loader, weight=False)"
        )
