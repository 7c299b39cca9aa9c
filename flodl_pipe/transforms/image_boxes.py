"""Rectangles of random area and aspect inside an image, one for each row of a batch.

The usual rule, drawn all at once: an area uniform between two parts of the image, an aspect log-uniform between two
ratios, sides from both, rounded; the first of ten such tries that fits is placed uniformly. All ten are drawn
beforehand, so that a row takes the same numbers whatever its neighbours do.

The arithmetic runs on the host and in float64, on a few numbers a row, with operations that IEEE 754 rounds exactly
(no ``exp``, whose last bit depends on the library): a row's rectangle is the same on every CPU and every device, and
only its four integers go to the device.

Shape letters: ``B`` rows, ``T`` tries.
"""

from decimal import Context, Decimal
from typing import final

import numpy as np
import numpy.typing as npt

from flodl_pipe.arrays import BoolArray, IndexArray, WordArray

__all__ = ["MAX_RATIO", "NUM_TRIES", "BoxSizes", "first_fit", "place"]

MAX_RATIO = 1000.0
NUM_TRIES = 10
_NUM_NODES = 1024
_EXACT = Context(prec=40)

Floats = npt.NDArray[np.float64]


@final
class BoxSizes:
    """Sides of rectangles.

    Args:
        scale: Least and most area, as parts of the image's.
        ratio: Least and most aspect: the first of the two sides over the second.
    """

    def __init__(self, scale: tuple[float, float], ratio: tuple[float, float]) -> None:
        self._scale = scale
        # Quantiles of the log-uniform aspect: equal steps of the logarithm, a straight line between. With 1,024 steps
        # it is off by less than 1e-6 of its value where the ratios are 12-fold apart.
        low, high = (Decimal(end) for end in ratio)
        step = float(_EXACT.exp(_EXACT.divide(_EXACT.ln(_EXACT.divide(high, low)), Decimal(_NUM_NODES))))
        nodes = np.full(_NUM_NODES + 1, step)
        nodes[0] = ratio[0]
        self._aspects = np.minimum(np.cumprod(nodes), ratio[1])
        self._aspects[-1] = ratio[1]

    def draw(self, uniform: npt.NDArray[np.float32], pixels: int) -> tuple[IndexArray, IndexArray]:
        """Return both sides of every try, whole pixels, int64, shape ``(B, T)``; not all fit the image.

        Args:
            uniform: Numbers in ``[0, 1)``, shape ``(B, 2 T)``: the areas of the tries, then their aspects.
            pixels: Of the image.
        """
        tries = uniform.shape[1] // 2
        low, high = self._scale
        area = (low + (high - low) * uniform[:, :tries].astype(np.float64)) * pixels
        aspect = self._aspect(uniform[:, tries:].astype(np.float64))
        first, second = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
        return first.astype(np.int64), second.astype(np.int64)

    def _aspect(self, uniform: Floats) -> Floats:
        place = uniform * _NUM_NODES
        node = place.astype(np.int64)  # below the last one, as the numbers are below 1
        start = self._aspects[node]
        return start + (self._aspects[node + 1] - start) * (place - node)


def first_fit(fits: BoolArray, *sides: IndexArray) -> tuple[BoolArray, tuple[IndexArray, ...]]:
    """Return which rows have a try that fits, and the sides of the first that does.

    Args:
        fits: Which tries fit, shape ``(B, T)``.
        sides: Of every try, each of shape ``(B, T)``.

    Returns:
        Bool array ``(B,)``, and one int64 array ``(B,)`` for each of the sides; without meaning where none fits.
    """
    first = np.argmax(fits, axis=1)
    rows = np.arange(len(fits))
    found: BoolArray = np.any(fits, axis=1)
    return found, tuple(side[rows, first] for side in sides)


def place(words: WordArray, room: IndexArray) -> IndexArray:
    """Return an integer uniform on ``0 .. room`` for each row, int64, shape ``(B,)``.

    Args:
        words: 32-bit random words, uint64, shape ``(B,)``.
        room: How many pixels the image is longer than the box, shape ``(B,)``.
    """
    return ((words * (room.astype(np.uint64) + np.uint64(1))) >> np.uint64(32)).astype(np.int64)
