"""What an order computed last: a few pieces of an epoch (blocks, pools), kept by number, and positions by piece.

Threads need no lock: what is kept is replaced as a whole, so at worst two of them compute the same piece.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Generic, TypeVar, final

import numpy as np

from flodl_pipe.arrays import IndexArray

__all__ = ["Recent", "by_number"]

_Piece = TypeVar("_Piece")
_KEPT = 4


@final
class Recent(Generic[_Piece]):
    """The last few pieces, by number."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: tuple[tuple[int, _Piece], ...] = ()

    def get(self, number: int, make: Callable[[int], _Piece]) -> _Piece:
        """Return a piece, made by ``make(number)`` unless it is kept."""
        for kept, piece in self._kept:
            if kept == number:
                return piece
        piece = make(number)
        self._kept = ((number, piece), *self._kept[: _KEPT - 1])
        return piece


def by_number(numbers: IndexArray) -> Iterator[tuple[int, IndexArray | slice]]:
    """Yield each number once, with the places where it stands: an index for arrays of the same shape ``(K,)``."""
    if not len(numbers):
        return
    first = int(numbers[0])
    if (numbers == first).all():
        yield first, slice(None)
        return
    order = np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    edges = [0, *(np.flatnonzero(ascending[1:] != ascending[:-1]) + 1).tolist(), len(order)]
    for begin, end in pairwise(edges):
        yield int(ascending[begin]), order[begin:end]
