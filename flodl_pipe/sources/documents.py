"""Documents within a window: where each token stands in its own, and which targets no document can predict.

A token with the id ``eos`` ends a document; the next token begins another. All of it is told from the window alone::

    tokens     a  b  E  c  E  E  d          (E = eos; d is a target only)
    input      a  b  E  c  E  E
    target     b  E  .  E  .  .             . = -100: the token after an E belongs to another document
    document   0  0  0  1  1  2
    position   0  1  2  0  1  0

The first document of a window is usually cut: its positions count from the begin of the window, not of the document,
because the tokens before are not there to attend to either. Two ends in a row hold an empty document between them,
whose one token is its end. Padding (``tail: keep``) is a document of its own, the last.

Attention within documents is then ``document[:, None] == document[None, :]``, and causal.

Shape letter: ``T`` = ``seq_len``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, IndexArray
from flodl_pipe.batch.spec import Field
from flodl_pipe.errors import ConfigError
from flodl_pipe.sources.shifted import PAD_TARGET

__all__ = ["Documents"]


@final
@dataclass(frozen=True)
class Documents:
    """How documents are told apart, and what is done at their borders.

    Attributes:
        eos: Token id that ends a document, and is part of it.
        mask_targets: Whether the target of an ``eos``, the first token of another document, becomes -100.
    """

    eos: int
    mask_targets: bool = True

    @property
    def summary(self) -> str:
        """What is done, in words."""
        return f"documents end with token {self.eos}, targets past it {'masked' if self.mask_targets else 'kept'}"

    def require_possible(self, dtype: str, vocab_size: int | None) -> None:
        """Check that the end of a document can occur at all.

        Args:
            dtype: NumPy name of the stored type.
            vocab_size: Number of token ids, if known.

        Raises:
            ConfigError: if no token can have this id.
        """
        limits = np.iinfo(dtype)
        if not 0 <= self.eos <= int(limits.max):
            raise ConfigError.at(
                "source.documents.eos",
                f"must be an id that a {dtype} token can have, 0 .. {int(limits.max)}, got {self.eos}",
            )
        if vocab_size is not None and self.eos >= vocab_size:
            raise ConfigError.at(
                "source.documents.eos", f"must be in the vocabulary, 0 .. {vocab_size - 1}, got {self.eos}"
            )

    def fields(self, seq_len: int) -> tuple[Field, ...]:
        """Return what a batch holds besides input and target: ``document`` and ``position``, int64 ``(T,)``."""
        return Field("document", "int64", (seq_len,)), Field("position", "int64", (seq_len,))

    def deliver(self, tokens: Array, num_tokens: IndexArray | None, out: Mapping[str, Array]) -> None:
        """Fill ``document`` and ``position``, and mask the targets that are in another document.

        Args:
            tokens: Stored windows, shape ``(*lead, T + 1)``.
            num_tokens: How many tokens of each are no padding, at least 2, shape ``lead``; None: all.
            out: The delivered fields, each of shape ``(*lead, T)``; ``target`` holds the targets already.
        """
        ends: BoolArray = tokens[..., :-1] == self.eos
        if self.mask_targets:
            np.copyto(out["target"], PAD_TARGET, where=ends)
        begins = np.empty(ends.shape, dtype=np.bool_)
        begins[..., 1:] = ends[..., :-1]
        if num_tokens is not None:
            # The last token is a target only, so that the inputs end one before it, and padding begins there.
            place, padding = np.arange(ends.shape[-1]), num_tokens[..., np.newaxis] - 1
            begins &= place < padding
            begins |= place == padding
        begins[..., 0] = True
        _number(begins, out["document"], out["position"])


def _number(begins: BoolArray, document: Array, position: Array) -> None:
    """Number documents and the tokens in them, given where they begin; every row begins one.

    Both are sums along all rows: of nothing but what the begin of a document changes, and of ones that it sets back.
    """
    starts = np.flatnonzero(begins)
    places = np.arange(len(starts))
    first_of_row = np.maximum.accumulate(np.where(starts % begins.shape[-1] == 0, places, 0))
    _sum_up(0, starts, np.diff(places - first_of_row, prepend=0), document)
    _sum_up(1, starts, 1 - np.diff(starts, prepend=-1), position)


def _sum_up(step: int, starts: IndexArray, steps: IndexArray, out: Array) -> None:
    """Fill ``out`` with the running sum of ``step``, or of ``steps`` at ``starts``."""
    # In the caller's own memory where that is one run: fresh memory costs several times the arithmetic.
    flat = out.reshape(-1) if out.flags.c_contiguous else np.empty(out.size, dtype=np.int64)
    flat.fill(step)
    flat[starts] = steps
    np.cumsum(flat, out=flat)
    if not out.flags.c_contiguous:
        np.copyto(out, flat.reshape(out.shape))
