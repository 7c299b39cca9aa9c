"""Section ``source``, kind ``shakespeare``: a text as characters."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flodl_pipe.config.base import Count, LocalPaths
from flodl_pipe.config.source_base import SourceSection
from flodl_pipe.config.source_tokens import require_starts

__all__ = ["TextConfig"]


class TextConfig(SourceSection):
    """A text as characters, cut into windows of ``seq_len`` of them; any UTF-8 text, not only Shakespeare's."""

    kind: Literal["shakespeare"] = "shakespeare"
    """Text as characters."""

    path: LocalPaths | None = None
    """A text file, a folder of `.txt` files, a glob pattern, or a list of them, joined in order; null:
    `<data_dir>/shakespeare` if it exists (its `input.txt`, else its `.txt` files), else `if_missing` decides."""

    if_missing: Literal["error", "sample"] = "error"
    """With no path and no data folder: stop, or make a small sample text."""

    seq_len: Count
    """Characters of a window; a row stores one more, so that input and target are both this long."""

    split: Literal["train", "val", "all"] = "train"
    """Part of the text that is used. The vocabulary is always that of the whole text."""

    train_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    """Share of the characters, from the begin, that is `train`; the rest is `val`."""

    stride: Count | None = None
    """Characters from one window's start to the next; null: `seq_len`."""

    tail: Literal["drop", "keep"] = "drop"
    """Characters that fill no last window: drop them, or keep a shorter window, padded (target -100)."""

    starts: Literal["stride", "random"] = "stride"
    """Where windows begin: every `stride` characters, each once an epoch; or at any character, drawn with replacement,
    about one pass an epoch."""

    @model_validator(mode="after")
    def _starts_fit(self) -> "TextConfig":
        require_starts(self.starts, self.stride, self.tail)
        return self

    def field_names(self) -> tuple[str, ...]:
        return "input", "target"
