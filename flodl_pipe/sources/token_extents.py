"""Windows of tokens as runs of bytes: what a memory tier keeps instead of one row per window.

Windows overlap, by one token at least and nearly wholly where every start is possible, so the tokens of all shards
are kept once, joined, and a window is a run in them.
"""

from typing import final

import numpy as np

from flodl_pipe.arrays import ByteArray, IndexArray
from flodl_pipe.sources.joined import JoinedBytes
from flodl_pipe.sources.vocabulary import IdCheck
from flodl_pipe.sources.windows import Windows

__all__ = ["TokenExtents"]


@final
class TokenExtents:
    """Windows in the joined tokens of all shards; a :class:`flodl_pipe.sources.protocol.Extents`.

    Args:
        joined: The tokens.
        windows: Which of them a window holds.
        dtype: NumPy name of the stored type.
        check: The rule for ids; None where none can break it.
    """

    def __init__(self, joined: JoinedBytes, windows: Windows, dtype: str, check: IdCheck | None) -> None:
        self._joined, self._check = joined, check
        self._dtype = np.dtype(dtype)
        self._rows = windows.rows(joined.starts, self._dtype.itemsize)
        self.num_bytes = joined.num_bytes
        self.memory = joined.memory
        self.row_bytes = (windows.seq_len + 1) * self._dtype.itemsize

    def starts(self, indices: IndexArray) -> IndexArray:
        """Return the first byte of each window in the joined range, int64, shape ``(K,)``."""
        return self._rows.locate(indices)[1]

    def read(self, start: int, out: ByteArray) -> None:
        """Fill ``out`` with the joined bytes from ``start`` on; ids are checked as in samples."""
        self._joined.read(start, out)
        if not self._check:
            return
        # Ids that ``out`` cuts at either end are read whole, to be checked like the others.
        width = self._dtype.itemsize
        first, end = start // width * width, -(-(start + len(out)) // width) * width
        ids = out
        if (first, end) != (start, start + len(out)):
            ids = np.empty(end - first, dtype=np.uint8)
            self._joined.read(first, ids)
        self._check.require_run(ids.view(self._dtype), first, self._joined)
