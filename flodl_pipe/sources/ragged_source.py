"""Ragged rows that are in memory already: values and offsets per ragged field, arrays for the others.

Samples are gathered by their offsets, all of a request at once. The arrays stay the caller's: they must not change
while the source is in use.

Shape letters: ``K`` samples asked for, ``N`` samples, ``T`` lengths added up.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import LoaderError, SourceError
from flodl_pipe.sources.door import require_samples
from flodl_pipe.sources.keyed_choice import keyed_choice
from flodl_pipe.sources.ordering import Ordering
from flodl_pipe.sources.protocol import Extents, Fact, Fingerprint
from flodl_pipe.sources.sample_values import RefusedValueError, as_array, native
from flodl_pipe.units import format_bytes, format_count

__all__ = ["RAGGED_TIERS_OFF", "RaggedRows", "no_array_of_rows"]

RAGGED_TIERS_OFF: Final = "rows of different lengths are not kept by memory tiers"
"""Why no memory tier keeps samples of a ragged source."""

_FINGERPRINT_SAMPLES = 16
_USUAL = 0.95


@final
class RaggedRows:
    """Samples with ragged fields, held in memory; a :class:`flodl_pipe.sources.protocol.RaggedSource`.

    Args:
        fields: By name, in the order of a batch: a :class:`~flodl_pipe.batch.ragged.Ragged` of ``N`` rows for a ragged
            field, an array or tensor of shape ``(N, *shape)`` for another.

    Raises:
        SourceError: if there is no sample or no ragged field, fields have rows of different number, offsets do not rise
            from 0 to the number of values, or a field is nothing a batch can hold.

    >>> source = RaggedRows({"ids": Ragged.of([np.array([5, 3]), np.array([7])]), "label": np.array([1, 0])})
    >>> source.read_rows(np.array([1]))["ids"].values.tolist(), source.lengths().tolist()
    ([7], [2, 1])
    """

    def __init__(self, fields: Mapping[str, Ragged | Array]) -> None:
        self._columns: Columns = {name: _column(name, values) for name, values in fields.items()}
        ragged = {name: values for name, values in self._columns.items() if isinstance(values, Ragged)}
        if not ragged:
            raise SourceError(
                f"no field of {', '.join(fields) or 'none'} is ragged; give Ragged(values, offsets) for those whose "
                "rows have different lengths, or torch.utils.data.TensorDataset where none have"
            )
        counts = {name: len(values) for name, values in self._columns.items()}
        self._num_samples = next(iter(counts.values()))
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            raise SourceError(f"fields have rows of different number ({shown}); each needs one for every sample")
        if not self._num_samples:
            raise SourceError("there is no sample; a loader needs at least one")
        self._lengths: IndexArray = np.max([values.lengths for values in ragged.values()], axis=0)
        self.spec = self.delivered = SampleSpec(tuple(_field(name, values) for name, values in self._columns.items()))
        self.thread_safe = True
        self.extents: Extents | None = None
        self.ordering: Ordering = None
        self.tiers_off: str | None = RAGGED_TIERS_OFF
        self.held_bytes = 0  # the arrays are the caller's
        self.delivery: object = "as stored"

    def __len__(self) -> int:
        return self._num_samples

    def lengths(self) -> IndexArray:
        """Return the length of each sample, that of its longest field: int64, shape ``(N,)``."""
        return self._lengths.copy()

    def read_rows(self, indices: IndexArray) -> Columns:
        """Gather samples; see :meth:`flodl_pipe.sources.protocol.RaggedSource.read_rows`.

        Raises:
            IndexError: if an index is not in ``[0, N)``.
        """
        require_samples(indices, self._num_samples)
        return {
            name: values.take(indices) if isinstance(values, Ragged) else values[indices]
            for name, values in self._columns.items()
        }

    def deliver_rows(self, stored: Columns) -> Columns:
        """Return rows as they are."""
        return stored

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Refuse: see :func:`no_array_of_rows`."""
        del indices, rows, out
        raise no_array_of_rows(self.spec)

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Refuse: see :func:`no_array_of_rows`."""
        del stored, out
        raise no_array_of_rows(self.spec)

    def buffers(self, num_rows: int) -> dict[str, Array]:
        """Refuse: see :func:`no_array_of_rows`."""
        del num_rows
        raise no_array_of_rows(self.spec)

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        """Return the identity of the samples: their number, fields, every length, and the bytes of some or all."""
        scope = "full" if full else "sampled"
        layout = [(field.name, field.dtype, field.shape, field.is_ragged) for field in self.spec]
        digest = hashlib.blake2b(f"ragged-rows/1|{scope}|{self._num_samples}|{layout}".encode(), digest_size=16)
        chosen = None if full else keyed_choice(self._num_samples, _FINGERPRINT_SAMPLES)
        rows = self._columns if chosen is None else self.read_rows(chosen)
        for name, values in self._columns.items():
            some = rows[name]
            if isinstance(values, Ragged):
                digest.update(values.offsets.astype("<i8").data)
            bytes_of = np.ascontiguousarray(some.values if isinstance(some, Ragged) else some)
            digest.update(bytes_of.reshape(-1).data)
        summary = f"ragged rows: {format_count(self._num_samples)} samples of {self.spec}"
        return Fingerprint(
            summary, digest.hexdigest(), full, "their number, fields and lengths, and some of the samples"
        )

    def check_unchanged(self) -> None:
        """Do nothing: of arrays in memory nothing can be told."""

    def facts(self) -> tuple[Fact, ...]:
        """Return what ``plan`` tells: samples, their lengths, and the memory that the arrays take."""
        num_bytes = sum(v.values.nbytes if isinstance(v, Ragged) else v.nbytes for v in self._columns.values())
        low, high, mean = self._lengths.min(), self._lengths.max(), self._lengths.mean()
        return (
            Fact("samples", f"{format_count(self._num_samples)}, in memory ({format_bytes(num_bytes)})"),
            Fact("lengths", f"{format_count(int(low))} to {format_count(int(high))}, {mean:.1f} on average"),
        )

    def close(self) -> None:
        """Let go of nothing: the arrays are the caller's."""


def no_array_of_rows(spec: SampleSpec) -> LoaderError:
    """Return the error of who asks a ragged source for arrays of equal rows."""
    ragged = ", ".join(str(field) for field in spec if field.is_ragged)
    return LoaderError(
        f"rows of different lengths ({ragged}) do not fit into one array; such a source is read by read_rows and "
        "delivered by deliver_rows"
    )


def _column(name: str, values: Ragged | Array) -> Ragged | Array:
    if not isinstance(values, Ragged):
        array = _array(name, values)
        if not array.ndim:
            raise SourceError(f"field {name!r} is a single number; give one row for every sample")
        return array
    array, offsets = _array(name, values.values), np.asarray(values.offsets)
    if offsets.ndim != 1 or not len(offsets) or offsets.dtype.kind not in "iu":
        raise SourceError(
            f"field {name!r}: offsets are one-dimensional integers, one more than rows, got {offsets.dtype} of shape "
            f"{offsets.shape}"
        )
    offsets = offsets.astype(np.int64)
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls) or offsets[0] != 0 or not array.ndim or offsets[-1] != len(array):
        at = f", and fall after row {falls[0]}" if len(falls) else ""
        raise SourceError(
            f"field {name!r}: offsets must rise from 0 to the number of values, those of shape {array.shape}; they go "
            f"from {offsets[0]} to {offsets[-1]}{at}"
        )
    return Ragged(array, offsets)


def _array(name: str, values: object) -> Array:
    try:
        array = as_array(values, may_be_empty=True)
    except RefusedValueError as refused:
        raise SourceError(f"field {name!r} {refused}") from None
    if 0 in array.shape[1:]:
        raise SourceError(f"field {name!r} has elements without values, its shape is {array.shape}; leave it out")
    return array if array.dtype.isnative else array.astype(native(array.dtype))


def _field(name: str, values: Ragged | Array) -> Field:
    if not isinstance(values, Ragged):
        return Field(name, values.dtype.name, values.shape[1:])
    usual = max(1, int(np.ceil(np.quantile(values.lengths, _USUAL))))
    return Field(name, values.values.dtype.name, values.values.shape[1:], True, usual)
