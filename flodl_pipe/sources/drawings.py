"""Small pictures drawn by arithmetic: digits, clothes and plain shapes, each sample a little different.

A shape is drawn once, as a field of signed distances to its outline over a square of 132 x 132 points. A sample looks
up each of its pixels in that field through a map of its own (shift, size, slant), so thickness is one addition and soft
edges cost nothing. Whatever varies is a function of a key and the sample's number.

All of it is integer arithmetic and single IEEE operations on exact numbers: the bytes are the same on every machine.

Shape letters: ``N`` samples, ``S`` pixels along a side, ``P`` points along a field's side.
"""

import itertools
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.keyed.absorb import absorb, absorb_words

__all__ = ["CLOTHES", "DIGITS", "SHAPES", "Shape", "draw", "integers", "noise"]

Line = tuple[tuple[int, int], ...]
"""Points from 0 to 100, x to the right, y downwards."""


@final
@dataclass(frozen=True)
class Shape:
    """Filled areas, strokes and gaps.

    Attributes:
        areas: Closed outlines that are filled.
        strokes: Lines that are drawn.
        gaps: Lines that are left out of the areas.
        half_width: How far a stroke reaches from its line.
    """

    areas: tuple[Line, ...] = ()
    strokes: tuple[Line, ...] = ()
    gaps: tuple[Line, ...] = ()
    half_width: float = 3.0


def _line(text: str) -> Line:
    numbers = [int(word) for word in text.split()]
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _stroke(*lines: str, half_width: float = 0.0) -> Shape:
    return Shape(strokes=tuple(map(_line, lines)), half_width=half_width)


def _area(outline: str, *, strokes: tuple[str, ...] = (), gaps: tuple[str, ...] = ()) -> Shape:
    return Shape((_line(outline),), tuple(map(_line, strokes)), tuple(map(_line, gaps)))


DIGITS = (
    _stroke("50 5 70 12 80 30 82 50 80 70 70 88 50 95 30 88 20 70 18 50 20 30 30 12 50 5"),
    _stroke("34 22 54 5 54 95"),
    _stroke("20 28 27 13 45 5 65 8 77 22 75 40 60 58 38 76 20 94 82 94"),
    _stroke("22 14 45 5 66 8 75 24 66 42 46 48 68 54 80 72 70 90 46 96 20 86"),
    _stroke("62 95 62 5 18 66 84 66"),
    _stroke("76 6 30 6 26 44 48 38 70 44 79 66 70 86 48 96 20 86"),
    _stroke("70 8 44 18 27 42 21 68 30 88 50 96 70 88 77 70 68 54 48 50 30 58 22 72"),
    _stroke("18 8 82 8 56 50 42 95"),
    _stroke("50 48 30 38 25 22 35 8 50 4 65 8 75 22 70 38 50 48 28 58 20 76 30 91 50 96 70 91 80 76 72 58 50 48"),
    _stroke("76 30 68 46 50 52 32 46 24 30 32 12 50 5 68 12 76 30 74 60 62 95"),
)
"""The digits 0 to 9."""

CLOTHES = (
    _area("30 12 40 18 60 18 70 12 96 30 86 46 72 36 72 92 28 92 28 36 14 46 4 30"),
    _area("28 5 72 5 78 95 56 95 50 34 44 95 22 95"),
    _area("32 10 68 10 82 18 97 85 83 88 73 42 73 90 27 90 27 42 17 88 3 85 18 18"),
    _area("38 5 44 14 56 14 62 5 65 30 60 45 82 95 18 95 40 45 35 30"),
    _area("32 6 50 16 68 6 84 16 97 76 85 79 77 42 80 96 20 96 23 42 15 79 3 76 16 16", gaps=("50 18 50 96",)),
    _area("2 76 40 80 98 64 98 76 42 92 2 88", strokes=("14 76 40 44 60 70", "46 76 76 38 90 62")),
    _area(
        "34 8 50 24 66 8 90 22 94 52 78 54 73 40 73 92 27 92 27 40 22 54 6 52 10 22",
        gaps=("36 42 44 42", "50 28 50 92"),
    ),
    _area("3 50 16 40 30 52 48 38 62 56 92 63 98 80 3 80", gaps=("3 71 97 73",)),
    _area("10 40 90 40 96 92 4 92", strokes=("30 40 33 14 67 14 70 40",)),
    _area("28 8 60 8 60 50 92 64 96 86 28 86", gaps=("28 76 96 77",)),
)
"""Fashion-MNIST's classes: t-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot."""

_ROUND = "50 8 66 11 80 20 89 34 92 50 89 66 80 80 66 89 50 92 34 89 20 80 11 66 8 50 11 34 20 20 34 11"
SHAPES = (
    _area(_ROUND),
    _area("12 12 88 12 88 88 12 88"),
    _area("50 8 94 88 6 88"),
    _area("50 4 84 50 50 96 16 50"),
    _area("36 8 64 8 64 36 92 36 92 64 64 64 64 92 36 92 36 64 8 64 8 36 36 36"),
    _area("50 4 61 37 96 38 68 59 79 93 50 73 21 93 32 59 4 38 39 37"),
    _stroke(f"{_ROUND} 50 8", half_width=8.0),
    _area("4 38 52 38 52 12 96 50 52 88 52 62 4 62"),
    _stroke("12 12 88 88", "12 88 88 12", half_width=8.0),
    _area("50 6 94 46 80 46 80 92 58 92 58 64 42 64 42 92 20 92 20 46 6 46"),
)
"""Circle, square, triangle, diamond, plus, star, ring, arrow, cross, house."""

_POINTS = 132
_MARGIN = 16
_UNIT = 16
"""Distances are kept in sixteenths."""
_GAP = 2.5


def _distance(line: Line, x: Array, y: Array) -> Array:
    """Return the distance of points to a line, float64 of their shape."""
    nearest = np.full(np.broadcast(x, y).shape, np.inf)
    for (x1, y1), (x2, y2) in itertools.pairwise(line):
        dx, dy = x2 - x1, y2 - y1
        along = np.clip(((x - x1) * dx + (y - y1) * dy) / (dx * dx + dy * dy), 0.0, 1.0)
        off_x, off_y = x - x1 - along * dx, y - y1 - along * dy
        np.minimum(nearest, off_x * off_x + off_y * off_y, out=nearest)
    distance: Array = np.sqrt(nearest)
    return distance


def _is_inside(outline: Line, x: Array, y: Array) -> Array:
    """Return which points lie within an outline. Their ``y`` are halves, so no point is level with a corner."""
    inside = np.zeros(np.broadcast(x, y).shape, dtype=np.bool_)
    for (x1, y1), (x2, y2) in zip(outline, (*outline[1:], outline[0]), strict=True):
        if y1 == y2:
            continue
        left = ((x - x1) * (y2 - y1) < (y - y1) * (x2 - x1)) == (y2 > y1)
        inside ^= ((y1 < y) != (y2 < y)) & left
    return inside


def _field(shape: Shape) -> Array:
    """Return how far inside a shape each point is, in sixteenths, negative outside; int32, shape ``(P, P)``."""
    x = np.arange(_POINTS) + (0.5 - _MARGIN)
    y = x[:, np.newaxis]
    depth = np.full((_POINTS, _POINTS), -np.inf)
    for outline in shape.areas:
        apart = _distance((*outline, outline[0]), x, y)
        depth = np.maximum(depth, np.where(_is_inside(outline, x, y), apart, -apart))
    for line in shape.strokes:
        depth = np.maximum(depth, shape.half_width - _distance(line, x, y))
    for line in shape.gaps:
        depth = np.minimum(depth, _distance(line, x, y) - _GAP)
    field: Array = np.rint(depth * _UNIT).astype(np.int32)
    return field


def integers(key: int, tag: int, count: int, low: int, high: int) -> IndexArray:
    """Return ``count`` integers from ``low`` to ``high``, a function of key and tag; int64."""
    words = absorb_words(absorb(key, tag), np.arange(count, dtype=np.uint64))
    return (words >> np.uint64(33)).astype(np.int64) % (high - low + 1) + low


def noise(key: int, tag: int, count: int) -> ByteArray:
    """Return ``count`` random bytes, a function of key and tag."""
    words = absorb_words(absorb(key, tag), np.arange(-(-count // 8), dtype=np.uint64))
    return words.astype("<u8").view(np.uint8)[:count]


def draw(
    shapes: tuple[Shape, ...], labels: IndexArray, *, side: int, thickness: tuple[int, int], key: int
) -> ByteArray:
    """Draw one picture per label.

    Args:
        shapes: What each label looks like.
        labels: int64, shape ``(N,)``.
        side: Pixels along a side, ``S``.
        thickness: Least and most that is added around a shape, in sixteenths of a hundredth of its size.
        key: Decides how samples differ.

    Returns:
        How much of each pixel is covered, 0 to 255, uint8, shape ``(N, S, S)``.
    """
    fields = np.stack([_field(shape) for shape in shapes])
    count = len(labels)

    def vary(tag: int, low: int, high: int) -> Array:
        return integers(key, tag, count, low, high).astype(np.int32)[:, np.newaxis]

    # Half pixels from the middle -> points of the field, in 256ths; a shape takes some 20 of 28 pixels.
    half = np.arange(1 - side, side, 2, dtype=np.int32)
    size = 256 * 100 * 28 // (2 * 20 * side)
    middle = 256 * _POINTS // 2
    wide, high = vary(1, size * 88 // 100, size * 115 // 100), vary(2, size * 88 // 100, size * 112 // 100)
    slant, turn = vary(3, -size // 4, size // 4), vary(4, -size // 10, size // 10)
    across, down = vary(5, middle - 2400, middle + 2400), vary(6, middle - 2400, middle + 2400)
    across = (half * wide + across)[:, np.newaxis, :] + (half * (slant + turn))[:, :, np.newaxis]
    down = (half * high + down)[:, :, np.newaxis] - (half * turn)[:, np.newaxis, :]
    place = np.clip(down >> 8, 0, _POINTS - 1) * _POINTS + np.clip(across >> 8, 0, _POINTS - 1)
    place += (labels.astype(np.int32) * (_POINTS * _POINTS))[:, np.newaxis, np.newaxis]
    depth = fields.reshape(-1)[place] + vary(7, *thickness)[:, :, np.newaxis]
    # A pixel is about five hundredths wide: from two and a half outside to as much inside it fills up.
    cover: ByteArray = np.clip((depth * 51 >> 4) + 128, 0, 255).astype(np.uint8)
    return cover
