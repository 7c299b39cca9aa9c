"""Whether what is asked for lies inside the blobs, and what to say where it does not."""

from collections.abc import Sequence

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.errors import SourceError
from flodl_pipe.units import format_count

__all__ = ["require_range_inside", "require_rows_inside"]


def require_rows_inside(
    names: Sequence[str], sizes: IndexArray, blobs: IndexArray, offsets: IndexArray, row_bytes: int, what: str = "its"
) -> None:
    """Check rows of equal size.

    Args:
        names: Name of each blob.
        sizes: Bytes of each, int64.
        blobs: Blob of each row, int64, shape ``(K,)``, at least one.
        offsets: First byte of each row in its blob, int64, shape ``(K,)``.
        row_bytes: Bytes of a row.
        what: What stands before a blob's size in the message.

    Raises:
        SourceError: naming a blob that does not exist, or the first row outside its blob.
    """
    # Seen as unsigned, a negative number is a huge one: one pass checks both ends.
    if int(blobs.view(np.uint64).max()) >= len(names):
        raise SourceError(f"blobs {blobs.min()} .. {blobs.max()} do not exist: there are {len(names)}, numbered from 0")
    outside = (offsets < 0) | (offsets > sizes[blobs] - row_bytes)
    if outside.any():
        bad = int(np.argmax(outside))
        raise _outside(names, sizes, int(blobs[bad]), int(offsets[bad]), row_bytes, what)


def require_range_inside(
    names: Sequence[str], sizes: IndexArray, blob: int, offset: int, num_bytes: int, what: str = "its"
) -> None:
    """Check one run of bytes; arguments as of :func:`require_rows_inside`.

    Raises:
        SourceError: if the blob does not exist, or the run lies outside it.
    """
    if not 0 <= blob < len(names):
        raise SourceError(f"blob {blob} does not exist: there are {len(names)}, numbered from 0")
    if not 0 <= offset <= int(sizes[blob]) - num_bytes:
        raise _outside(names, sizes, blob, offset, num_bytes, what)


def _outside(names: Sequence[str], sizes: IndexArray, blob: int, offset: int, num_bytes: int, what: str) -> SourceError:
    return SourceError(
        f"{names[blob]}: bytes {format_count(offset)} .. {format_count(offset + num_bytes)} lie outside {what} "
        f"{format_count(int(sizes[blob]))} bytes"
    )
