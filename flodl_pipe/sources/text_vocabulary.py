"""Characters as numbers: the vocabulary of a text is its distinct code points, sorted; a character's id is its place.

A character is one Unicode code point, whatever number of bytes it takes in a file. Ids are kept in the narrowest type
that holds them. All of it is table lookups over whole arrays of code points.

Shape letter: ``V`` characters.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray
from flodl_pipe.errors import SourceError
from flodl_pipe.units import format_count

__all__ = ["CharVocabulary", "Ids", "code_points"]


class Ids(Protocol):
    """Ids in an array or a tensor, on any device."""

    def tolist(self) -> Any:
        """Return them as nested lists of numbers, or one number."""
        ...


def code_points(text: str) -> Array:
    """Return the code point of each character, uint32, shape ``(len(text),)``.

    >>> code_points("aé").tolist()
    [97, 233]
    """
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


@final
@dataclass(frozen=True)
class CharVocabulary:
    """The characters of a text.

    Attributes:
        characters: Each once, ascending by code point; the place of a character is its id.

    >>> vocabulary = CharVocabulary("abc")
    >>> vocabulary.encode("cab").tolist(), vocabulary.decode([2, 0, 1])
    ([2, 0, 1], 'cab')
    """

    characters: str
    _codes: Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_codes", code_points(self.characters))

    @classmethod
    def of_codes(cls, codes: Array) -> "CharVocabulary":
        """Return the vocabulary of ascending, distinct code points, shape ``(V,)``."""
        return cls(codes.astype("<u4").tobytes().decode("utf-32-le"))

    def __len__(self) -> int:
        return len(self.characters)

    @property
    def dtype(self) -> str:
        """NumPy name of the narrowest unsigned type that holds an id."""
        return "uint8" if len(self) <= 2**8 else "uint16" if len(self) <= 2**16 else "uint32"

    def table(self) -> Array:
        """Return code point -> id, of type ``dtype``, shape ``(highest code point + 1,)``; 0 for what is no character.

        At most 4.4 MB, as code points end at 0x10FFFF.
        """
        table = np.zeros(int(self._codes[-1]) + 1 if len(self) else 1, dtype=self.dtype)
        table[self._codes] = np.arange(len(self))
        return table

    def encode(self, text: str) -> IndexArray:
        """Return the id of each character, int64, shape ``(len(text),)``.

        Raises:
            SourceError: naming the first character that is not in the vocabulary, and its place.
        """
        codes = code_points(text)
        ids = np.searchsorted(self._codes, codes).astype(np.int64)
        known = ids < len(self)
        known[known] = self._codes[ids[known]] == codes[known]
        if not known.all():
            at = int(np.argmin(known))
            raise SourceError(
                f"{text[at]!r} (U+{ord(text[at]):04X}, character {format_count(at)} of the text) is not in the "
                f"vocabulary of {len(self)} characters; leave it out, or train on a text that has it"
            )
        return ids

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the characters that ids stand for.

        Args:
            ids: One row of them: a list, an array, or a tensor on any device, of shape ``(T,)``; or a single one of
                shape ``()``.

        Raises:
            SourceError: if they are no integers, of more than one row, or one of them is no id.
        """
        found = np.asarray(ids if isinstance(ids, Sequence) else ids.tolist())
        if found.ndim > 1 or (found.size and found.dtype.kind not in "iu"):
            raise SourceError(
                f"ids of type {found.dtype} and shape {found.shape} are no row of ids; give integers, a row at a time"
            )
        row = np.atleast_1d(found).astype(np.int64)
        wrong = (row < 0) | (row >= len(self))
        if wrong.any():
            at = int(np.argmax(wrong))
            masked = ": it marks a target that is ignored; leave those out" if row[at] == -100 else ""
            raise SourceError(
                f"id {int(row[at])} (place {format_count(at)}) stands for no character, ids are 0 .. {len(self) - 1}"
                f"{masked}"
            )
        return self._codes[row].tobytes().decode("utf-32-le")

    def to_json(self) -> str:
        """Return the characters as a JSON list, in ASCII."""
        return json.dumps(list(self.characters)) + "\n"
