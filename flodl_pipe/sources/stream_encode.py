"""A tokenizer of the user's, held to its word: text of a document in, a flat sequence of integer ids out.

Lists, tuples, ranges, NumPy arrays and torch tensors of integers are such a sequence; so is anything else that NumPy
reads as one array. Truth values are none, nor are floats, text, or an iterator.
"""

from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.stream_lines import Line
from flodl_pipe.sources.user_access import type_name
from flodl_pipe.units import format_count

__all__ = ["Encoder"]

_WANTED = "it must return the ids of a document as a flat sequence of integers"


@final
class Encoder:
    """Ids of integer type, in ``[0, limit)``.

    Args:
        encode: Text of one document -> its ids, an end-of-document id included if it wants one.
        dtype: What ids are stored as.
        limit: One more than the largest id.
    """

    def __init__(self, encode: Callable[[str], Sequence[int]], dtype: str, limit: int) -> None:
        self._encode, self.dtype, self._limit = encode, dtype, limit

    def ids(self, text: str, name: str, line: Line) -> Array:
        """Return the ids of a document.

        Raises:
            SourceError: if they are no integers, or out of range. What the tokenizer raises arrives as it is.
        """
        try:
            found = self._encode(text)
        except Exception as error:
            error.add_note(f"while encoding {name}, line {format_count(line.number)}")
            raise
        where = f"{name}, line {format_count(line.number)}: source.encode gave"
        try:
            ids = np.asarray(found)
        except Exception as error:  # an object may raise anything when it is asked for its numbers
            raise SourceError(f"{where} {type_name(found)}, which makes no array ({error}); {_WANTED}") from error
        if ids.shape == (0,):
            return np.empty(0, dtype=self.dtype)
        if ids.ndim == 1 and ids.dtype.kind in "Of":  # NumPy has no integers beyond 64 bits
            large = next((one for one in found if type(one) is int and not 0 <= one < self._limit), None)
            if large is not None:
                raise self._out_of_range(where, large)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise SourceError(f"{where} {ids.dtype} of shape {ids.shape} ({type_name(found)}); {_WANTED}")
        if isinstance(found, list | tuple) and not {bool, np.bool_}.isdisjoint(map(type, found)):
            raise SourceError(f"{where} truth values among the ids; {_WANTED}")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self._limit:
            raise self._out_of_range(where, low if low < 0 else high)
        return ids.astype(self.dtype)

    def _out_of_range(self, where: str, found: int) -> SourceError:
        shown = str(found) if abs(found) < 1 << 80 else f"with {found.bit_length()} bits"
        return SourceError(
            f"{where} id {shown}, and ids must lie in 0 .. {self._limit - 1}; correct source.vocab_size or the "
            "tokenizer"
        )
