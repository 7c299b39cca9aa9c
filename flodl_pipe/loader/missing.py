"""Steps of which a device holds some rows: only the others are read, and fill their slots from the first row on."""

from collections.abc import Callable
from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.lookahead import Rows
from flodl_pipe.loader.skipping import SkippingReads
from flodl_pipe.loader.slots import SlotLayout
from flodl_pipe.loader.stored import StoredRows, part_of
from flodl_pipe.staging.pool_slabs import GatherPlan

__all__ = ["MissingRows"]


@final
class MissingRows:
    """Fills groups with the rows that a device lacks.

    Args:
        plan: Plans a step: which of its rows the device holds.
        reads: Knows the samples that are skipped.
        stored: Reads rows, and delivers them.
        layout: Layout of a slot.
    """

    def __init__(
        self,
        plan: Callable[[IndexArray], GatherPlan],
        reads: SkippingReads,
        stored: StoredRows,
        layout: SlotLayout,
    ) -> None:
        self._plan = plan
        self._reads = reads
        self._stored = stored
        self._layout = layout

    def fill(self, group: Group, first: int, wanted: Rows, step_rows: int) -> bool:
        """Fill whole steps, from step ``first`` of a group on; ``group.plans`` say which rows were left out.

        Steps with samples that are, or will be, skipped are filled whole: their rows stand in for one another.

        Returns:
            Whether they were filled; False where the device has none of the rows.

        Raises:
            Exception: what the source raises.
        """
        if self._reads.skips_any(wanted.samples):
            return False
        steps = wanted.samples.reshape(-1, step_rows)
        plans = [self._plan(samples) for samples in steps]
        if not any(plan.num_hits for plan in plans):
            return False
        missing = np.concatenate([samples[plan.missing] for samples, plan in zip(steps, plans, strict=True)])
        try:
            stored = self._stored.read(missing) if len(missing) else {}
        except Exception:
            if self._reads.skips:
                return False  # read whole, what is at fault is found and replaced
            raise
        slots, begin = self._layout.single_runs(group.runs), 0
        for place, plan in enumerate(plans, first):
            group.plans[place] = plan
            end = begin + len(plan.missing)
            if end > begin:
                views = self._layout.group_views(slots[place], end - begin)
                part = part_of(stored, slice(begin, end))
                self._stored.deliver(part, {name: view[0] for name, view in views.items()})
            begin = end
        return True
