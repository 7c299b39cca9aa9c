"""Which tokens a window holds: pure arithmetic over the lengths of the shards.

A window is ``seq_len`` tokens and the target of the last one, so ``seq_len + 1`` stored tokens. Windows start every
``stride`` tokens from the start of their shard and never cross its end::

    shard of 12 tokens, seq_len 4, stride 4:   0 1 2 3 4 5 6 7 8 9 10 11
    window 0                                   x x x x x
    window 1                                           x x x x x
    left over (tail)                                             x  x  x
    with tail=keep, window 2                                   x x  x  x  (padded)

Shape letter: ``S`` shards.
"""

from dataclasses import dataclass, field
from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.sources.row_table import RowTable

__all__ = ["Windows"]


@final
@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of ``S`` shards, numbered through in shard order.

    Attributes:
        tokens: Tokens of each shard, int64, shape ``(S,)``.
        seq_len: Tokens of a window, at least 1.
        stride: Tokens between the starts of two windows, at least 1.
        keep_tail: Whether a shard's last tokens make a shorter window.
        per_shard: Windows of each shard, int64, shape ``(S,)``.
        tail_tokens: Tokens of each shard after its last window, int64, shape ``(S,)``.
    """

    tokens: IndexArray
    seq_len: int
    stride: int
    keep_tail: bool
    per_shard: IndexArray = field(init=False)
    tail_tokens: IndexArray = field(init=False)

    def __post_init__(self) -> None:
        whole = np.where(self.tokens > self.seq_len, (self.tokens - self.seq_len - 1) // self.stride + 1, 0)
        covered = np.where(whole > 0, (whole - 1) * self.stride + self.seq_len + 1, 0)
        tail = self.tokens - covered
        if self.keep_tail:
            # A part window needs a token and its target, and a target that no whole window has.
            part = (tail > 0) & (self.tokens - whole * self.stride >= 2)
            whole, tail = whole + part, np.where(part, 0, tail)
        object.__setattr__(self, "per_shard", whole)
        object.__setattr__(self, "tail_tokens", tail)

    def __len__(self) -> int:
        return int(self.per_shard.sum())

    @property
    def shard_starts(self) -> IndexArray:
        """First window of each shard that has one, int64."""
        held = self.per_shard[self.per_shard > 0]
        return np.cumsum(held) - held

    @property
    def gap_tokens(self) -> int:
        """Tokens between windows, where ``stride`` is longer than a window."""
        gap = max(self.stride - self.seq_len - 1, 0)
        return gap * int(np.maximum(self.per_shard - 1, 0).sum())

    def rows(self, bases: IndexArray, item_bytes: int) -> RowTable:
        """Return where the windows begin, in bytes.

        Args:
            bases: First byte of each shard's tokens, int64, shape ``(S,)``.
            item_bytes: Bytes of a token.
        """
        return RowTable(self.per_shard, bases, self.stride * item_bytes)
