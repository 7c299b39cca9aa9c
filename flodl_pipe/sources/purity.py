"""The purity check: a few samples are read twice and must have the same bytes.

A source is a function of the sample index. Everything rests on that: a sample kept in memory stands for every later
read of it, a resumed run reads again what the first one read, and another number of readers reads in another order.
"""

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, IndexArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.protocol import RaggedSource, Source

__all__ = ["require_pure"]


def require_pure(source: Source, indices: IndexArray, first: Columns | None = None) -> None:
    """Read samples twice, the second time in reverse order, and compare every byte.

    NaNs of the same bits are equal.

    Args:
        source: The samples.
        indices: Samples to read, int64, shape ``(K,)``.
        first: What was read of them already; None: they are read twice here.

    Raises:
        SourceError: if a sample differs; it names index and field, and says why that matters and what to do.
        Exception: what reading raises.
    """
    backwards = np.arange(len(indices), dtype=np.int64)[::-1]
    first = _read(source, indices) if first is None else first
    again = _read(source, indices[::-1].copy()).items()
    second = {name: rows.take(backwards) if isinstance(rows, Ragged) else rows[backwards] for name, rows in again}
    for field in source.spec:
        found = _difference(field.name, first[field.name], second[field.name])
        if found is None:
            continue
        row, what = found
        raise SourceError(
            f"sample {indices[row]} is not the same when it is read again: {what}. A source must give the same bytes "
            "for the same index: random augmentation or changing state inside __getitem__ would be frozen by whatever "
            "keeps samples in memory, and a resumed or differently divided run would not repeat it. Move it out of the "
            "dataset, to a transform of the batch keyed by batch.pick_keys; do not change stored data in place (copy "
            "it first). Of a dataset that is random on purpose, say so: source.pure=false (pure=False in Python) seeds "
            "every sample by its pick and keeps none; loader.check_purity=false switches this check off"
        )


def _read(source: Source, indices: IndexArray) -> Columns:
    """Return samples in rows of their own."""
    if isinstance(source, RaggedSource) and source.spec.is_ragged:
        return source.read_rows(indices)
    out = source.spec.empty(len(indices))
    source.read_into(indices, np.arange(len(indices), dtype=np.int64), out)
    return dict(out)


def _difference(name: str, first: Array | Ragged, second: Array | Ragged) -> tuple[int, str] | None:
    """Return the first row of a field that differs, and how; None where none does."""
    for row in range(len(first)):
        one, two = (rows.row(row) if isinstance(rows, Ragged) else rows[row : row + 1] for rows in (first, second))
        if len(one) != len(two):
            return row, f"field {name!r} had length {len(one):,} and then {len(two):,}"
        differs = _differing(one, two)
        if differs.any():
            return row, _how(name, differs, one, two)
    return None


def _how(name: str, differs: BoolArray, first: Array, second: Array) -> str:
    place = int(np.flatnonzero(differs)[0])
    once, twice = (values.reshape(-1)[place].item() for values in (first, second))
    many = int(differs.sum())
    return f"{many:,} of {len(differs):,} values of field {name!r} differ, the first was {once!r} and then {twice!r}"


def _differing(first: Array, second: Array) -> BoolArray:
    """Return which of the values, one after the other, differ in a bit."""
    item = first.dtype.itemsize
    one, two = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, item) for array in (first, second))
    differs: BoolArray = (one != two).any(axis=1)
    return differs
