"""The tier contract: samples by index, as stored, for those that are held.

Tiers admit until they are full and never evict. Under a reshuffle every sample comes once an epoch, so of a tier that
holds ``K`` of ``N`` samples no choice of which is better than another, and a fixed one costs nothing to keep. A tier
therefore holds a *range* of ranks, a sample's rank being its place in storage order, or by how often it is drawn where
that differs (:mod:`flodl_pipe.staging.ranking`).

Shape letters: ``K`` samples asked for, ``B`` rows of a buffer, ``N`` samples of the source.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, final

from flodl_pipe.arrays import Array, BoolArray, IndexArray

__all__ = ["Tier", "TierCount"]


@final
@dataclass(frozen=True)
class TierCount:
    """What a tier was asked for and did so far.

    Attributes:
        name: ``"RAM cache"``, ``"disk stage"``.
        num_rows: Rows asked of it.
        num_hits: Rows of those that it had.
        hit_bytes: Their bytes, as stored.
        held_bytes: Bytes it holds now.
        filled_bytes: Bytes read from the source only to fill it.
        off: Why it was switched off; None while it works.
        num_keepers: Ranks of this host that keep it together, each of which tells what it asked for itself; 1: it is
            this rank's own.
    """

    name: str
    num_rows: int
    num_hits: int
    hit_bytes: int
    held_bytes: int
    filled_bytes: int
    off: str | None = None
    num_keepers: int = 1


class Tier(Protocol):
    """Holds some samples of a source. Thread-safe; a miss is an answer, never a wait."""

    name: str

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> BoolArray:
        """Fill the rows of samples that are held: ``out[field][rows[i]] = sample indices[i]``.

        Args:
            indices: Samples wanted, int64, shape ``(K,)``; repeats are allowed.
            rows: Row that each goes to, int64, shape ``(K,)``.
            out: One C-contiguous array per stored field, shape ``(B, *field.shape)``.

        Returns:
            Which of the samples were held, shape ``(K,)``. Never raises for what it lost: it switches itself off,
            aloud, and answers with a miss.
        """
        ...

    def offer(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Take in samples that were read elsewhere, if they are wanted; see :meth:`read_into`. Never raises."""
        ...

    def count(self) -> TierCount:
        """Return what was asked of it so far."""
        ...

    def close(self) -> None:
        """Give everything back; later reads are misses."""
        ...
