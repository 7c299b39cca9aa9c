"""Section ``source``, kind ``token_shards``: token ids in flat binary files.

Only what can be judged without opening a file is checked here; whether the bytes agree is the source's business.
"""

from typing import Literal

from pydantic import model_validator

from flodl_pipe.config.base import Count, LocalPaths, NonNegative, StrictModel, TokenDtype, fault
from flodl_pipe.config.source_base import SourceSection

__all__ = ["DocumentsConfig", "TokenShardsConfig", "require_starts"]


class DocumentsConfig(StrictModel):
    """How documents are told apart within a window."""

    eos: NonNegative
    """Token id that ends a document, and is part of it."""

    mask_targets: bool = True
    """Whether the target past an end, the first token of another document, becomes -100."""


def require_starts(starts: str, stride: int | None, tail: str) -> None:
    """Check that nothing is set that windows at random starts have no use for."""
    if starts == "random" and stride is not None:
        raise fault(f"must be null when starts is random, got {stride}: a window begins at any token", at=["stride"])
    if starts == "random" and tail != "drop":
        raise fault(f"must be drop when starts is random, got {tail}: every window is whole", at=["tail"])


class TokenShardsConfig(SourceSection):
    """Token ids in flat binary files, cut into windows of ``seq_len`` tokens."""

    kind: Literal["token_shards"] = "token_shards"
    """Token shards."""

    path: LocalPaths | None = None
    """A file, a folder, a glob pattern, or a list of them; null: `<data_dir>/token_shards` if it exists, else
    `if_missing` decides."""

    if_missing: Literal["error", "sample"] = "error"
    """With no path and no data folder: stop, or make a small sample corpus there."""

    format: Literal["auto", "npy", "raw", "llmc", "megatron"] = "auto"
    """Layout of a file: NumPy's .npy, raw little-endian ids without a header, llm.c's header, Megatron's .bin with its
    .idx, or told by the file."""

    dtype: TokenDtype | None = None
    """Type of a stored token. Raw files need it; files with a header or an index must agree with it."""

    seq_len: Count
    """Tokens of a window; a row stores one more, so that input and target are both this long."""

    stride: Count | None = None
    """Tokens from one window's start to the next; null: `seq_len`."""

    tail: Literal["drop", "keep"] = "drop"
    """Tokens that fill no last window of a shard: drop them, or keep a shorter window, padded (target -100)."""

    starts: Literal["stride", "random"] = "stride"
    """Where windows begin: every `stride` tokens, each once an epoch; or at any token, drawn with replacement, about
    one pass an epoch."""

    vocab_size: Count | None = None
    """Number of token ids; when set, an id outside 0 .. vocab_size - 1 is an error."""

    documents: DocumentsConfig | None = None
    """Tell documents apart: `{eos, mask_targets}`. Batches then also hold `document` and `position`."""

    @model_validator(mode="after")
    def _raw_needs_dtype(self) -> "TokenShardsConfig":
        makes_sample = self.path is None and self.if_missing == "sample"
        if self.format == "raw" and self.dtype is None and not makes_sample:
            raise fault(
                "must be set when format is 'raw', got null: a raw file does not say how wide a token is, "
                "write for example dtype: uint16",
                at=["dtype"],
            )
        return self

    @model_validator(mode="after")
    def _starts_fit(self) -> "TokenShardsConfig":
        require_starts(self.starts, self.stride, self.tail)
        return self

    def field_names(self) -> tuple[str, ...]:
        return ("input", "target", "document", "position") if self.documents else ("input", "target")

    def notes(self) -> tuple[tuple[str, str], ...]:
        if self.dtype is None or self.format != "npy":
            return super().notes()
        return (*super().notes(), ("dtype", f"{self.dtype}, compared with the files' headers"))
