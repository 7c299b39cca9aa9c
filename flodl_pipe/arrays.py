"""Names for the array types that cross part borders. Shapes are stated where the array is used."""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "BoolArray", "ByteArray", "IndexArray", "WordArray"]

Array = npt.NDArray[Any]
"""Any dtype."""

IndexArray = npt.NDArray[np.int64]
"""int64: sample indices, positions, rows, offsets."""

WordArray = npt.NDArray[np.uint64]
"""uint64: keys and raw random words."""

ByteArray = npt.NDArray[np.uint8]
"""uint8: raw bytes."""

BoolArray = npt.NDArray[np.bool_]
"""bool: masks."""
