"""Filling groups: samples to stored rows to batches, a group of steps at a time.

One call of the source reads all rows of a group into the reader's own scratch rows (stored dtypes, small enough for the
processor's cache), and one call of ``deliver`` per run of slots widens them into place. The number of Python steps is
per group, not per row. A resident set that keeps samples field by field delivers them by itself. Fused transforms take
delivered rows from scratch to slots, step by step; batches that are made apart are made step by step too.

Where samples are skipped, their rows come as other rows of the step, and are marked in the group.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, IndexArray, WordArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.errors import LoaderError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.loader.advice import Advice
from flodl_pipe.loader.groups import Group
from flodl_pipe.loader.host_tiers import HostTiers
from flodl_pipe.loader.ledger import SkipLedger
from flodl_pipe.loader.lookahead import Lookahead, Rows
from flodl_pipe.loader.making import Making
from flodl_pipe.loader.missing import MissingRows
from flodl_pipe.loader.planes import PlaneStore
from flodl_pipe.loader.skipping import SkippingReads
from flodl_pipe.loader.slots import Run, SlotLayout
from flodl_pipe.loader.source_reads import Picks, SourceReads
from flodl_pipe.loader.stored import StoredRows, as_items, in_steps, part_of
from flodl_pipe.sources.protocol import Source
from flodl_pipe.sources.purity import require_pure
from flodl_pipe.staging.pool_slabs import GatherPlan

__all__ = ["Filler"]

_PURITY_SAMPLES = 8


@final
class Filler:
    """Reads rows and makes batches of them; shared by the readers of a loader.

    Args:
        source: Where rows come from.
        layout: Layout of a slot.
        making: How delivered rows become batches.
        tiers: What is asked before the source.
        reads: Reads the source.
        step_parts: Parts a step is split into.
        seed: Run seed, for the keys of rows.
        keep_digest: Whether to hash the stored rows of every step.
        check_purity: Whether to read the first samples twice and compare.
        skipped: Ledger of the samples that are skipped; None: a sample that cannot be read is an error.
        as_stored: Whether rows are delivered as they are stored, for a device to deliver.
        plan: Plans a step whose rows a device may hold, and which are left out then; None: no device does.
        advice: Watches the samples that are read again; None: nobody needs it.

    Attributes:
        reads: Reads the stored rows.
    """

    def __init__(
        self,
        source: Source,
        layout: SlotLayout,
        making: Making,
        *,
        tiers: HostTiers,
        reads: SourceReads,
        step_parts: int,
        seed: int,
        keep_digest: bool,
        check_purity: bool,
        skipped: SkipLedger | None = None,
        as_stored: bool = False,
        plan: Callable[[IndexArray], GatherPlan] | None = None,
        advice: Advice | None = None,
    ) -> None:
        self._source, self._advice = source, advice
        self._layout = layout
        self._making = making
        self._resident = tiers.whole
        self._as_stored = as_stored
        self._source_reads = reads
        self._step_parts = step_parts
        self._seed = seed
        self._keep_digest = keep_digest
        self._check_purity = check_purity and __debug__ and not reads.is_impure
        self._stored = StoredRows(
            source,
            making.rows.names,
            resident=tiers.whole,
            reads=reads,
            cascade=tiers.cascade,
            as_stored=as_stored,
        )
        self.reads = SkippingReads(self._stored, source.spec, skipped, unit=making.unit)
        self._missing = None if plan is None else MissingRows(plan, self.reads, self._stored, layout)
        self._scratch = threading.local()
        self._parts_lock = threading.Lock()  # parts of a step are read at once

    @property
    def is_apart(self) -> bool:
        """Whether batches are made apart, and need no slots."""
        return self._making.is_apart

    def read_stored(self, samples: IndexArray) -> Columns:
        """Return stored rows of some samples; valid until this thread's next call."""
        return self._stored.read(samples)

    def fill(self, group: Group, part: int, ahead: Lookahead) -> None:
        """Read one part of a group and make it; what goes wrong is recorded in the group.

        When several steps were read together and one of their samples fails, they are read again one by one, so that
        the good steps before it still arrive and the error stands at its own step.
        """
        self._scratch.first = None
        began_s = time.perf_counter()
        rows = group.rows
        if rows is None:  # readers of several parts may all come here: they find the same numbers
            rows = group.rows = ahead.rows(group.first_step, group.num_steps)
        try:
            if self._step_parts > 1:
                self._fill_part(group, part, rows, ahead)
            else:
                self._fill_steps(group, 0, group.num_steps, rows, ahead)
        except Exception as error:  # noqa: BLE001 - whatever the source raised goes to the loop, with its traceback
            if group.num_steps == 1 or isinstance(error, LoaderError):  # no step can be read where a process has died
                group.fail(error, 0)
            else:
                self._fill_one_by_one(group, rows, ahead, error)
        if self._check_purity and not part and group.error is None:
            try:
                self._require_pure(rows, (time.perf_counter() - began_s) / len(rows.samples))
            except Exception as error:  # noqa: BLE001 - as above
                group.fail(error, 0)

    def _require_pure(self, rows: Rows, sample_s: float) -> None:
        with self._parts_lock:  # several readers may come here at once
            is_mine, self._check_purity = self._check_purity, False
        if not is_mine:
            return
        samples = self.reads.readable(rows.samples[:_PURITY_SAMPLES])
        if not len(samples):
            self._check_purity = True  # the next group's, then
            return
        first: Columns | None = self._scratch.first
        is_own = first is not None and len(next(iter(first.values()))) == len(samples)
        watching = contextlib.nullcontext() if self._advice is None else self._advice.watching(len(samples), sample_s)
        with self._source_reads.lock, watching:
            require_pure(self._source, samples, first if is_own else None)

    def _note_first(self, stored: Columns, good: BoolArray | None) -> None:
        """Keep the first rows that were read for a group, to see whether they are the same when they are read again."""
        if self._check_purity and self._source_reads.is_here:
            num_rows = 0 if good is not None else min(_PURITY_SAMPLES, len(next(iter(stored.values()))))
            first = part_of(stored, slice(0, num_rows))
            self._scratch.first = {n: c if isinstance(c, Ragged) else c.copy() for n, c in first.items()}

    def _fill_one_by_one(self, group: Group, rows: Rows, ahead: Lookahead, before: Exception) -> None:
        for step in range(group.num_steps):
            try:
                self._fill_steps(group, step, step + 1, rows, ahead)
            except Exception as error:  # noqa: BLE001 - as above; the first one ends the loop
                group.fail(error, step)
                return
        # It would have ended a loop that reads one step at a time.
        group.fail(before, 0)

    def _fill_steps(self, group: Group, first: int, last: int, rows: Rows, ahead: Lookahead) -> None:
        """Make whole steps ``first .. last - 1`` of the group."""
        step_rows = len(rows.samples) // group.num_steps
        wanted = rows.part(slice(first * step_rows, last * step_rows))
        if self._missing is not None and self._missing.fill(group, first, wanted, step_rows):
            return
        planes, making = self._planes(wanted), self._making
        if planes is not None and making.one_pass is None:
            self._copy_steps(planes, group, first, last, rows)
            return
        stored: Columns | None = None
        if planes is None:
            stored, good = self.reads.read(wanted.samples, step_rows, picks=self._picks(wanted, ahead))
            if not first:
                self._note_first(stored, good)
            if good is not None:
                by_step = good.reshape(last - first, step_rows)
                for step in np.flatnonzero(~by_step.all(axis=1)).tolist():
                    self._mark(group, first + step, slice(0, step_rows), by_step[step], step_rows)
            if self._keep_digest:
                hashes = self._hash(group, wanted, stored, good, ahead).reshape(last - first, step_rows, 2)
                group.hash_sums[first:last] = hashes.sum(axis=1, dtype=np.uint64)
        if making.is_apart:
            assert stored is not None
            for step in range(first, last):
                here = slice((step - first) * step_rows, (step - first + 1) * step_rows)
                delivered = self._stored.delivered(part_of(stored, here), making.rows)
                group.made[step] = making.make(delivered, self._keys(wanted.part(here), ahead.epoch))
            return
        for run, low, high, begin in _runs(group, first, last):
            here = slice((low - first) * step_rows, (high - first) * step_rows)
            views = {
                n: view[low - begin : high - begin] for n, view in self._layout.group_views(run, step_rows).items()
            }
            if making.one_pass is None:
                assert stored is not None
                self._stored.deliver(in_steps(part_of(stored, here), high - low), views)
                continue
            for step in range(high - low):
                one = slice(here.start + step * step_rows, here.start + (step + 1) * step_rows)
                own = planes if stored is None else part_of(stored, one)
                self._pass(own, wanted.part(one), {name: view[step] for name, view in views.items()})

    def _fill_part(self, group: Group, part: int, rows: Rows, ahead: Lookahead) -> None:
        """Fill some rows of the group's one step."""
        num_rows = len(rows.samples)
        part_rows = -(-num_rows // self._step_parts)
        here = slice(min(part * part_rows, num_rows), min((part + 1) * part_rows, num_rows))
        if here.start == here.stop:
            return
        (run,) = group.runs
        planes, wanted = self._planes(rows), rows.part(here)
        if planes is not None and self._making.one_pass is None:
            fields = self._layout.step_views(run, num_rows, planes.opaque)
            planes.deliver(self._plane_rows(wanted.samples), [view[:, here] for view in fields])
            return
        stored: Columns | None = None
        if planes is None:
            stored, good = self.reads.read(rows.samples, num_rows, here, picks=self._picks(rows, ahead))
            if not part:
                self._note_first(stored, good)
            if good is not None:
                self._mark(group, 0, here, good, num_rows)
            if self._keep_digest:
                hashes = self._hash(group, wanted, stored, good, ahead)
                with self._parts_lock:
                    group.hash_sums[0] += hashes.sum(axis=0, dtype=np.uint64)
        views = {name: view[0, here] for name, view in self._layout.group_views(run, num_rows).items()}
        if self._making.one_pass is not None:
            self._pass(planes if stored is None else stored, wanted, views)
        elif stored is not None:
            self._stored.deliver(stored, views)

    def _mark(self, group: Group, step: int, here: slice, good: BoolArray, num_rows: int) -> None:
        """Mark which rows of a step hold samples of their own."""
        with self._parts_lock:
            if step not in group.valid:
                group.valid[step] = np.ones(num_rows, dtype=np.bool_)
            group.valid[step][here] = good

    def _planes(self, rows: Rows) -> PlaneStore | None:
        """Return the resident samples field by field, where no stored rows are needed."""
        if self._resident is None or self._keep_digest or self._as_stored or self._making.is_apart:
            return None
        planes = self._resident.planes
        return None if planes is None or self.reads.skips_any(rows.samples) else planes

    def _copy_steps(self, planes: PlaneStore, group: Group, first: int, last: int, rows: Rows) -> None:
        """Fill whole steps field by field, without stored rows in between."""
        step_rows = len(rows.samples) // group.num_steps
        taken = self._plane_rows(rows.samples)
        for run, low, high, begin in _runs(group, first, last):
            views = self._layout.step_views(run, step_rows, planes.opaque)
            here = taken[low * step_rows : high * step_rows]
            planes.deliver(here, [view[low - begin : high - begin] for view in views])

    def _pass(self, stored: Columns | PlaneStore | None, rows: Rows, out: dict[str, Array]) -> None:
        """Deliver rows to scratch, and transform them from there to where they go."""
        assert self._making.one_pass is not None
        assert stored is not None
        scratch = self._delivered(len(rows.samples))
        if isinstance(stored, PlaneStore):
            views = [
                as_items(array)[np.newaxis] if opaque else array[np.newaxis]
                for array, opaque in zip(scratch.values(), stored.opaque, strict=True)
            ]
            stored.deliver(self._plane_rows(rows.samples), views)
        else:
            self._stored.deliver(stored, scratch)
        self._making.one_pass.apply(scratch, rows.draws, out)

    def _plane_rows(self, samples: IndexArray) -> IndexArray:
        assert self._resident is not None
        return self._resident.plane_rows(samples)

    def _delivered(self, num_rows: int) -> dict[str, Array]:
        """Return rows of this thread's own to deliver to."""
        kept: dict[str, Array] | None = getattr(self._scratch, "fields", None)
        if kept is None or len(next(iter(kept.values()))) < num_rows:
            kept = self._scratch.fields = self._making.rows.empty(num_rows)
        return {name: array[:num_rows] for name, array in kept.items()}

    def _picks(self, rows: Rows, ahead: Lookahead) -> Picks | None:
        return Picks(rows.repeats, ahead.epoch, self._seed) if self._source_reads.is_impure else None

    def _keys(self, rows: Rows, epoch: int) -> PickKeys:
        return PickKeys(rows.samples, rows.repeats, epoch, self._seed)

    def _hash(self, group: Group, rows: Rows, stored: Columns, good: BoolArray | None, ahead: Lookahead) -> WordArray:
        """Return the hashes of stored rows, zero for rows that only fill a place."""
        hashes = self._stored.hashes(stored, ahead.epoch, rows)
        if good is not None:
            hashes[~good] = 0
        # Only an epoch's last step has such rows, or one of a batch sampler's, which are groups of their own.
        last = ahead.step(group.first_step + group.num_steps - 1)
        if last.num_valid < last.num_rows:
            hashes[rows.positions >= last.start + last.num_valid] = 0
        return hashes


def _runs(group: Group, first: int, last: int) -> Iterator[tuple[Run, int, int, int]]:
    """Yield each run of slots that steps ``first .. last - 1`` lie in: the run, those steps in it, and its first."""
    begin = 0
    for run in group.runs:
        low, high = max(first, begin), min(last, begin + run.num_slots)
        if low < high:
            yield run, low, high, begin
        begin += run.num_slots
