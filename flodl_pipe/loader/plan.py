"""Deciding how a loader runs: mode, ring, groups and readers, from sizes, knobs and probes. Pure arithmetic.

The same decision serves the loader that is built and ``job=plan`` that explains it.
"""

from dataclasses import dataclass
from typing import Literal, final

from flodl_pipe.errors import StagingError
from flodl_pipe.memory.budget import Grant
from flodl_pipe.units import format_bytes

__all__ = ["EnginePlan", "Knobs", "Sizes", "plan_engine"]

# A batch is widened into a slot and read by the loop soon after. 10 MiB a group mean few changes of thread, and 40 MiB
# ahead stay near the processor's last cache: best rates on an AMD EPYC with 2 cores, 1 MiB of L2 and 32 MiB of L3,
# 2026-11-29, tests/benchmarks/tokens.py.
# 5 MiB of stored rows are 52 batches of 128 MNIST pictures; with 2 MiB, a seventh fewer batches/s, tests/benchmarks/
# images.py, 2026-11-30: readers ask for the interpreter once per operation on a whole group.
_GROUP_DELIVERED_BYTES = 10 << 20
_GROUP_STORED_BYTES = 5 << 20
_RING_BYTES = 40 << 20
_SPARE_GROUP_BYTES = 6 << 20
# Rows of a group beside a loop that keeps the interpreter: NumPy releases it in every operation on more than 500
# elements, and each time is one more change of thread.
_HANDOVER_GROUP_ROWS = 480
_MIN_DEPTH = 4
_SMALLEST_DEPTH = 2
_MAX_DEPTH = 512
# A step larger than this is split among readers.
_PART_STORED_BYTES = 2 << 20
_MAX_AUTO_READERS = 4
# The batch the loop works on, and the one its variable still names while it takes the next.
_SLOTS_WITH_THE_LOOP = 2


@final
@dataclass(frozen=True)
class Knobs:
    """The user's say, as the config has it."""

    mode: Literal["auto", "resident", "streaming"]
    prefetch: Literal["auto"] | int
    readers: Literal["auto"] | int


@final
@dataclass(frozen=True)
class Sizes:
    """What is to be moved.

    Attributes:
        step_rows: Most rows of a step on this rank.
        num_steps: Steps of an epoch, or as many of them as may be planned ahead.
        stored_row_bytes: Bytes of one stored row.
        slot_bytes: Bytes of one delivered step.
        resident_bytes: Bytes of the whole source in memory.
        thread_safe: Whether several readers may read the source at once.
        tiers_off: Why no memory tier may keep samples; None where they may.
        pass_bytes: What fused transforms take in each reader, rows before them included.
        further_slots: Groups whose slots are being copied to a device, beside those of the ring.
        is_dear: Whether a sample may take long to read; see :class:`flodl_pipe.sources.protocol.HasPrice`.
    """

    step_rows: int
    num_steps: int
    stored_row_bytes: int
    slot_bytes: int
    resident_bytes: int
    thread_safe: bool
    tiers_off: str | None = None
    pass_bytes: int = 0
    further_slots: int = 0
    is_dear: bool = False

    @property
    def most_bytes(self) -> int:
        """The most memory that a loader could make use of: a ring that nothing limits, in half of the room, and all."""
        return self.resident_bytes + 2 * max(_RING_BYTES + _GROUP_DELIVERED_BYTES, _MIN_DEPTH * 2 * self.slot_bytes)


@final
@dataclass(frozen=True)
class EnginePlan:
    """How a loader runs.

    Attributes:
        mode: ``resident`` or ``streaming``.
        why: Reason for the mode, with its numbers.
        num_readers: Reader threads; 0 reads inside ``next()``.
        depth: Steps read ahead of the loop, at most.
        group_steps: Steps gathered together.
        handover_group_steps: Steps gathered together beside a loop that hands over (see ``pace``).
        step_parts: Parts a step is split into, for several readers to share.
        num_slots: Slots of the ring: ``depth``, two more for the batches the loop holds, and a group, so that a group
            mostly finds slots side by side.
        ring_bytes: Slots, and the readers' rows before they are delivered.
        resident_bytes: The resident set; 0 when streaming.
        share: What the process may hold, and why.
        paced: Whether groups and what lies ahead grow from one step on, as far as measured times allow, because a
            sample may take long to read.
        fixed_depth: Whether the user has said how much may lie ahead.
    """

    mode: Literal["resident", "streaming"]
    why: str
    num_readers: int
    depth: int
    group_steps: int
    handover_group_steps: int
    step_parts: int
    num_slots: int
    ring_bytes: int
    resident_bytes: int
    share: Grant
    paced: bool = False
    fixed_depth: bool = False


def plan_engine(
    knobs: Knobs, sizes: Sizes, *, share: Grant, held_bytes: int, available_bytes: int, num_cpus: int
) -> EnginePlan:
    """Decide how to run.

    Args:
        knobs: The user's say.
        sizes: What is to be moved.
        share: What all loaders of this process may hold of host memory.
        held_bytes: What others of them hold already.
        available_bytes: What the machine could give, grant or not.
        num_cpus: Processors this process may run on.

    Raises:
        StagingError: if a forced mode or depth does not fit the share, or not even the smallest ring the machine.
    """
    num_readers = _num_readers(knobs, sizes, num_cpus)
    room_bytes = share.num_bytes - held_bytes
    depth, group_steps, step_parts = _shape(knobs, sizes, num_readers, room_bytes // 2)
    ring_bytes = _ring_bytes(sizes, num_readers, depth, group_steps, step_parts)
    if ring_bytes > room_bytes:
        if knobs.prefetch != "auto" and depth > _SMALLEST_DEPTH:
            raise StagingError(
                f"loader.prefetch={knobs.prefetch}: {depth} steps read ahead take {format_bytes(ring_bytes)}, and "
                f"{format_bytes(max(0, room_bytes))} may be held ({share.reason}); lower loader.prefetch or "
                "loader.batch_size, or raise loader.ram_max_usage"
            )
        # A loop cannot be fed with less than the smallest ring: a share below that (ram_max_usage: 0) means that ring.
        depth, group_steps = min(depth, _SMALLEST_DEPTH), 1
        ring_bytes = _ring_bytes(sizes, num_readers, depth, group_steps, step_parts)
        if ring_bytes > available_bytes:
            raise StagingError(
                f"a step of {sizes.step_rows:,} rows takes {format_bytes(sizes.slot_bytes)}, and the smallest ring "
                f"{format_bytes(ring_bytes)}, but {format_bytes(available_bytes)} of memory is available; lower "
                "loader.batch_size"
            )
        share = Grant(held_bytes + ring_bytes, f"the smallest ring, {depth} steps ahead; {share.reason} is less")
    num_slots = _num_slots(sizes, depth, group_steps)
    mode, why = _mode(knobs, sizes, share, share.num_bytes - held_bytes - ring_bytes)
    return EnginePlan(
        mode=mode,
        why=why,
        num_readers=num_readers,
        depth=depth,
        group_steps=group_steps,
        handover_group_steps=max(1, min(group_steps, _HANDOVER_GROUP_ROWS // sizes.step_rows)),
        step_parts=step_parts,
        num_slots=num_slots,
        ring_bytes=ring_bytes,
        resident_bytes=sizes.resident_bytes if mode == "resident" else 0,
        share=share,
        paced=sizes.is_dear,
        fixed_depth=knobs.prefetch != "auto",
    )


def _num_slots(sizes: Sizes, depth: int, group_steps: int) -> int:
    # A spare group: slots that lie side by side are then mostly free, and a group is one copy for each field. Of large
    # ones it would take the ring out of the processor's last cache, which costs more.
    is_small = group_steps > 1 and group_steps * sizes.slot_bytes <= _SPARE_GROUP_BYTES
    num_groups = sizes.further_slots + is_small
    return depth + _SLOTS_WITH_THE_LOOP + num_groups * group_steps


def _ring_bytes(sizes: Sizes, num_readers: int, depth: int, group_steps: int, step_parts: int) -> int:
    """Return the bytes of all slots, and of each reader's rows before they are delivered."""
    scratch_rows = group_steps * -(-sizes.step_rows // step_parts)
    slots_bytes = _num_slots(sizes, depth, group_steps) * sizes.slot_bytes
    return slots_bytes + max(1, num_readers) * (scratch_rows * sizes.stored_row_bytes + sizes.pass_bytes)


def _num_readers(knobs: Knobs, sizes: Sizes, num_cpus: int) -> int:
    if knobs.readers != "auto":
        return knobs.readers
    # The training loop needs a processor of its own.
    return min(_MAX_AUTO_READERS, max(1, num_cpus - 1)) if sizes.thread_safe else 1


def _shape(knobs: Knobs, sizes: Sizes, num_readers: int, room_bytes: int) -> tuple[int, int, int]:
    """Return (depth, group_steps, step_parts)."""
    if num_readers == 0:
        return 1, 1, 1
    if knobs.prefetch == "auto":
        depth = min(_MAX_DEPTH, max(_MIN_DEPTH, _RING_BYTES // sizes.slot_bytes))
        depth = max(_SMALLEST_DEPTH, min(depth, room_bytes // sizes.slot_bytes))
    else:
        depth = knobs.prefetch
    depth = min(depth, max(1, sizes.num_steps))
    stored_step_bytes = max(1, sizes.step_rows * sizes.stored_row_bytes)
    group_steps = min(
        _GROUP_DELIVERED_BYTES // sizes.slot_bytes,
        _GROUP_STORED_BYTES // stored_step_bytes,
    )
    # At least one group in the making per reader, and one being handed out.
    group_steps = max(1, min(group_steps, depth // (num_readers + 1)))
    step_parts = 1
    if group_steps == 1 and num_readers > 1:
        step_parts = min(num_readers, sizes.step_rows, max(1, stored_step_bytes // _PART_STORED_BYTES))
    return depth, group_steps, step_parts


def _mode(knobs: Knobs, sizes: Sizes, share: Grant, room_bytes: int) -> tuple[Literal["resident", "streaming"], str]:
    resident_bytes = sizes.resident_bytes
    if sizes.tiers_off is not None:
        if knobs.mode == "resident":
            raise StagingError(f"loader.mode=resident, but {sizes.tiers_off}; use loader.mode=auto or streaming")
        return "streaming", sizes.tiers_off
    needs = f"the whole set takes {format_bytes(resident_bytes)}"
    if not resident_bytes:
        needs = "the source holds the whole set in memory itself"
    room = f"{format_bytes(max(0, room_bytes))} of the host grant is left beside the ring"
    if knobs.mode == "streaming":
        return "streaming", "loader.mode=streaming"
    if not resident_bytes:
        return "resident", needs
    if resident_bytes <= room_bytes:
        return "resident", f"{needs}, and {room}"
    if knobs.mode == "resident":
        raise StagingError(
            f"loader.mode=resident, but {needs}, and {room} ({share.reason}); use loader.mode=auto or streaming, or "
            "raise loader.ram_max_usage"
        )
    return "streaming", f"{needs}, and only {room}"
