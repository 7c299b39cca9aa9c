"""Stored windows of ``T + 1`` tokens -> what a batch holds: ``input``, and ``target`` shifted by one, both int64.

Shape letter: ``T`` = ``seq_len``.
"""

from collections.abc import Mapping

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.sources.protocol import CopiedField, CopiedFields

__all__ = [
    "PAD_INPUT",
    "PAD_TARGET",
    "copied_windows",
    "copy_shifted",
    "deliver_windows",
    "delivered_spec",
    "stored_spec",
]

PAD_INPUT, PAD_TARGET = 0, -100
"""What fills a part window; torch's cross entropy ignores the target -100."""


def stored_spec(dtype: str, seq_len: int, *, keep_tail: bool) -> SampleSpec:
    """Return the stored row: ``tokens`` of shape ``(T + 1,)``, and ``num_tokens`` where windows may be shorter."""
    length = (Field("num_tokens", "int64"),) if keep_tail else ()
    return SampleSpec((Field("tokens", dtype, (seq_len + 1,)), *length))


def delivered_spec(seq_len: int) -> SampleSpec:
    """Return the delivered row: ``input`` and ``target``, int64, shape ``(T,)``."""
    return SampleSpec.of(input=("int64", (seq_len,)), target=("int64", (seq_len,)))


def copied_windows(kind: object, dtype: str) -> CopiedFields:
    """Return what a source of whole windows says about how it delivers; ``kind`` as there, ``dtype`` the stored one."""
    inputs, targets = CopiedField("input", 0, dtype), CopiedField("target", np.dtype(dtype).itemsize, dtype)
    return CopiedFields(kind, (inputs, targets))


def deliver_windows(stored: Mapping[str, Array], out: Mapping[str, Array], *, keep_tail: bool) -> None:
    """Slice and widen stored windows, padding shorter ones; see :meth:`flodl_pipe.sources.protocol.Source.deliver`."""
    tokens = stored["tokens"]
    copy_shifted(tokens, out["input"], out["target"])
    if keep_tail:
        missing = np.arange(tokens.shape[-1] - 1) >= stored["num_tokens"][..., np.newaxis] - 1
        np.copyto(out["input"], PAD_INPUT, where=missing)
        np.copyto(out["target"], PAD_TARGET, where=missing)


def copy_shifted(tokens: Array, inputs: Array, targets: Array) -> None:
    """Widen ``tokens[..., :-1]`` into ``inputs`` and ``tokens[..., 1:]`` into ``targets``.

    Both in one NumPy copy where the two outputs have the same strides: a copy releases the GIL, and beside a training
    loop in pure Python every release costs a reader the interpreter's switch interval.
    """
    if inputs.strides != targets.strides or inputs.dtype != targets.dtype:
        np.copyto(inputs, tokens[..., :-1])
        np.copyto(targets, tokens[..., 1:])
        return
    apart = targets.__array_interface__["data"][0] - inputs.__array_interface__["data"][0]
    strided = np.lib.stride_tricks.as_strided
    both = strided(inputs, (2, *inputs.shape), (apart, *inputs.strides))
    shifted = strided(tokens, (2, *inputs.shape), (tokens.strides[-1], *tokens.strides), writeable=False)
    np.copyto(both, shifted)
