"""The batches that were handed out last: which of them does a forward pass work on?

A loop may take a batch ahead of the one it trains on, move it to a device, or unpack it. Tensors are known again by
their storage: that survives views and unpacking, and cannot be mistaken for another, even when its memory is used anew.
Where inputs were copied, the batch is told by its number of rows, or does not matter: mostly all batches weigh the
same. Or it is the last one: where never more than one was handed out between two forward passes, the loop takes none
ahead.
"""

from collections import deque
from typing import NamedTuple, final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree

from flodl_pipe.batch.batch import Batch
from flodl_pipe.errors import LoaderError

__all__ = ["Delivered"]

_NUM_KEPT = 16


class _Handed(NamedTuple):
    """A batch that was handed out.

    Attributes:
        weight: Its weight.
        num_rows: Its rows.
        storages: What tells the storages of its tensors from others.
        references: They are not kept alive, but what tells them apart is not given to others.
    """

    weight: float
    num_rows: int
    storages: frozenset[int]
    references: tuple[StorageWeakRef, ...]


@final
class Delivered:
    """The last batches of a loader. For the loop's thread.

    Attributes:
        may_differ: Whether batches of this loader may differ in weight; it decides what is worth a warning.
    """

    def __init__(self, *, may_differ: bool = True) -> None:
        self.may_differ = may_differ
        self._num_fresh = self._most_fresh = 0  # since the last forward pass
        self._is_plain = True
        self._last: deque[_Handed] = deque(maxlen=_NUM_KEPT)

    def note(self, batch: Batch, num_rows: int) -> None:
        """Note that a batch of so many rows was handed out."""
        references = tuple(reference for tensor in batch.values() if (reference := _reference(tensor)) is not None)
        identities = frozenset(reference.cdata for reference in references)
        self._last.append(_Handed(batch.peek_weight(), num_rows, identities, references))
        self._num_fresh += 1

    def miss(self) -> None:
        """Note that batches were handed out before anybody looked: how far ahead the loop is cannot be told."""
        self._is_plain, self._most_fresh = False, _NUM_KEPT

    def has(self, batch: Batch) -> bool:
        """Return whether a batch is one of the last."""
        references = (_reference(tensor) for tensor in batch.values())
        identities = {reference.cdata for reference in references if reference is not None}
        return any(handed.storages & identities for handed in self._last)

    def weight_of(self, inputs: object) -> tuple[float, bool]:
        """Return the weight of the batch that a model's inputs are of, and whether that is known for sure.

        Args:
            inputs: Arguments of a forward pass: tensors, or batches, in lists, tuples and dicts.

        Raises:
            LoaderError: if it cannot be told.
        """
        self._is_plain = self._is_plain and self._num_fresh <= 1
        self._most_fresh = max(self._most_fresh, self._num_fresh)
        self._num_fresh = 0
        whole = [leaf for leaf in _leaves(inputs, stop_at_batches=True) if isinstance(leaf, Batch)]
        if whole:
            return _the_only({batch.peek_weight() for batch in whole}), True
        tensors = [leaf for leaf in _leaves(inputs) if isinstance(leaf, torch.Tensor)]
        references = [reference for tensor in tensors if (reference := _reference(tensor)) is not None]
        identities = {reference.cdata for reference in references}
        found = {handed.weight for handed in self._last if handed.storages & identities}
        if found:
            return _the_only(found), True
        if not self._last:
            raise LoaderError(
                "a forward pass in training mode, and no batch was handed out since attach(); take batches from the "
                "loader that was attached, or call attached.use(batch) before the forward pass"
            )
        if self._is_plain:
            return self._last[-1].weight, True
        # The loop was never further ahead: part of a batch is not mistaken for a short one of long ago.
        lately = list(self._last)[-self._most_fresh :]
        of_size = {h.weight for h in lately if tensors and tensors[0].ndim and h.num_rows == len(tensors[0])}
        if len(of_size) == 1:
            return of_size.pop(), True
        weights = {handed.weight for handed in self._last}
        if len(weights) == 1:
            return weights.pop(), False
        sizes = ", ".join(f"{rows} rows weigh {weight:.6g}" for rows, weight in sorted({h[1::-1] for h in self._last}))
        shape = tuple(tensors[0].shape) if tensors else "none"
        raise LoaderError(
            f"which batch does this forward pass work on? Its inputs (first shape {shape}) are no batch of the loader "
            f"nor parts of one, and the last batches differ ({sizes}); call attached.use(batch) before the forward pass"
        )


def _the_only(weights: set[float]) -> float:
    if len(weights) == 1:
        return weights.pop()
    raise LoaderError(
        f"this forward pass works on parts of batches that weigh differently ({sorted(weights)}), and one weight goes "
        "to its gradients; pass one batch at a time, or multiply each loss by batch.weight and attach(weight=False)"
    )


def _leaves(inputs: object, *, stop_at_batches: bool = False) -> list[object]:
    is_leaf = (lambda node: isinstance(node, Batch)) if stop_at_batches else None
    leaves: list[object] = _pytree.tree_leaves(inputs, is_leaf=is_leaf)
    return leaves


def _reference(tensor: torch.Tensor) -> StorageWeakRef | None:
    """Return a reference to a tensor's storage; None where it has none: sparse, fake, or of another library."""
    try:
        storage = (tensor.values() if tensor.is_nested else tensor).untyped_storage()
        return StorageWeakRef(storage)  # type: ignore[no-untyped-call]
    except (NotImplementedError, RuntimeError):
        return None
