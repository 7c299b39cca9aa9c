"""Reads that skip: what cannot be read is found, noted in the ledger, and replaced by another row of its step.

A read that fails is made again in halves until the samples at fault are alone; each has then failed twice at least. In
place of a skipped sample the nearest good one of the step before it is read, else the nearest after it. It is a matter
of sample numbers alone: the same rows come from files and from memory, and whoever reads which part of a step. Where
transforms look at pairs of rows, a pair's other row is taken first, so that what a good row is mixed with does not
depend on the cut into ranks. A step without a good row is all zeros.

::

    samples   12   7  31  40        7 and 40 are in the ledger
    reads     12  12  31  31        marked invalid: rows 1 and 3

While nothing was skipped, a read costs one look at an empty ledger more.
"""

from typing import NamedTuple, final

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, IndexArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ChangedError, LoaderError, StagingError
from flodl_pipe.loader.ledger import SkipLedger, reason_of
from flodl_pipe.loader.source_reads import Picks
from flodl_pipe.loader.stored import StoredRows

__all__ = ["SkippingReads", "replacements"]

# Not about a sample: other data than before, a reader process that died, or no memory.
_NOT_OF_A_SAMPLE = (ChangedError, LoaderError, StagingError, MemoryError)


@final
class _Replaced(NamedTuple):
    """What is read for some rows.

    Attributes:
        samples: Sample that is read for each row, int64, shape ``(rows,)``; of no meaning where ``empty``.
        good: Whether it is the row's own, shape ``(rows,)``.
        empty: Rows of steps without a good one, shape ``(rows,)``.
    """

    samples: IndexArray
    good: BoolArray
    empty: BoolArray

    def part(self, rows: slice) -> "_Replaced":
        return _Replaced(self.samples[rows], self.good[rows], self.empty[rows])


@final
class SkippingReads:
    """Stored rows of a source, whatever of it can be read. Thread-safe.

    Args:
        stored: Reads rows.
        spec: The stored row.
        ledger: What is skipped; None: a fault is raised.
        unit: Rows that a transform looks at together: two where it looks at pairs.
    """

    def __init__(self, stored: StoredRows, spec: SampleSpec, ledger: SkipLedger | None, *, unit: int) -> None:
        self._stored = stored
        self._spec = spec
        self._ledger = ledger
        self._unit = unit
        self._is_interrupted = False

    def begin(self) -> None:
        """Note that a pass begins, and take in what other ranks skip by now.

        Raises:
            SourceError: if with it there are more than may be.
        """
        self._is_interrupted = False
        if self._ledger is not None:
            self._ledger.look()

    def interrupt(self) -> None:
        """Note that reads are broken off from outside, and that their failing tells nothing about samples."""
        self._is_interrupted = True

    @property
    def skips(self) -> bool:
        """Whether samples that cannot be read are skipped."""
        return self._ledger is not None

    def skips_any(self, samples: IndexArray) -> bool:
        """Return whether one of some samples is in the ledger."""
        known = None if self._ledger is None else self._ledger.known(samples)
        return known is not None and bool(known.any())

    def readable(self, samples: IndexArray) -> IndexArray:
        """Return those of some samples that can be read.

        Raises:
            SourceError: if more are skipped than may be.
        """
        if self._ledger is None:
            return samples
        self._find(self._not_known(samples))
        return self._not_known(samples)

    def read(
        self, samples: IndexArray, step_rows: int, here: slice | None = None, *, picks: Picks | None = None
    ) -> tuple[Columns, BoolArray | None]:
        """Return stored rows, and which of them are what they should be.

        Args:
            samples: Samples of whole steps.
            step_rows: Rows of each step.
            here: Which of the rows are wanted; None: all.
            picks: What the rows are read for, where the source is impure.

        Returns:
            The rows, valid until this thread's next call, and a bool array of as many; None when all are good.

        Raises:
            SourceError: if more samples are skipped than may be.
            Exception: what the source raises, unless it is skipped.
        """
        here = slice(0, len(samples)) if here is None else here
        picks = None if picks is None else picks.part(here)
        if self._ledger is None:
            return self._stored.read(samples[here], picks), None
        was_tried_again = False
        while True:
            replaced = self._replaced(samples, step_rows)
            part = None if replaced is None else replaced.part(here)
            wanted = samples[here] if part is None else part.samples
            try:
                stored = self._read(wanted, part, picks)
            except _NOT_OF_A_SAMPLE:
                raise
            except Exception:
                asked = wanted if part is None else wanted[~part.empty]
                self._find(asked)
                # Each turn has one more of them in the ledger (by whichever reader), but one: a fault may pass.
                if not self.skips_any(asked):
                    if was_tried_again:
                        raise
                    was_tried_again = True
                continue
            return stored, None if part is None or part.good.all() else part.good

    def _read(self, wanted: IndexArray, part: _Replaced | None, picks: Picks | None) -> Columns:
        if part is None or not part.empty.any():
            return self._stored.read(wanted, picks)
        if part.empty.all():
            return _zeros(self._spec, len(wanted))
        # Any row that can be read holds their place until it is blanked.
        places = np.where(part.empty, wanted[int(np.argmin(part.empty))], wanted)
        return {name: _blanked(column, part.empty) for name, column in self._stored.read(places, picks).items()}

    def _replaced(self, samples: IndexArray, step_rows: int) -> _Replaced | None:
        """Return what to read for the rows of whole steps; None where all are good."""
        assert self._ledger is not None
        known = self._ledger.known(samples)
        if known is None or not known.any():
            return None
        good = ~known
        rows = replacements(good.reshape(-1, step_rows), unit=self._unit).ravel()
        return _Replaced(samples[np.maximum(rows, 0)], good, rows < 0)

    def _not_known(self, samples: IndexArray) -> IndexArray:
        assert self._ledger is not None
        known = self._ledger.known(samples)
        return samples if known is None else samples[~known]

    def _find(self, samples: IndexArray) -> None:
        """Read samples in ever smaller parts, and note those that cannot be read alone."""
        assert self._ledger is not None
        parts = [np.unique(samples)] if len(samples) else []
        while parts:
            part = parts.pop()
            try:
                self._stored.read(part)
            except _NOT_OF_A_SAMPLE:
                raise
            except Exception as error:
                if self._is_interrupted:
                    raise
                if len(part) > 1:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
                    continue
                self._ledger.add(int(part[0]), reason_of(error))


def replacements(good: BoolArray, *, unit: int = 1) -> IndexArray:
    """Return which row stands in for each: a good one for itself, for others the nearest good one of its step.

    Args:
        good: Which rows are good, shape ``(steps, rows)``.
        unit: Two: a row's partner is taken first, row ``2j + 1`` for ``2j`` and the other way round.

    Returns:
        Row numbers counted over all steps, int64, shape ``(steps, rows)``; -1 where a step has no good row.

    >>> replacements(np.array([[True, False, True, False], [False, False, True, True], [False] * 4])).tolist()
    [[0, 0, 2, 2], [6, 6, 6, 7], [-1, -1, -1, -1]]
    """
    num_steps, step_rows = good.shape
    places = np.arange(step_rows, dtype=np.int64)
    before = np.maximum.accumulate(np.where(good, places, -1), axis=1)
    after = np.minimum.accumulate(np.where(good, places, step_rows)[:, ::-1], axis=1)[:, ::-1]
    chosen = np.where(before >= 0, before, after)
    if unit > 1:
        partners = np.minimum(places ^ 1, step_rows - 1)
        chosen = np.where(~good & good[:, partners], partners, chosen)
    begins = step_rows * np.arange(num_steps, dtype=np.int64)[:, np.newaxis]
    rows: IndexArray = np.where(good.any(axis=1, keepdims=True), chosen + begins, -1)
    return rows


def _zeros(spec: SampleSpec, num_rows: int) -> Columns:
    """Return rows of zeros; ragged ones of one item each, as no collation can make a batch of nothing."""
    return {
        field.name: Ragged.of([np.zeros((1, *field.shape), field.dtype)] * num_rows)
        if field.is_ragged
        else np.zeros((num_rows, *field.shape), field.dtype)
        for field in spec
    }


def _blanked(column: Array | Ragged, rows: BoolArray) -> Array | Ragged:
    """Return a column whose rows are zeros where asked."""
    if isinstance(column, Ragged):
        nothing = np.zeros((1, *column.values.shape[1:]), column.values.dtype)
        return Ragged.of([nothing if blank else column.row(row) for row, blank in enumerate(rows.tolist())])
    column[rows] = 0
    return column
