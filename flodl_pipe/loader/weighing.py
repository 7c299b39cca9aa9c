"""Who weighs the gradients of ranks that weigh differently: exactly one of a comm hook and the loss, or it is told.

Gradients that nobody weighs are a little wrong, those that two weigh too, and neither shows. What can be seen is
whether ``attach`` was called, and whether anybody in this process has asked a batch for its weight.
"""

import logging
from typing import final

import torch

from flodl_pipe.batch.batch import Batch, num_weight_reads

__all__ = ["Weighing"]

_log = logging.getLogger("flodl_pipe")

# A loop may take some batches ahead before it trains on the first.
_NUM_AHEAD = 4


@final
class Weighing:
    """Looks on, and warns once. For the loop's thread.

    Args:
        matters: Whether the ranks of this run are real ones, whose gradients are averaged.

    Attributes:
        by_attach: Whether a comm hook weighs gradients.
    """

    def __init__(self, *, matters: bool) -> None:
        self.by_attach = False
        self._looks = matters
        self._reads: int | None = None
        self._weight: float | None = None
        self._num_since = 0

    def given(self, batch: Batch) -> None:
        """Note a batch that is handed out."""
        if not self._looks:
            return
        if self._reads is None:
            self._reads = num_weight_reads()
        weight = batch.peek_weight()
        if self._weight is None and weight not in (0.0, 1.0):
            self._weight = weight
        if self._weight is not None:
            self._num_since += 1

    def asked(self) -> None:
        """Look whether gradients of the batches so far were weighed, and not twice."""
        if not self._looks or self._num_since < _NUM_AHEAD or not torch.is_grad_enabled():
            return
        was_read = num_weight_reads() != self._reads
        if self.by_attach and was_read:
            _log.warning(
                "batch.weight was read, and attach() weighs gradients already: a loss that is multiplied by it counts "
                "twice; leave it out of the loss, or use attach(model, loader, weight=False)"
            )
        elif not self.by_attach and not was_read:
            _log.warning(
                "a batch of this rank weighs %.6g, and nothing weighs its gradients so far: a plain average over ranks "
                "is not the mean over the global batch; call flodl_pipe.attach(ddp_model, loader) before the loop, or "
                "multiply the loss by batch.weight (a loop that trains nothing: torch.no_grad())",
                self._weight,
            )
        elif self.by_attach:
            return
        self._looks = False
