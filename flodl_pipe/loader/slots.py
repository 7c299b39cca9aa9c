"""Slots: the memory that batches are delivered in, reused when the loop lets go of it.

A slot holds the delivered fields of one step. In a slab each field has a region of its own, where the slots lie side by
side: rows of consecutive steps follow each other, and a group is filled by one copy per field. A batch's tensors are
views of one fresh array over its slab (the *lease*); torch keeps that array alive through every view, autograd graph or
DLPack capsule, and when the last of them dies a weak reference puts the slot back. So a batch belongs to the loop for
as long as the loop cares, and costs no allocation.

Reference counts of storages are not used for this: a tensor sent to another process has none here.

Slabs are private anonymous memory: after a fork, parent and child each own their copy of a batch. When the loop keeps
batches, further slabs are mapped (that memory is the loop's), and they go again when they have become free.
"""

import contextlib
import mmap
import queue
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import StagingError
from flodl_pipe.units import format_bytes

__all__ = ["Run", "SlotLayout", "SlotPool"]

_FIELD_ALIGN_BYTES = 64
_SLOT_ALIGN_BYTES = 4096
_BYTE = np.dtype(np.uint8)

Memory = mmap.mmap | memoryview
"""What a slab lies in."""


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@final
class SlotLayout:
    """Where each delivered field of a step lies.

    Args:
        spec: Delivered spec.
        max_rows: Most rows of a step, ``B``.
        extra_bytes: Further bytes of a slot, for whoever moves it on.

    Attributes:
        offsets: First byte of each field in a slab of one slot; in one of ``n`` slots its region begins at ``n`` times
            as many.
        slot_bytes: Bytes of a slab for each of its slots, whole pages.
    """

    def __init__(self, spec: SampleSpec, max_rows: int, extra_bytes: int = 0) -> None:
        self.spec = spec
        self.max_rows = max_rows
        self.offsets: list[int] = []
        sizes: list[int] = []
        end = 0
        for field in spec:
            self.offsets.append(end)
            sizes.append(_round_up(max_rows * field.row_bytes, _FIELD_ALIGN_BYTES))
            end += sizes[-1]
        self._extra = extra_bytes, end, _round_up(extra_bytes, _FIELD_ALIGN_BYTES)
        self.slot_bytes = _round_up(max(end + self._extra[-1], 1), _SLOT_ALIGN_BYTES)
        self._views = [
            (np.dtype(field.dtype), field.shape, offset, size, field.empty(1).strides)
            for field, offset, size in zip(spec, self.offsets, sizes, strict=True)
        ]
        self._opaque = [np.dtype(f"V{field.row_bytes}") for field in spec]

    def group_views(self, run: "Run", num_rows: int) -> dict[str, Array]:
        """Return the fields of all slots of a run, each of shape ``(num_slots, num_rows, *field.shape)``."""
        return dict(zip(self.spec.names, self.step_views(run, num_rows, [False] * len(self._views)), strict=True))

    def step_views(self, run: "Run", num_rows: int, opaque: Sequence[bool]) -> list[Array]:
        """Return the fields of all slots of a run as :meth:`group_views` does, in field order.

        Args:
            run: The slots.
            num_rows: Rows of a step.
            opaque: Whether a field's rows are wanted as opaque items: ``(num_slots, num_rows)`` of a row's size.
        """
        views, memory = [], run.memory
        for is_opaque, item, (dtype, shape, offset, size, row_strides) in zip(
            opaque, self._opaque, self._views, strict=True
        ):
            begin, lead = run.begin(offset, size), (run.num_slots, num_rows)
            views.append(
                np.ndarray(lead, item, memory, begin, (size, item.itemsize))
                if is_opaque
                else np.ndarray((*lead, *shape), dtype, memory, begin, (size, *row_strides))
            )
        return views

    def single_runs(self, runs: Sequence["Run"]) -> list["Run"]:
        """Return one run for each slot of some."""
        return [
            Run(run.first + place, 1, run.memory, run.slab_slots, run.place + place)
            for run in runs
            for place in range(run.num_slots)
        ]

    def field_bytes(self, run: "Run", num_rows: int) -> list[ByteArray]:
        """Return the bytes of each field's first rows in a run of one slot, each 1-D and contiguous."""
        return [
            np.ndarray((num_rows * field.row_bytes,), _BYTE, run.memory, run.begin(offset, size))
            for field, (*_, offset, size, _) in zip(self.spec, self._views, strict=True)
        ]

    def extra_bytes(self, run: "Run") -> ByteArray:
        """Return the further bytes of a run of one slot."""
        num_bytes, offset, size = self._extra
        return np.ndarray((num_bytes,), _BYTE, run.memory, run.begin(offset, size))

    def lease_views(self, run: "Run", leases: Sequence[ByteArray], num_rows: int) -> list[list[Array]]:
        """Return for each field its arrays in the first slots of a run, each of shape ``(num_rows, *field.shape)``.

        Args:
            run: The slots.
            leases: An array over the slab for each of them, which its views keep alive.
            num_rows: Rows of a step.
        """
        columns, new = [], np.ndarray
        for dtype, shape, offset, size, _ in self._views:
            whole, begin = (num_rows, *shape), run.begin(offset, size)
            columns.append([new(whole, dtype, lease, begin + place * size) for place, lease in enumerate(leases)])
        return columns


@final
@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive slots of one slab.

    Attributes:
        first: Number of the first slot.
        num_slots: How many.
        memory: The slab.
        slab_slots: Slots of the slab.
        place: Which of them the first slot is.
    """

    first: int
    num_slots: int
    memory: Memory
    slab_slots: int
    place: int

    def begin(self, offset: int, size: int) -> int:
        """Return the byte of the slab where the first slot has a field, given its offset and its bytes in a slot."""
        return offset * self.slab_slots + self.place * size


def _anonymous(num_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # fewer page faults where the kernel offers it
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


@final
class _Lease(weakref.ref[ByteArray]):
    """A weak reference to a leased array that knows its slot."""

    __slots__ = ("slot",)
    slot: int


@final
class SlotPool:
    """Slots of one layout. ``take`` and ``put_back`` are called under the caller's lock; leases end in any thread.

    Args:
        layout: Layout of a slot.
        num_slots: Slots of a slab; the first slab is what the ring is granted.
        new_slab: Gives memory for a slab; None: private anonymous memory.
    """

    def __init__(self, layout: SlotLayout, num_slots: int, new_slab: Callable[[int], ByteArray] | None = None) -> None:
        self.layout = layout
        self.num_slots = num_slots
        self._new_slab = new_slab
        self._slabs: list[Memory | None] = []
        # One byte per slot, 1 when free; each slab is followed by a 0, so that a run never crosses slabs. Searching it
        # for a run of ones is one call into C.
        self._free = bytearray()
        # The lease that lasts on each slot. The reference must live as long as the lease, or it would not be called.
        self._leases: dict[int, _Lease] = {}
        # Takes the references of leases that ended. SimpleQueue.put is reentrant, the only kind of call that is safe
        # from a weak reference's callback.
        self._ended: queue.SimpleQueue[_Lease] = queue.SimpleQueue()
        self._slab_shape = (num_slots * layout.slot_bytes,)

    @property
    def num_mapped(self) -> int:
        """Slots that memory is mapped for."""
        return self.num_slots * sum(slab is not None for slab in self._slabs)

    def take(self, count: int) -> list[Run]:
        """Return ``count`` free slots as few runs; maps another slab when there are none.

        Raises:
            StagingError: if the system refuses the memory.
        """
        self._collect()
        runs: list[Run] = []
        while count:
            run = self._take_run(count)
            if run is None:
                self._map_slab()
                continue
            runs.append(run)
            count -= run.num_slots
        return runs

    def lease(self, runs: Sequence[Run], num_slots: int, num_rows: int) -> list[list[Array]]:
        """Lease slots that were taken; each comes back by itself when the last of its arrays dies.

        Args:
            runs: Runs of slots.
            num_slots: How many of their slots, from the first on.
            num_rows: Rows of a step.

        Returns:
            For each field the arrays of the slots, each of shape ``(num_rows, *field.shape)``.
        """
        columns: list[list[Array]] = [[] for _ in self.layout.offsets]
        for run in runs:
            leases = self._lease(run, min(run.num_slots, num_slots))
            num_slots -= len(leases)
            for column, arrays in zip(columns, self.layout.lease_views(run, leases, num_rows), strict=True):
                column.extend(arrays)
        return columns

    def _lease(self, run: Run, num_slots: int) -> list[ByteArray]:
        shape, memory, ended, new = self._slab_shape, run.memory, self._ended.put, np.ndarray
        arrays = []
        for slot in range(run.first, run.first + num_slots):
            array: ByteArray = new(shape, _BYTE, memory)
            lease = self._leases[slot] = _Lease(array, ended)
            lease.slot = slot
            arrays.append(array)
        return arrays

    def put_back(self, slot: int) -> None:
        """Return a taken slot that was never leased."""
        self._free[slot] = 1

    def _take_run(self, count: int) -> Run | None:
        while count:
            # First fit: the slots used last are taken first, while they are still in the processor's cache.
            first = self._free.find(b"\x01" * count)
            if first >= 0:
                self._free[first : first + count] = bytes(count)
                slab, place = divmod(first, self.num_slots + 1)
                memory = self._slabs[slab]
                assert memory is not None
                return Run(first, count, memory, self.num_slots, place)
            count //= 2
        return None

    def _map_slab(self) -> None:
        num_bytes = self.num_slots * self.layout.slot_bytes
        try:
            # No array: views of an array over an array would keep the lower one only, and a lease would end early.
            memory = _anonymous(num_bytes) if self._new_slab is None else self._new_slab(num_bytes).data
        except (OSError, OverflowError) as error:
            raise StagingError(
                f"the system refuses {format_bytes(num_bytes)} for {self.num_slots} batches read ahead ({error}); "
                "lower loader.batch_size or loader.prefetch, or lift the limit on memory (ulimit -v, control group)"
            ) from error
        place = next((index for index, slab in enumerate(self._slabs) if slab is None), len(self._slabs))
        if place == len(self._slabs):
            self._slabs.append(None)
            self._free += bytes(self.num_slots + 1)
        self._slabs[place] = memory
        first = place * (self.num_slots + 1)
        self._free[first : first + self.num_slots] = b"\x01" * self.num_slots

    def _collect(self) -> None:
        """Free the slots whose leases ended, and unmap further slabs that have become free altogether."""
        ended, leases, free = self._ended, self._leases, self._free
        while not ended.empty():
            slot = ended.get().slot
            del leases[slot]
            free[slot] = 1
        all_free = b"\x01" * self.num_slots
        for place in range(1, len(self._slabs)):
            first = place * (self.num_slots + 1)
            if self._slabs[place] is not None and self._free[first : first + self.num_slots] == all_free:
                self._slabs[place] = None
                self._free[first : first + self.num_slots] = bytes(self.num_slots)
