"""A digest of delivered samples that does not depend on who delivered them, or in which order.

Every row has a 128-bit hash of (epoch, position, sample, repeat, raw bytes); the digest is the sum of the hashes modulo
2**64 in each half. Sums commute, so the digests of ranks, of readers and of the two halves of an interrupted run add up
to the digest of the whole; a row that is lost, doubled, damaged or out of place changes it.

Raw bytes are the stored row, before widening and transforms: those are exact everywhere, floating-point results are
not. The row hash is a multiply-add over 64-bit words with fixed odd multipliers, then a mixer. It finds faults; it is
no defence against somebody who wants a collision.

A ragged row is hashed like the same bytes in an array of such rows: its length is counted as its bytes are.
"""

import itertools
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol, final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray, WordArray
from flodl_pipe.keyed.absorb import GOLDEN_GAMMA, absorb, absorb_words, mix_words, spread

__all__ = ["Digest", "RaggedRows", "content_multipliers", "row_hashes", "row_states"]

_MASK = (1 << 64) - 1
_DOMAIN = 0xD16E57
_WORD_BYTES = 8
_BLOCK_BYTES = 1 << 16


class RaggedRows(Protocol):
    """Rows of different lengths, as :class:`flodl_pipe.batch.ragged.Ragged` has them."""

    @property
    def values(self) -> Array:
        """The rows one after the other, shape ``(T, ...)``."""
        ...

    @property
    def offsets(self) -> IndexArray:
        """Where each row begins, and the last one ends: int64, shape ``(B + 1,)``, rising from 0 to ``T``."""
        ...


@final
class Digest:
    """A running sum of row hashes.

    >>> part, rest, whole = Digest(), Digest(), Digest()
    >>> hashes = np.arange(8, dtype=np.uint64).reshape(4, 2)
    >>> part.add(hashes[:1]); rest.add(hashes[1:]); whole.add(hashes)
    >>> part.merge(rest); part.hex() == whole.hex()
    True
    """

    __slots__ = ("high", "low", "num_rows")

    def __init__(self, low: int = 0, high: int = 0, num_rows: int = 0) -> None:
        self.low, self.high, self.num_rows = low, high, num_rows

    def add(self, hashes: WordArray) -> None:
        """Add row hashes, uint64, shape ``(B, 2)``."""
        self.add_sums(hashes.sum(axis=0, dtype=np.uint64), len(hashes))

    def add_sums(self, sums: WordArray, num_rows: int) -> None:
        """Add the sum of ``num_rows`` row hashes, uint64, shape ``(2,)``."""
        low, high = sums.tolist()
        self.low = (self.low + low) & _MASK
        self.high = (self.high + high) & _MASK
        self.num_rows += num_rows

    def merge(self, other: "Digest") -> None:
        """Add what another digest has counted."""
        self.low = (self.low + other.low) & _MASK
        self.high = (self.high + other.high) & _MASK
        self.num_rows += other.num_rows

    def hex(self) -> str:
        """Return the digest as 32 hexadecimal digits."""
        return f"{self.high:016x}{self.low:016x}"

    @classmethod
    def from_hex(cls, text: str, num_rows: int) -> "Digest":
        """Return a digest that continues from :meth:`hex` and ``num_rows`` of an earlier part."""
        return cls(int(text[16:], 16), int(text[:16], 16), num_rows)


def row_hashes(
    fields: Iterable[Array | RaggedRows],
    *,
    epoch: int,
    positions: IndexArray,
    samples: IndexArray,
    repeats: IndexArray,
) -> WordArray:
    """Hash rows together with what they are.

    Args:
        fields: Stored arrays, each of shape ``(B, ...)`` and C-contiguous, in the order of the stored spec; ragged
            fields as ``B`` ragged rows.
        epoch: Epoch number.
        positions: Position of each row in the epoch, int64, shape ``(B,)``.
        samples: Sample index of each row, int64, shape ``(B,)``.
        repeats: Repeat of each row, int64, shape ``(B,)``.

    Returns:
        uint64 array of shape ``(B, 2)``.
    """
    state = row_states(epoch=epoch, positions=positions, samples=samples, repeats=repeats)
    for field in fields:
        content = _content(field) if isinstance(field, np.ndarray) else _ragged_content(field)
        state = absorb_words(state, content)
    second = mix_words(state * np.uint64(GOLDEN_GAMMA))
    return np.stack([state, second], axis=1)


def row_states(*, epoch: int, positions: IndexArray, samples: IndexArray, repeats: IndexArray) -> WordArray:
    """Return what the hash of each row is before its bytes: uint64, shape ``(B,)``; see :func:`row_hashes`."""
    state = absorb_words(absorb(_DOMAIN, epoch), positions.astype(np.uint64))
    state = absorb_words(state, samples.astype(np.uint64))
    return absorb_words(state, repeats.astype(np.uint64))


def content_multipliers(num_words: int) -> WordArray:
    """Return the odd numbers that the 64-bit words of a row are multiplied with: uint64, read-only."""
    return _multipliers(num_words)


def _content(field: Array) -> WordArray:
    """Return one word per row: the sum of its 64-bit words times odd constants, plus its length."""
    num_rows = len(field)
    if not num_rows:
        return np.empty(0, dtype=np.uint64)
    row_bytes = field.nbytes // num_rows
    raw = field.reshape(num_rows, -1).view(np.uint8)
    num_words, rest = divmod(row_bytes, 8)
    total = np.full(num_rows, row_bytes, dtype=np.uint64)
    if num_words:
        words = np.ndarray((num_rows, num_words), np.uint64, raw, strides=(row_bytes, 8))
        total += (words * _multipliers(num_words)).sum(axis=1, dtype=np.uint64)
    if rest:
        tail = np.zeros((num_rows, 8), dtype=np.uint8)
        tail[:, :rest] = raw[:, row_bytes - rest :]
        total += tail.view(np.uint64)[:, 0] * _multipliers(num_words + 1)[-1]
    return total


def _ragged_content(rows: RaggedRows) -> WordArray:
    """Return :func:`_content` of every row, each as long as it is."""
    values = np.ascontiguousarray(rows.values)
    raw = values.reshape(-1).view(np.uint8)
    begins = rows.offsets * (values.nbytes // max(1, len(values)))
    total = np.empty(len(begins) - 1, dtype=np.uint64)
    # In blocks of rows: arrays of megabytes are new memory every time, which costs four times the arithmetic.
    cuts = np.searchsorted(begins, np.arange(0, len(raw), _BLOCK_BYTES)).tolist()
    edges = sorted({0, *cuts, len(total)})
    for first, last in itertools.pairwise(edges):
        start = begins[first]
        total[first:last] = _block_content(raw[start : begins[last]], begins[first : last + 1] - start)
    return total


def _block_content(raw: ByteArray, begins: IndexArray) -> WordArray:
    row_bytes = np.diff(begins)
    # Words begin where the row does, at any byte: one overlapping word is seen at each byte, the last ones end in
    # zeros, and what a row's last word holds of the next row is masked away.
    num_words = -(-row_bytes // _WORD_BYTES)
    first_words = np.zeros(len(num_words) + 1, dtype=np.int64)
    np.cumsum(num_words, out=first_words[1:])
    total = row_bytes.astype(np.uint64)
    if not first_words[-1]:
        return total
    padded = np.zeros(len(raw) + _WORD_BYTES, dtype=np.uint8)
    padded[: len(raw)] = raw
    word_of_row = np.arange(first_words[-1], dtype=np.int64) - np.repeat(first_words[:-1], num_words)
    places = np.repeat(begins[:-1], num_words) + word_of_row * _WORD_BYTES
    # Taken as eight bytes each, not as numbers: of numbers at odd addresses NumPy takes several times as long.
    words: WordArray = np.ndarray((len(raw) + 1,), "V8", padded, strides=(1,))[places].view(np.uint64)
    rest = row_bytes % _WORD_BYTES
    cut = np.flatnonzero(rest)
    words[first_words[cut + 1] - 1] &= _FIRST_BYTES[rest[cut]]
    longest = int(num_words.max())
    # As many multipliers as the next power of two, so that every batch asks for one of few tables.
    words *= _multipliers(1 << (longest - 1).bit_length())[word_of_row]
    sums = np.zeros(len(words) + 1, dtype=np.uint64)
    np.cumsum(words, out=sums[1:])  # modulo 2**64, so differences are exact; a row without words adds nothing
    total += sums[first_words[1:]] - sums[first_words[:-1]]
    return total


def _first_bytes() -> WordArray:
    """Return, for n = 0 .. 7, the mask of a word's first n bytes in memory."""
    bytes_of = np.arange(_WORD_BYTES)[np.newaxis, :] < np.arange(_WORD_BYTES)[:, np.newaxis]
    masks: WordArray = (bytes_of.astype(np.uint8) * np.uint8(0xFF)).view(np.uint64)[:, 0]
    return masks


_FIRST_BYTES = _first_bytes()


@lru_cache(maxsize=8)
def _multipliers(count: int) -> WordArray:
    values = np.array(spread(absorb(_DOMAIN, 1), count), dtype=np.uint64)
    values |= np.uint64(1)
    values.setflags(write=False)
    return values
