"""Padding: rows of different lengths are filled up at the right to one length, and a mask says which places are real.

Every ragged field is padded by itself, to the longest of its rows in the batch rounded up to a multiple, or to one
length for all batches. What it is filled with::

    label fields (labels, label, targets, target) of integers    -100, which torch's losses ignore
    a mask of the sample's own (attention_mask, FIELD_mask)      0
    other integers                                               pad_id
    floats, complex numbers                                      0
    booleans                                                     False

Masks are int64, 1 at real places. The *first* ragged field (``input_ids`` if there is one, else the first that is no
label field) gets ``attention_mask``; a further one gets ``FIELD_mask``, because its rows may have other lengths. A
label field of integers gets none: -100 says it. A mask that the sample has itself is kept instead. Which fields a batch
has so follows from the sample's fields, never from the rows that happen to be in it.

Shape letters: ``B`` rows, ``T`` the padded length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard, final

import numpy as np
import torch

from flodl_pipe.arrays import Array, BoolArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import ConfigError, TransformError
from flodl_pipe.sampling.collate_stack import fresh

__all__ = ["IGNORE_INDEX", "LABEL_FIELDS", "PadCollate"]

IGNORE_INDEX = -100
"""The target that ``torch.nn.functional.cross_entropy`` ignores unless told otherwise."""

LABEL_FIELDS = ("labels", "label", "targets", "target")
"""Fields of these names hold what a loss compares with."""

_MASK = "attention_mask"
_LABELS = "labels"
_IDS = "input_ids"


@final
class PadCollate:
    """Pads ragged fields and stacks the others; a :class:`flodl_pipe.sampling.collate.Collate`.

    Args:
        pad_id: What integer fields are filled with.
        multiple: Padded lengths are multiples of this.
        length: The padded length of every batch; a longer row is an error. None: that of the batch's longest row,
            rounded up to ``multiple``.
        labels_from: Make a field ``labels`` of this integer field, as language models are trained: equal to it where it
            is real, -100 at padding, int64. None makes none.

    Raises:
        ConfigError: if a number is out of range.
    """

    def __init__(
        self, *, pad_id: int = 0, multiple: int = 8, length: int | None = None, labels_from: str | None = None
    ) -> None:
        if not _is_int(pad_id):
            raise ConfigError.at("loader.pad_id", f"must be an integer, got {pad_id!r}")
        if not _is_int(multiple) or multiple < 1:
            raise ConfigError.at("loader.pad_multiple", f"must be an integer of at least 1, got {multiple!r}")
        if length is not None and (not _is_int(length) or length < 1):
            raise ConfigError.at("loader.pad_length", f"must be an integer of at least 1, or null, got {length!r}")
        self._pad_id, self._multiple, self._length, self._labels_from = pad_id, multiple, length, labels_from
        to = f"multiple={multiple}" if length is None else f"length={length}"
        self.tag = f"pad(pad_id={pad_id}, {to}" + (f", labels_from={labels_from!r})" if labels_from else ")")

    def check(self, spec: SampleSpec) -> None:
        """Check the fields; see :meth:`flodl_pipe.sampling.collate.Collate.check`.

        Raises:
            ConfigError: if a field cannot hold what it would be filled with, or has the name of one to be made.
        """
        ragged = _ragged(spec)
        for field in spec:
            if field.is_ragged:
                self._check_fill(field, list(ragged))
        made = [mask for mask in _masks(ragged).values() if mask not in ragged]
        made += [] if self._labels_from is None else [_LABELS]
        for name in made:
            if name in spec.names:
                raise ConfigError.at(
                    "loader.collate",
                    f"is 'pad', which makes a field {name!r}, and the sample has one of that name that is not padded, "
                    f"{spec.fields[spec.names.index(name)]}; rename it (loader.names)",
                )
        if self._labels_from is not None:
            self._check_labels(self._labels_from, spec)

    def output(self, spec: SampleSpec) -> SampleSpec:
        """Return the padded fields, then the masks, then the labels made."""
        fields = [self._padded(field) for field in spec]
        by_name = {field.name: field for field in spec}
        for name, mask in _masks(_ragged(spec)).items():
            if mask not in by_name:
                source = by_name[name]
                fields.append(self._padded(Field(mask, "int64", (), True, source.expected_length)))
        if self._labels_from is not None:
            source = by_name[self._labels_from]
            labels = Field(_LABELS, "int64", source.shape, source.is_ragged, source.expected_length)
            fields.append(self._padded(labels))
        return SampleSpec(tuple(fields))

    def __call__(self, rows: Columns) -> tuple[tuple[str, ...], tuple[torch.Tensor, ...]]:
        """Pad rows; see :meth:`flodl_pipe.sampling.collate.Collate.__call__`.

        Raises:
            TransformError: if a row is longer than the length set.
        """
        ragged = {name: values for name, values in rows.items() if isinstance(values, Ragged)}
        real = {name: self._real(name, values) for name, values in ragged.items()}
        fields: dict[str, torch.Tensor] = {}
        for name, values in rows.items():
            if isinstance(values, Ragged):
                fill = self._fill(name, values.values.dtype, list(ragged))
                fields[name] = torch.from_numpy(_filled(values, real[name], fill))
            else:
                fields[name] = fresh(values)
        for name, mask in _masks({name: values.values.dtype.name for name, values in ragged.items()}).items():
            if mask not in rows:
                fields[mask] = torch.from_numpy(real[name].astype(np.int64))
        if self._labels_from is not None:
            source = rows[self._labels_from]
            if isinstance(source, Ragged):
                wide = Ragged(source.values.astype(np.int64), source.offsets)
                labels = _filled(wide, real[self._labels_from], IGNORE_INDEX)
            else:
                labels = source.astype(np.int64)
            fields[_LABELS] = torch.from_numpy(labels)
        return tuple(fields), tuple(fields.values())

    def _real(self, name: str, rows: Ragged) -> BoolArray:
        """Return which places of the padded rows are real, shape ``(B, T)``."""
        lengths = rows.lengths
        longest = int(lengths.max(initial=0))
        if self._length is None:
            padded = -(-longest // self._multiple) * self._multiple
        elif longest > self._length:
            row = int(np.argmax(lengths > self._length))
            raise TransformError(
                f"field {name!r}: row {row} of the batch has length {lengths[row]}, but loader.pad_length is "
                f"{self._length}, and rows are never cut; raise it, leave it null (the longest row of each batch "
                "decides), or shorten rows in the dataset"
            )
        else:
            padded = self._length
        real: BoolArray = np.arange(padded)[np.newaxis, :] < lengths[:, np.newaxis]
        return real

    def _fill(self, name: str, dtype: "np.dtype[np.generic]", ragged: Sequence[str]) -> int:
        """Return what a ragged field is filled with."""
        if dtype.kind not in "iu" or name in _own_masks(ragged):
            return 0
        return IGNORE_INDEX if name in LABEL_FIELDS else self._pad_id

    def _padded(self, field: Field) -> Field:
        if not field.is_ragged:
            return field
        if self._length is not None:
            return Field(field.name, field.dtype, (self._length, *field.shape))
        return replace(field, expected_length=-(-field.expected_length // self._multiple) * self._multiple)

    def _check_fill(self, field: Field, ragged: Sequence[str]) -> None:
        dtype = np.dtype(field.dtype)
        fill = self._fill(field.name, dtype, ragged)
        if dtype.kind not in "iu" or np.iinfo(field.dtype).min <= fill <= np.iinfo(field.dtype).max:
            return
        if fill == IGNORE_INDEX and field.name in LABEL_FIELDS:
            raise ConfigError.at(
                "loader.collate",
                f"is 'pad', which fills labels with {fill}, and field {field.name!r} is {field.dtype}, which cannot "
                "hold that; deliver it as int64, or under another name (loader.names)",
            )
        raise ConfigError.at(
            "loader.pad_id",
            f"is {fill}, which field {field.name!r} of {field.dtype} cannot hold; give an id that it can, or deliver "
            "it as int64",
        )

    def _check_labels(self, name: str, spec: SampleSpec) -> None:
        field = next((field for field in spec if field.name == name), None)
        if field is None:
            raise ConfigError.at("loader.labels_from", f"is {name!r}, but the fields are {', '.join(spec.names)}")
        if np.dtype(field.dtype).kind not in "iu" or field.dtype == "uint64":
            raise ConfigError.at(
                "loader.labels_from", f"is {name!r}, which holds {field.dtype}; labels are made of integers up to int64"
            )


def _ragged(spec: SampleSpec) -> dict[str, str]:
    return {field.name: field.dtype for field in spec if field.is_ragged}


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _own_masks(ragged: Sequence[str]) -> set[str]:
    """Return which of a sample's ragged fields are masks, by their names."""
    return {name for name in ragged if name == _MASK or (name.endswith("_mask") and name[:-5] in ragged)}


def _masks(ragged: Mapping[str, str]) -> dict[str, str]:
    """Return the mask's name of each field that has one, the first field's first.

    Args:
        ragged: NumPy dtype names of the ragged fields, by field, in order.
    """
    own = _own_masks(list(ragged))
    told = {name for name, dtype in ragged.items() if name in LABEL_FIELDS and np.dtype(dtype).kind in "iu"}
    masked = [name for name in ragged if name not in own | told] or [name for name in ragged if name not in own][:1]
    if not masked:
        return {}
    first = _IDS if _IDS in masked else masked[0]
    return {first: _MASK} | {name: f"{name}_mask" for name in masked if name != first}


def _filled(rows: Ragged, real: BoolArray, fill: int) -> Array:
    """Return rows as an array of shape ``(B, T, ...)``: their values at the real places, row by row."""
    padded = np.full((*real.shape, *rows.values.shape[1:]), fill, dtype=rows.values.dtype)
    padded[real] = rows.values
    return padded
