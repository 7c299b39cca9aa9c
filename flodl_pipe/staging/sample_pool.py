"""The device sample pool: stored rows that stay on the device once they were uploaded.

The pool takes in rows of uploaded batches by a copy on the device, until it is full, and never evicts. It holds a range
of ranks ``[0, capacity_rows)``, rank ``r`` at row ``r`` of its memory, so that membership is one byte per sample and
no sample is looked up. Memory comes late, in slabs, each only when those before it are there and a row of it is to be
admitted, one at a time::

    ranks     0 ........ | ........ | ........ | ....        capacity_rows
    memory    slab 0       slab 1     none yet

What the device has to know to move rows, their numbers, is computed here and uploaded by the caller with the rows, in
one copy::

    reader       plan = pool.plan(samples)               plan.missing: rows to read;  plan.index: numbers to upload
    transfer     admission = pool.admission(missing)     which of those stay;  admission.index: numbers to upload
                 (copy rows and numbers in)
                 rows = pool.assemble(plan, ...)         all rows of the batch, in order
                 pool.admit(admission, ...)              copied: no view of the upload is kept

:meth:`SamplePool.plan` may be called by any thread. ``admission``, ``admit`` and ``grow`` belong to one thread, the one
that enqueues on the pool's stream. A plan outlives what happens to the pool meanwhile: it keeps the slabs it needs,
unless they are wanted back at once.

Shape letters: ``B`` rows of a batch, ``K`` samples, ``N`` samples of the source.
"""

import threading
from collections.abc import Mapping
from functools import partial
from typing import final

import numpy as np
import torch

from flodl_pipe.arrays import BoolArray, IndexArray
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.devices.protocol import Device, Event, Stream
from flodl_pipe.errors import DeviceMemoryError
from flodl_pipe.staging.held_ranks import HeldRanks
from flodl_pipe.staging.pool_slabs import Admission, GatherPlan, Slab, copy_in, gather
from flodl_pipe.staging.protocol import TierCount
from flodl_pipe.staging.ranking import Ranking

__all__ = ["SamplePool"]

# Small sets are one slab. Of large ones a slab is a part of what may be held: every slab a batch needs costs the host
# a kernel call, some 5 us.
_SLAB_BYTES = 32 << 20
_MAX_SLABS = 32


@final
class SamplePool:
    """Samples on a device, as stored.

    Args:
        device: Where.
        spec: The stored fields; none is ragged.
        ranking: What the pool holds a range of.
        stream: The stream that rows are uploaded on. All work is enqueued there, unless another one is given.
        slab_rows: Rows of a slab; default: 32 MiB, or a 32nd of what may be held when the first one is made.

    Attributes:
        capacity_rows: Ranks below may be held.
        refusal: What the device said when it had no memory for the next slab; None while it was not asked, or had.
            Nothing more is asked for until :meth:`grow` is called again.
        off: Why the pool was switched off.
    """

    name = "sample pool"

    def __init__(
        self, device: Device, spec: SampleSpec, ranking: Ranking, *, stream: Stream, slab_rows: int | None = None
    ) -> None:
        self._device, self._spec, self._ranking, self._stream = device, spec, ranking, stream
        self._num_samples, self._slab_rows = len(ranking), slab_rows
        self._lock = threading.RLock()  # collecting garbage inside may close another pool, or this one
        self._held = HeldRanks(ranking)
        self._slabs: tuple[Slab, ...] = ()
        # After all writes, and all reads on other streams; what is enqueued there and here is ordered by it.
        self._order = threading.RLock()
        self._last: Event | None = None
        self.capacity_rows = 0
        self.refusal: DeviceMemoryError | None = None
        self.off: str | None = None
        self._asked = self._hits = self._filled = 0

    @property
    def num_rows(self) -> int:
        """Samples held."""
        return self._held.count

    @property
    def is_complete(self) -> bool:
        """Whether every sample of the source is held."""
        return self._held.count == self._num_samples

    @property
    def held_bytes(self) -> int:
        """Bytes of device memory that are kept, those of rows to come included."""
        return sum(slab.num_bytes for slab in self._slabs)

    def holds(self, indices: IndexArray) -> BoolArray:
        """Return which samples are held, shape ``(K,)``."""
        return self._held.of(self._ranking.ranks(indices))

    def missing(self, first_rank: int, count: int) -> tuple[IndexArray, int]:
        """Return the next samples that may be held and are not, at most ``count``, and the rank to go on from.

        Args:
            first_rank: Where to look from; ranks follow each other up to :attr:`capacity_rows`.
            count: Most samples, at least 1.
        """
        return self._held.missing(first_rank, self.capacity_rows, count)

    def grow(self, capacity_rows: int, *, at_once: bool = False) -> bool:
        """Let more ranks be held.

        Args:
            capacity_rows: Ranks below may be held from now on; cut to ``N``. Fewer than before change nothing. Where it
                ends, so does a slab: steps of less than a slab make many small ones.
            at_once: Take all memory for them now, in one piece for each field, so that a batch is one gather for each
                field. All or nothing.

        Returns:
            Whether there was memory; always without ``at_once``, where it is only asked for when rows come.
        """
        capacity = min(capacity_rows, self._num_samples)
        if self.off is not None:
            return False
        self.refusal = None
        with self._lock:
            reserved = self._slabs[-1].end if self._slabs else 0
            if at_once and capacity > reserved and not self._allocate(capacity - reserved):
                return False
            self.capacity_rows = max(self.capacity_rows, capacity)
        return True

    def shrink(self, capacity_rows: int, *, at_once: bool = False) -> int:
        """Hold fewer ranks, give back the slabs beyond, and return their bytes.

        The memory is free once plans made before are through with it; with ``at_once`` now, and plans that count on it
        are void (:attr:`GatherPlan.is_void`).
        """
        with self._lock:
            self.capacity_rows = min(self.capacity_rows, max(0, capacity_rows))
            self._held.cut(self.capacity_rows)
            before = self.held_bytes
            gone = [slab for slab in self._slabs if slab.first >= self.capacity_rows]
            self._slabs = self._slabs[: len(self._slabs) - len(gone)]
            for slab in gone if at_once else ():
                slab.drop()
            return before - self.held_bytes

    def switch_off(self, why: str, *, at_once: bool = False) -> None:
        """Hold nothing, until :attr:`off` is None again; samples are misses. See :meth:`shrink`."""
        self.off = why
        self.shrink(0, at_once=at_once)

    def close(self) -> None:
        """Give everything back."""
        self.switch_off("closed")

    def plan(self, indices: IndexArray) -> GatherPlan:
        """Plan a batch: which of its rows are held, and which have to be uploaded.

        Args:
            indices: Samples, int64, shape ``(B,)``; repeats are allowed.
        """
        ranks = self._ranking.ranks(indices)
        with self._lock:
            held, slabs = self._held.of(ranks), self._slabs
            self._asked += len(ranks)
            self._hits += int(np.count_nonzero(held))
        return GatherPlan.of(ranks, np.flatnonzero(held), np.flatnonzero(~held), slabs)

    def assemble(
        self,
        plan: GatherPlan,
        index: torch.Tensor,
        uploaded: Mapping[str, torch.Tensor],
        *,
        stream: Stream | None = None,
    ) -> dict[str, torch.Tensor]:
        """Enqueue what puts the rows of a batch together.

        Args:
            plan: The batch.
            index: ``plan.index`` on the device, int64.
            uploaded: For each stored field the rows ``plan.missing``, in order, on the device: uint8, shape
                ``(len(plan.missing), row_bytes)``. May be empty where none is missing.
            stream: Where; default the pool's stream. Another one waits for what was admitted.

        Returns:
            For each stored field the rows of the batch, uint8, shape ``(B, row_bytes)``: new, or ``uploaded`` itself
            where nothing is held.

        Raises:
            DeviceMemoryError: if the device has no memory left for them.
        """
        if not plan.num_hits:
            return {field.name: uploaded[field.name] for field in self._spec}
        slabs = [tensor for slab, _ in plan.slabs for tensor in slab.tensors]
        reads = [*slabs, *(tensor for tensor in (index, *uploaded.values()) if tensor.numel())]
        work = partial(gather, plan, index, uploaded, self._device.torch_device)
        if stream is None or stream is self._stream:
            return self._device.compute(self._stream, work, reads=reads)
        with self._order:
            if self._last is not None:
                self._device.wait(stream, self._last)
            self._device.keep_for(stream, slabs)
            try:
                return self._device.compute(stream, work, reads=reads)
            finally:  # a part of it may be enqueued
                self._last = self._device.record(stream)

    def admission(self, indices: IndexArray) -> Admission:
        """Choose which rows of an upload stay, and see to memory for them.

        At most one slab is added: where the device refuses it, :attr:`refusal` says so, and rows of the others go on
        being admitted.

        Args:
            indices: Sample of each row of the upload, int64, shape ``(K,)``; repeats are allowed.
        """
        ranks, rows = np.unique(self._ranking.ranks(indices), return_index=True)
        with self._lock:
            wanted = (ranks < self.capacity_rows) & ~self._held.of(ranks)
            ranks, rows = ranks[wanted], rows[wanted]
            reserved = self._slabs[-1].end if self._slabs else 0
            if len(ranks) and reserved <= ranks[-1] and self.refusal is None:
                self._allocate(min(self._rows_of_slab(), self.capacity_rows - reserved))
            slabs = self._slabs
        count = int(np.searchsorted(ranks, slabs[-1].end if slabs else 0))
        order = np.argsort(rows[:count])
        return Admission.of(ranks[order], rows[order], slabs)

    def admit(
        self, admission: Admission, index: torch.Tensor, uploaded: Mapping[str, torch.Tensor], *, ahead: bool = False
    ) -> None:
        """Enqueue the copy of uploaded rows into the pool's memory; they are held from now on.

        Args:
            admission: Which rows.
            index: ``admission.index`` on the device, int64.
            uploaded: For each stored field the rows that the admission was chosen of, on the device: uint8, shape
                ``(K, row_bytes)``.
            ahead: Whether they were read only to fill the pool.

        Raises:
            DeviceMemoryError: if the device has no memory left to move them; nothing is admitted then.
        """
        if not admission.num_rows:
            return
        with self._order:
            if self._last is not None:
                self._device.wait(self._stream, self._last)
            try:
                copy_in(self._device, self._stream, admission, index, uploaded)
            finally:  # a part of it may be enqueued
                self._last = self._device.record(self._stream)
        with self._lock:
            # The pool may have shrunk since: only what lies in memory that it still has is held.
            at = 0
            for slab, count in admission.slabs:
                ranks = admission.ranks[at : at + count]
                at += count
                if slab in self._slabs:
                    ranks = ranks[ranks < self.capacity_rows]
                    self._held.add(ranks)
                    self._filled += len(ranks) * self._spec.row_bytes if ahead else 0

    def count(self) -> TierCount:
        """Return what was asked of it so far."""
        return TierCount(
            name=self.name,
            num_rows=self._asked,
            num_hits=self._hits,
            hit_bytes=self._hits * self._spec.row_bytes,
            held_bytes=self.held_bytes,
            filled_bytes=self._filled,
            off=self.off,
        )

    def _rows_of_slab(self) -> int:
        if self._slab_rows is None:
            rows = -(-_SLAB_BYTES // max(1, self._spec.row_bytes))
            self._slab_rows = max(rows, -(-self.capacity_rows // _MAX_SLABS))
        return self._slab_rows

    def _allocate(self, num_rows: int) -> bool:
        """Add a slab of ``num_rows`` ranks, where there is memory for it."""
        first = self._slabs[-1].end if self._slabs else 0
        try:
            slab = Slab(self._device, self._spec, self._stream, first, num_rows)
        except DeviceMemoryError as error:
            self.refusal = error.with_traceback(None)
            return False
        self._slabs = (*self._slabs, slab)
        return True
