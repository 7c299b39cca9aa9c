"""How a sample lies on the disk stage: a check word, then the bytes of its fields one after the other.

::

    | check (8 bytes) | field 0 | field 1 | ... | zeros up to a multiple of 8 |

The check comes first and records are whole words, so that checks and content are aligned however odd a row's size is.

Shape letters: ``K`` records, ``B`` rows of a buffer.
"""

from collections.abc import Mapping
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, ByteArray, IndexArray, WordArray
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.staging.row_checks import row_checks

__all__ = ["RecordLayout"]

_WORD_BYTES = 8


@final
class RecordLayout:
    """Packs rows of a spec into records and back.

    Args:
        spec: The stored spec, without ragged fields.

    Attributes:
        record_bytes: Bytes of a record on disk.
        row_bytes: Bytes of a sample's fields.
    """

    def __init__(self, spec: SampleSpec) -> None:
        self.row_bytes = spec.row_bytes
        self.record_bytes = _WORD_BYTES * (1 + -(-self.row_bytes // _WORD_BYTES))
        self._places: list[tuple[str, slice]] = []
        first = _WORD_BYTES
        for field in spec:
            if field.row_bytes:
                self._places.append((field.name, slice(first, first + field.row_bytes)))
            first += field.row_bytes

    def empty(self, num_records: int) -> WordArray:
        """Return records to pack to or read to, uint64, shape ``(K, record_bytes / 8)``."""
        return np.zeros((num_records, self.record_bytes // _WORD_BYTES), dtype=np.uint64)

    def pack(self, records: WordArray, samples: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Fill records with rows ``rows`` of ``out``, and their checks.

        Args:
            records: As from :meth:`empty`.
            samples: Sample index of each, int64, shape ``(K,)``.
            rows: Row of ``out`` of each, int64, shape ``(K,)``.
            out: One C-contiguous array per field, shape ``(B, *field.shape)``.
        """
        content = records.view(np.uint8)
        where = _selection(rows)
        for name, place in self._places:
            content[:, place] = _bytes_of_rows(out[name])[where]
        records[:, 0] = row_checks(samples, records[:, 1:])

    def unpack(self, records: WordArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Copy records to rows of ``out``; see :meth:`pack`."""
        content = records.view(np.uint8)
        where = _selection(rows)
        for name, place in self._places:
            _bytes_of_rows(out[name])[where] = content[:, place]

    def damaged(self, records: WordArray, samples: IndexArray) -> BoolArray:
        """Return which records are not what :meth:`pack` made of these samples, shape ``(K,)``."""
        wrong: BoolArray = records[:, 0] != row_checks(samples, records[:, 1:])
        return wrong


def _bytes_of_rows(array: Array) -> ByteArray:
    return array.reshape(len(array), -1).view(np.uint8)


def _selection(rows: IndexArray) -> slice | IndexArray:
    """Return consecutive rows as a slice, which is copied without an index per row."""
    if (rows[1:] - rows[:-1] == 1).all():
        return slice(int(rows[0]), int(rows[0]) + len(rows))
    return rows
