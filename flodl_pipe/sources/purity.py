"""The purity check: a few samples are read twice and must have the same bytes.

A source is a function of the sample index. Everything rests on that: a sample kept in memory stands for every later
read of it, a resumed run reads again what the first one read, and another number of readers reads in another order.
"""

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, IndexArray
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.protocol import Source

__all__ = ["require_pure"]


def require_pure(source: Source, indices: IndexArray) -> None:
    """Read samples twice, the second time in reverse order, and compare every byte.

    Costs two reads of ``K`` samples. NaNs of the same bits are equal.

    Args:
        source: The samples.
        indices: Samples to read, int64, shape ``(K,)``.

    Raises:
        SourceError: if a sample differs; it names index and field, and says why that matters and what to do.
        Exception: what reading raises.
    """
    count = len(indices)
    rows = np.arange(count, dtype=np.int64)
    first, second = source.spec.empty(count), source.spec.empty(count)
    source.read_into(indices, rows, first)
    source.read_into(indices[::-1].copy(), rows[::-1].copy(), second)
    for field in source.spec:
        differs = _differing(first[field.name], second[field.name])
        bad = np.flatnonzero(differs.any(axis=1))
        if not len(bad):
            continue
        row = int(bad[0])
        place = int(np.flatnonzero(differs[row])[0])
        once, twice = (values[field.name][row].reshape(-1)[place].item() for values in (first, second))
        many = int(differs[row].sum())
        raise SourceError(
            f"sample {indices[row]} is not the same when it is read again: {many:,} of {differs.shape[1]:,} values of "
            f"field {field.name!r} differ, the first was {once!r} and then {twice!r}. A source must give the same "
            "bytes for the same index: random augmentation or changing state inside __getitem__ would be frozen by "
            "whatever keeps samples in memory, and a resumed or differently divided run would not repeat it. Move it "
            "out of the dataset, to a transform of the batch keyed by batch.pick_keys; do not change stored data in "
            "place (copy it first). Sources that are random on purpose (source.pure=false) are not served yet; "
            "loader.check_purity=false switches this check off"
        )


def _differing(first: Array, second: Array) -> BoolArray:
    """Return which values differ in a bit, shape ``(K, values of a row)``."""
    count, item = len(first), first.dtype.itemsize
    one, two = (array.reshape(count, -1).view(np.uint8).reshape(count, -1, item) for array in (first, second))
    differs: BoolArray = (one != two).any(axis=2)
    return differs
