"""What samples of a user's dataset look like, learned from the first one and held against every other.

A sample is one value, or a tuple, list, dict, NamedTuple or dataclass of values. Dict keys and the names of fields name
the fields of a batch; values without a name are called ``"0"``, ``"1"``, ... in order.

Shape letters: ``K`` samples in a batch dataset's answer, ``B`` rows of a buffer.
"""

import dataclasses
import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Protocol, final, runtime_checkable

import numpy as np
import torch

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import OF_HOST, SourceError
from flodl_pipe.sources.sample_values import RefusedValueError, as_array, native
from flodl_pipe.sources.stacking import Stacker, share_memory

__all__ = ["SampleLayout"]

_logger = logging.getLogger("flodl_pipe")


@runtime_checkable
class _NamedFields(Protocol):
    """What a NamedTuple has and a tuple lacks."""

    _fields: tuple[str, ...]


@final
@dataclasses.dataclass(frozen=True)
class _Parts:
    """A sample taken apart: what held its values, their names, and the values."""

    container: str
    names: tuple[str, ...]
    values: Sequence[object]


@final
class SampleLayout:
    """The fields that every sample has.

    Attributes:
        spec: Names, dtypes and shapes, in the order of the first sample.
        owner: Name of the dataset's type, for messages.
        first: What the layout was learned from, for messages: ``sample 0``.
        is_tried: Whether more samples were tried, to see which fields are ragged.
        stackers: What brings many values of each field together.
    """

    def __init__(self, spec: SampleSpec, container: str, owner: str, first: str, *, is_tried: bool = False) -> None:
        self.spec, self.owner, self.first, self.is_tried = spec, owner, first, is_tried
        self._container = container
        self._dtypes = [np.dtype(field.dtype) for field in spec]
        self.stackers = [Stacker(field.dtype, field.shape) for field in spec]

    @classmethod
    def of_sample(cls, sample: object, owner: str, *, may_be_empty: bool = False) -> "SampleLayout":
        """Learn the layout from sample 0.

        Args:
            sample: What the dataset returned for index 0.
            owner: Name of the dataset's type.
            may_be_empty: Whether a value may have no elements.

        Raises:
            SourceError: if it is no sample; the message names field, type and remedy.
        """
        return cls._learn(sample, owner, "sample 0", lambda array, _: array.shape, may_be_empty=may_be_empty)

    @classmethod
    def of_batch(cls, fields: object, num_rows: int, owner: str) -> "SampleLayout":
        """Learn the layout from the first ``num_rows`` samples of a batch dataset.

        Args:
            fields: What the dataset returned: each value has a leading axis of ``num_rows``.
            num_rows: How many samples were asked for.
            owner: Name of the dataset's type.

        Raises:
            SourceError: as :meth:`of_sample`, and if a leading axis is another.
        """

        def row_shape(array: Array, place: str) -> tuple[int, ...]:
            _require_rows(array, num_rows, place)
            return array.shape[1:]

        return cls._learn(fields, owner, f"the batch of the first {num_rows}", row_shape)

    @classmethod
    def _learn(
        cls,
        sample: object,
        owner: str,
        first: str,
        row_shape: Callable[[Array, str], tuple[int, ...]],
        *,
        may_be_empty: bool = False,
    ) -> "SampleLayout":
        what = f"{first} of {owner}"
        parts = _take_apart(sample, what)
        fields = []
        for name, value in zip(parts.names, parts.values, strict=True):
            place = f"{what}, field {name!r}"
            array = _array(value, place, owner, may_be_empty=may_be_empty)
            fields.append(Field(name, native(array.dtype).name, row_shape(array, place)))
        wide = [field.name for field in fields if field.dtype == "float64"]
        if wide:
            _logger.warning(
                "%s: %s %s float64, twice the memory of float32 and slow on most accelerators; return float32 "
                "(np.float32(value), value.float()) unless you need it",
                *(owner, ", ".join(map(repr, wide)), "is" if len(wide) == 1 else "are"),
                extra=OF_HOST,
            )
        return cls(SampleSpec(tuple(fields)), parts.container, owner, first)

    def with_fields(self, fields: Sequence[Field]) -> "SampleLayout":
        """Return the layout with what samples that were tried say of its fields: which are ragged."""
        return SampleLayout(SampleSpec(tuple(fields)), self._container, self.owner, self.first, is_tried=True)

    def arrays(self, sample: object, index: int) -> Iterator[Array]:
        """Yield a sample's values in the order of the fields: of their dtype, of any shape, of none too.

        Args:
            sample: What the dataset returned for ``index``.
            index: Sample index, for messages.

        Raises:
            SourceError: if it is not like the first sample.
        """
        for field, dtype, value in zip(self.spec, self._dtypes, self._values(sample, index), strict=True):
            try:
                array = as_array(value, may_be_empty=True)
            except RefusedValueError:
                array = _array(value, self.place(index, field), self.owner, may_be_empty=True)  # raises with the place
            if array.dtype != dtype and native(array.dtype) != dtype:
                raise self._wrong_dtype(index, field, array)
            yield array

    def targets(self, out: Mapping[str, Array]) -> list[Array]:
        """Return the caller's buffers in the order of the fields, for :meth:`write`."""
        return [out[field.name] for field in self.spec]

    def write(self, sample: object, index: int, row: int, targets: Sequence[Array]) -> None:
        """Copy a sample into a row of each field.

        Args:
            sample: What the dataset returned for ``index``.
            index: Sample index, for messages.
            row: Row to write.
            targets: One array per field, shape ``(B, *field.shape)``; see :meth:`targets`.

        Raises:
            SourceError: if it is not like the first sample: index, field and both sides are named.
        """
        values = self._values(sample, index)
        for field, dtype, value, target in zip(self.spec, self._dtypes, values, targets, strict=True):
            try:
                array = as_array(value)
            except RefusedValueError:
                array = _array(value, self.place(index, field), self.owner)  # raises with the place
            if array.dtype != dtype and native(array.dtype) != dtype:
                raise self._wrong_dtype(index, field, array)
            if array.shape != field.shape:
                raise self.wrong_shape(index, field, array.shape, field.shape)
            target[row] = array

    def write_many(
        self,
        samples: Sequence[object],
        indices: Sequence[int],
        rows: IndexArray,
        targets: Sequence[Array],
        *,
        is_fleeting: bool,
    ) -> bool:
        """Copy samples into rows, field by field: what all of them have in common is looked at once for all.

        Args:
            samples: What the dataset returned, one for each index.
            indices: Sample indices, distinct, for messages.
            rows: Row of each, int64, shape ``(K,)``, distinct.
            targets: As for :meth:`write`.
            is_fleeting: Whether one may have been overwritten by another.

        Returns:
            Whether they were. Not where two of the samples share memory: what the dataset returned for one may have
            been overwritten by another, so they must be asked for one by one.

        Raises:
            SourceError: as :meth:`write`, for the first that is not like the first sample.
        """
        columns = self.columns(samples, indices)
        whole = slice(int(rows[0]), int(rows[0]) + len(rows)) if (rows[1:] - rows[:-1] == 1).all() else None
        blocks = [
            stacker.stack(column, None if whole is None or not target.flags.c_contiguous else target[whole])
            for stacker, column, target in zip(self.stackers, columns, targets, strict=True)
        ]
        if is_fleeting and share_memory(samples, columns, blocks):
            return False
        if any(block is None for block in blocks):
            for sample, index, row in zip(samples, indices, rows.tolist(), strict=True):
                self.write(sample, index, row, targets)
            return True
        for block, target in zip(blocks, targets, strict=True):
            if whole is None or not target.flags.c_contiguous:
                target[rows] = block
        return True

    def own(self, sample: object) -> object:
        """Return a sample with memory of its own, where the values are plainly arrays; else as it is."""
        if isinstance(sample, tuple) and isinstance(sample, _NamedFields):
            kind: Callable[..., object] = type(sample)
            return kind(*map(_own, sample))
        if type(sample) in (tuple, list):
            return [_own(value) for value in sample]  # type: ignore[attr-defined]
        if type(sample) is dict:
            return {name: _own(value) for name, value in sample.items()}
        return _own(sample)

    def columns(self, samples: Sequence[object], indices: Sequence[int]) -> Sequence[Sequence[object]]:
        """Return the values of samples field by field.

        Args:
            samples: One or more.
            indices: The index of each, for messages.

        Raises:
            SourceError: if a sample has other fields than the first sample, or holds them in something else.
        """
        columns = self._columns(samples)
        if columns is None:
            apart = [self._values(sample, index) for sample, index in zip(samples, indices, strict=True)]
            columns = list(zip(*apart, strict=True))
        return columns

    def _columns(self, samples: Sequence[object]) -> Sequence[Sequence[object]] | None:
        """Return the values of samples field by field; None where the samples are not plainly like the first one."""
        kinds = set(map(type, samples))
        kind = kinds.pop()
        if kinds:
            return None
        names, container = self.spec.names, self._container
        if container == "one value":
            return None if issubclass(kind, tuple | list | Mapping) or dataclasses.is_dataclass(kind) else [samples]
        if container == "a named tuple" or (container == "a tuple or list" and issubclass(kind, tuple | list)):
            fields = getattr(kind, "_fields", None)
            if fields != (names if container == "a named tuple" else None):
                return None
            alike = set(map(len, samples)) == {len(names)}  # type: ignore[arg-type]
            return list(zip(*samples, strict=True)) if alike else None
        if container == "a mapping" and kind is dict:
            alike = set(map(tuple, samples)) == {names}  # type: ignore[arg-type]
            return list(zip(*map(dict.values, samples), strict=True)) if alike else None  # type: ignore[arg-type]
        is_own = dataclasses.is_dataclass(kind) and tuple(field.name for field in dataclasses.fields(kind)) == names
        if container == "a dataclass" and is_own:
            return [list(map(operator.attrgetter(name), samples)) for name in names]
        return None

    def write_columns(self, fields: object, rows: IndexArray, targets: Sequence[Array]) -> bool:
        """Copy samples that came as one, each value with a leading axis of ``K``; return whether they are plain.

        Args:
            fields: What holds the values.
            rows: Row of each sample, int64, shape ``(K,)``, distinct.
            targets: As for :meth:`write`.
        """
        parts = _take_apart(fields, "what was returned")
        if (parts.container, parts.names) != (self._container, self.spec.names):
            return False
        found: list[Array] = []
        for field, stacker, dtype, value in zip(self.spec, self.stackers, self._dtypes, parts.values, strict=True):
            try:
                array = stacker.stack(value) if isinstance(value, list) and value else as_array(value)
            except RefusedValueError:
                return False
            if array is None or array.dtype != dtype or array.shape != (len(rows), *field.shape):
                return False
            found.append(array)
        for target, array in zip(targets, found, strict=True):
            target[rows] = array
        return True

    def write_batch(self, fields: object, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Copy a batch dataset's answer into rows of each field.

        Args:
            fields: What the dataset returned for ``indices``.
            indices: Samples asked for, int64, shape ``(K,)``.
            rows: Row of each, int64, shape ``(K,)``.
            out: One array per field, shape ``(B, *field.shape)``.

        Raises:
            SourceError: if it is not like the first batch, or a leading axis is not ``K``.
        """
        what = f"the batch of {len(indices)} samples from index {indices[0]}"
        values = self._values(fields, what)
        for field, dtype, value in zip(self.spec, self._dtypes, values, strict=True):
            place = self.place(what, field)
            array = _array(value, place, self.owner)
            _require_rows(array, len(indices), place)
            if native(array.dtype) != dtype or array.shape[1:] != field.shape:
                raise SourceError(
                    f"{place} holds {array.dtype} {array.shape[1:]} a row, but {self.first} has {dtype} "
                    f"{field.shape}; return one dtype and shape for all samples: convert, pad or crop in the dataset, "
                    "or return rows of different lengths sample by sample (__getitem__), for loader.collate=pad"
                )
            out[field.name][rows] = array

    def wrong_shape(
        self, index: int, field: Field, shape: tuple[int, ...], first_shape: tuple[int, ...]
    ) -> SourceError:
        """Return the error of a value whose shape is not that of the first sample's, or of a ragged field's rows."""
        what = f"{self.place(index, field)} has shape {shape}, but {self.first} has {first_shape}"
        if len(shape) != len(first_shape) or shape[1:] != first_shape[1:]:
            remedy = (
                "; pad or crop to one shape in the dataset: only the first axis may differ from sample to sample, and "
                "that with loader.collate=pad, ragged or a function"
            )
        elif self.is_tried:
            remedy = (
                f"; pad or crop to one shape in the dataset, or say that the field is ragged, ragged=[{field.name!r}]: "
                "the few samples tried when the loader was built were all of one length"
            )
        else:
            remedy = (
                "; pad or crop to one shape in the dataset, or take loader.collate=pad (or ragged, or a function), "
                "which takes rows of different lengths"
            )
        return SourceError(what + remedy)

    def _wrong_dtype(self, index: int, field: Field, array: Array) -> SourceError:
        return SourceError(
            f"{self.place(index, field)} is {array.dtype}, but {self.first} has {field.dtype}; return one dtype for "
            f"all samples, for example value.astype({field.dtype!r})"
        )

    def place(self, index: int | str, field: Field) -> str:
        """Return where a value stands, for messages."""
        sample = index if isinstance(index, str) else f"sample {index}"
        return f"{sample} of {self.owner}, field {field.name!r}"

    def _values(self, sample: object, index: int | str) -> Sequence[object]:
        """Return the values of a sample in the order of the fields."""
        what = f"{index if isinstance(index, str) else f'sample {index}'} of {self.owner}"
        parts = _take_apart(sample, what)
        if parts.container != self._container:
            raise SourceError(
                f"{what} is {parts.container}, but {self.first} is {self._container}; return the same for all samples"
            )
        names = self.spec.names
        if parts.names == names:
            return parts.values
        if sorted(parts.names) != sorted(names):
            raise SourceError(
                f"{what} has the fields {_listed(parts.names)}, but {self.first} has {_listed(names)}; return the same "
                "fields for all samples"
            )
        by_name = dict(zip(parts.names, parts.values, strict=True))
        return [by_name[name] for name in names]


def _take_apart(sample: object, what: str) -> _Parts:
    if isinstance(sample, tuple) and isinstance(sample, _NamedFields):
        parts = _Parts("a named tuple", tuple(sample._fields), sample)
    elif isinstance(sample, tuple | list):
        parts = _Parts("a tuple or list", _numbered(len(sample)), sample)
    elif isinstance(sample, Mapping):
        keys: tuple[object, ...] = tuple(sample)
        odd = next((key for key in keys if not isinstance(key, str)), None)
        if odd is not None:
            raise SourceError(f"{what} has the key {odd!r}; keys name the fields of a batch and must be text")
        parts = _Parts("a mapping", tuple(map(str, keys)), list(sample.values()))
    elif dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        names = tuple(field.name for field in dataclasses.fields(sample))
        parts = _Parts("a dataclass", names, [getattr(sample, name) for name in names])
    elif sample is None:
        raise SourceError(f"{what} is None: the dataset returned nothing; is a return statement missing?")
    else:
        return _Parts("one value", ("0",), (sample,))
    if not parts.names:
        raise SourceError(f"{what} is {parts.container} without fields; return at least one value")
    return parts


def _own(value: object) -> object:
    if type(value) is torch.Tensor:
        return value.clone()
    return value.copy() if type(value) is np.ndarray else value


@cache
def _numbered(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _array(value: object, place: str, owner: str, *, may_be_empty: bool = False) -> Array:
    try:
        return as_array(value, may_be_empty=may_be_empty)
    except RefusedValueError as refused:
        hint = ""
        if owner.partition(".")[0] == "datasets":
            hint = '; of a Hugging Face dataset take dataset.with_format("torch", columns=[...]), numeric columns only'
        raise SourceError(f"{place} {refused}{hint}") from None


def _require_rows(array: Array, num_rows: int, place: str) -> None:
    if array.shape[:1] != (num_rows,):
        raise SourceError(
            f"{place} has shape {array.shape}, but {num_rows} samples were asked for; get_batch(indices) returns "
            "arrays whose first axis has one row for each index, in their order"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
