"""Token ids within the vocabulary: checked in everything that is read, named to the byte where one is not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.joined import JoinedBytes
from flodl_pipe.units import format_count

__all__ = ["IdCheck"]


@final
@dataclass(frozen=True)
class IdCheck:
    """The rule ``0 <= id < vocab_size``.

    Attributes:
        vocab_size: Number of token ids.
    """

    vocab_size: int

    @classmethod
    def needed(cls, dtype: str, vocab_size: int | None) -> "IdCheck | None":
        """Return the check, or None where no id can break the rule: no vocabulary, or a type too narrow for it."""
        limits = np.iinfo(dtype)
        if vocab_size is None or (limits.min >= 0 and limits.max < vocab_size):
            return None
        return cls(vocab_size)

    def require_rows(
        self, tokens: Array, rows: IndexArray, shards: IndexArray, offsets: IndexArray, names: Sequence[str]
    ) -> None:
        """Check the windows just read.

        Args:
            tokens: The buffer, shape ``(B, T + 1)``.
            rows: Rows that were read, shape ``(K,)``.
            shards: Shard of each, shape ``(K,)``.
            offsets: Byte of each one's first token in its file, shape ``(K,)``.
            names: Path of each shard.

        Raises:
            SourceError: naming file, byte and value.
        """
        # A plain run of rows is checked in place; scattered ones are gathered first.
        dense = len(rows) == 1 or bool((rows[1:] - rows[:-1] == 1).all())
        found = tokens[int(rows[0]) : int(rows[0]) + len(rows)] if dense else tokens[rows]
        bad = self._first_bad(found)
        if bad is not None:
            row, column = divmod(bad, tokens.shape[1])
            offset = int(offsets[row]) + column * tokens.itemsize
            raise self._error(names[int(shards[row])], offset, int(found[row, column]))

    def require_run(self, ids: Array, start: int, joined: JoinedBytes) -> None:
        """Check a run of ids that begins at byte ``start`` of the joined range.

        Raises:
            SourceError: naming file, byte and value.
        """
        bad = self._first_bad(ids)
        if bad is not None:
            at = start + bad * ids.itemsize
            file = int(np.searchsorted(joined.starts, at, side="right")) - 1
            offset = int(joined.offsets[file]) + at - int(joined.starts[file])
            raise self._error(joined.blobs.names[file], offset, int(ids[bad]))

    def _first_bad(self, ids: Array) -> int | None:
        if not ids.size or (ids.max() < self.vocab_size and (ids.dtype.kind == "u" or ids.min() >= 0)):
            return None
        return int(np.argmax((ids < 0) | (ids >= self.vocab_size)))

    def _error(self, name: str, offset: int, value: int) -> SourceError:
        return SourceError(
            f"{name}, byte {format_count(offset)}: token id {value} is outside the vocabulary, 0 .. "
            f"{self.vocab_size - 1}; correct source.vocab_size, or source.dtype if the ids were stored in another type"
        )
