"""Filling slots: picks to stored rows to delivered rows, a group of steps at a time.

One call of the source reads all rows of a group into the reader's own scratch rows (stored dtypes, small enough for the
processor's cache), and one call of ``deliver`` per run of slots widens them into place. The number of Python steps is
per group, not per row. A resident set that keeps samples field by field delivers them by itself.
"""

import contextlib
import threading
from collections.abc import Mapping
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray, WordArray
from flodl_pipe.errors import StagingError
from flodl_pipe.keyed.digest import row_hashes
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.lookahead import Lookahead
from flodl_pipe.loader.planes import PlaneStore
from flodl_pipe.loader.resident import ResidentSet
from flodl_pipe.loader.slots import SlotLayout
from flodl_pipe.sources.protocol import BundledSource, Source
from flodl_pipe.sources.purity import require_pure

__all__ = ["Filler"]

Rows = Mapping[str, Array]

_PURITY_SAMPLES = 8


@final
class Filler:
    """Reads rows and delivers them into slots; shared by the readers of a loader.

    Args:
        source: Where rows come from.
        layout: Layout of a slot.
        resident: The resident set, asked first once it is ready; None when streaming.
        read_lock: Held around each read of a source that is not thread-safe.
        step_parts: Parts a step is split into.
        keep_digest: Whether to hash the stored rows of every step.
        check_purity: Whether to read the first samples twice and compare.
    """

    def __init__(
        self,
        source: Source,
        layout: SlotLayout,
        *,
        resident: ResidentSet | None,
        read_lock: contextlib.AbstractContextManager[object],
        step_parts: int,
        keep_digest: bool,
        check_purity: bool,
    ) -> None:
        self._source = source
        self._bundled = source if isinstance(source, BundledSource) else None
        self._layout = layout
        self._resident = resident
        self._read_lock = read_lock
        self._step_parts = step_parts
        self._keep_digest = keep_digest
        self._check_purity = check_purity and __debug__
        self._names = list(zip(source.delivered.names, layout.spec.names, strict=True))
        self._scratch = threading.local()
        self._hash_lock = threading.Lock()

    def fill(self, group: Group, part: int, ahead: Lookahead) -> None:
        """Read one part of a group into its slots; what goes wrong is recorded in the group.

        When several steps were read together and one of their samples fails, they are read again one by one, so that
        the good steps before it still arrive and the error stands at its own step.
        """
        if not len(group.picks):  # readers of several parts may all come here: they find the same numbers
            group.positions, group.picks = ahead.rows(group.first_step, group.num_steps)
        try:
            if self._step_parts > 1:
                self._fill_part(group, part, ahead)
            else:
                self._fill_steps(group, 0, group.num_steps, ahead)
        except Exception as error:  # noqa: BLE001 - whatever the source raised goes to the loop, with its traceback
            if group.num_steps == 1:
                group.fail(error, 0)
            else:
                self._fill_one_by_one(group, ahead)
        if self._check_purity and group.error is None:
            self._check_purity = False  # several readers may come here at once: once more does no harm
            try:
                with self._read_lock:
                    require_pure(self._source, group.picks[:_PURITY_SAMPLES])
            except Exception as error:  # noqa: BLE001 - as above
                group.fail(error, 0)

    def _fill_one_by_one(self, group: Group, ahead: Lookahead) -> None:
        for step in range(group.num_steps):
            try:
                self._fill_steps(group, step, step + 1, ahead)
            except Exception as error:  # noqa: BLE001 - as above; the first one ends the loop
                group.fail(error, step)
                return

    def _fill_steps(self, group: Group, first: int, last: int, ahead: Lookahead) -> None:
        """Fill whole steps ``first .. last - 1`` of the group."""
        step_rows = len(group.picks) // group.num_steps
        rows = slice(first * step_rows, last * step_rows)
        planes = self._planes()
        if planes is not None:
            self._copy_steps(planes, group, first, last)
            return
        stored = self._read(group.picks[rows])
        if self._keep_digest:
            hashes = self._hash(group, rows, stored, ahead).reshape(last - first, step_rows, 2)
            group.hash_sums[first:last] = hashes.sum(axis=1, dtype=np.uint64)
        step = 0
        for run in group.runs:
            low, high = max(first, step), min(last, step + run.num_slots)
            if low < high:
                done = slice((low - first) * step_rows, (high - first) * step_rows)
                shaped = {n: a[done].reshape(high - low, step_rows, *a.shape[1:]) for n, a in stored.items()}
                views = self._layout.group_views(run, step_rows)
                self._deliver(shaped, {name: view[low - step : high - step] for name, view in views.items()})
            step += run.num_slots

    def _planes(self) -> PlaneStore | None:
        """Return the resident samples field by field, where no stored rows are needed."""
        return None if self._resident is None or self._keep_digest else self._resident.planes

    def _copy_steps(self, planes: PlaneStore, group: Group, first: int, last: int) -> None:
        """Fill whole steps field by field, without stored rows in between."""
        step_rows = len(group.picks) // group.num_steps
        rows = planes.rows(group.picks)
        step = 0
        for run in group.runs:
            low, high = max(first, step), min(last, step + run.num_slots)
            if low < high:
                views = self._layout.step_views(run, step_rows, planes.opaque)
                here = rows[low * step_rows : high * step_rows]
                planes.deliver(here, [view[low - step : high - step] for view in views])
            step += run.num_slots

    def _fill_part(self, group: Group, part: int, ahead: Lookahead) -> None:
        """Fill some rows of the group's one step."""
        part_rows = -(-len(group.picks) // self._step_parts)
        rows = slice(min(part * part_rows, len(group.picks)), min((part + 1) * part_rows, len(group.picks)))
        if rows.start == rows.stop:
            return
        (run,) = group.runs
        planes = self._planes()
        if planes is not None:
            fields = self._layout.step_views(run, len(group.picks), planes.opaque)
            planes.deliver(planes.rows(group.picks[rows]), [view[:, rows] for view in fields])
            return
        stored = self._read(group.picks[rows])
        if self._keep_digest:
            hashes = self._hash(group, rows, stored, ahead)
            with self._hash_lock:
                group.hash_sums[0] += hashes.sum(axis=0, dtype=np.uint64)
        views = self._layout.group_views(run, len(group.picks))
        self._deliver(stored, {name: view[0, rows] for name, view in views.items()})

    def _read(self, indices: IndexArray) -> Rows:
        """Return the stored rows of some samples; valid until this thread's next call."""
        if self._resident is not None and self._resident.is_ready:
            return self._resident.gather(indices)
        num_rows = len(indices)
        try:
            stored = self._buffers(num_rows)
        except MemoryError as error:
            raise StagingError(
                f"no memory for {num_rows:,} stored rows of {self._source.spec.row_bytes:,} bytes ({error}); lower "
                "loader.batch_size, or lift the limit on memory (ulimit -v, the control group's)"
            ) from error
        with self._read_lock:
            self._source.read_into(indices, np.arange(num_rows, dtype=np.int64), stored)
        return stored

    def _buffers(self, num_rows: int) -> Rows:
        if self._bundled is not None:
            return self._bundled.buffers(num_rows)
        kept: dict[str, Array] | None = getattr(self._scratch, "fields", None)
        if kept is None or len(next(iter(kept.values()))) < num_rows:
            kept = self._scratch.fields = self._source.spec.empty(num_rows)
        return {name: array[:num_rows] for name, array in kept.items()}

    def _deliver(self, stored: Rows, views: Rows) -> None:
        self._source.deliver(stored, {own: views[shown] for own, shown in self._names})

    def _hash(self, group: Group, rows: slice, stored: Rows, ahead: Lookahead) -> WordArray:
        """Return the hashes of stored rows, zero for rows that only fill a place."""
        picks = group.picks[rows]
        hashes = row_hashes(
            stored.values(),
            epoch=ahead.epoch,
            positions=group.positions[rows],
            samples=picks,
            repeats=np.zeros_like(picks),
        )
        if group.first_step + group.num_steps == ahead.num_steps:  # only an epoch's last step has such rows
            last = ahead.step(ahead.num_steps - 1)
            hashes[group.positions[rows] >= last.start + last.num_valid] = 0
        return hashes
