"""Section ``source``, kind ``stream``: text files of any size, without an index.

Only what can be judged without opening a file is checked here; whether the bytes agree is the source's business.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flodl_pipe.config.base import Count, LocalPaths, fault
from flodl_pipe.config.callable_path import CallablePath
from flodl_pipe.config.source_base import SourceSection

__all__ = ["StreamConfig"]

_BYTE_VOCAB_SIZE = 257


class StreamConfig(SourceSection):
    """Text, line by line or in JSON objects, encoded on the way; its windows or its documents are the rows."""

    kind: Literal["stream"] = "stream"
    """A stream of text."""

    path: LocalPaths | None = None
    """A file, a folder, a glob pattern, or a list of them; null: `<data_dir>/stream` if it exists, else `if_missing`
    decides."""

    if_missing: Literal["error", "sample"] = "error"
    """With no path and no data folder: stop, or make a small sample corpus there."""

    format: Literal["auto", "lines", "jsonl"] = "auto"
    """What a line is: a document, a JSON object that holds one, or told by the file's name. Names that end in .gz or
    .zst are packed."""

    text_key: Annotated[str, Field(min_length=1)] = "text"
    """Key of the text in a JSON object."""

    encode: CallablePath | None = None
    """`MODULE:CALLABLE`, a function from the text of a document to its token ids; its module must be allowed by
    `allow_import`. Null: UTF-8 bytes, and 256 after each document."""

    vocab_size: Annotated[Count, Field(le=2**32)] | None = None
    """Number of token ids; an id beyond it is an error, and up to 65536 they are stored in two bytes instead of four.
    Null: 257 for bytes, 2**32 for `encode`."""

    rows: Literal["windows", "documents"] = "windows"
    """What a row is: a window of `seq_len` tokens, which run on over the ends of documents; or a document, of its own
    length, for `loader.collate` pad or ragged. A batch of documents holds `input_ids`, not `input` and `target`."""

    seq_len: Count | None = None
    """Tokens of a window, which need it; a row stores one more, so that input and target are both this long."""

    max_length: Count | None = None
    """Most tokens of a document, its end among them, where rows are documents, which need it. A longer one is an error:
    none is cut."""

    tail: Literal["drop", "keep"] = "drop"
    """Tokens that fill no last window of a lane: drop them, or keep a shorter window, padded (target -100)."""

    shuffle_buffer: Count = 1024
    """Rows held for shuffling, over all lanes."""

    lanes: Count | None = None
    """Logical shards that files are dealt over, at least one per rank and at most one per file; null: one per file, up
    to 16."""

    @model_validator(mode="after")
    def _fits(self) -> "StreamConfig":
        if self.subset is not None:
            raise fault(
                "must be null for a stream, which has no sample numbers to choose by; choose files with path instead",
                at=["subset"],
            )
        if self.on_error == "skip":
            raise fault(
                "must be raise for a stream, got skip: where a sample cannot be read, it is not known where the next "
                "one begins, and positions would shift",
                at=["on_error"],
            )
        if self.encode is None and self.vocab_size is not None and self.vocab_size < _BYTE_VOCAB_SIZE:
            raise fault(
                f"must be at least {_BYTE_VOCAB_SIZE} for text as bytes (256 ends a document), got {self.vocab_size}",
                at=["vocab_size"],
            )
        return self

    @model_validator(mode="after")
    def _rows_fit(self) -> "StreamConfig":
        if self.rows == "windows":
            if self.seq_len is None:
                raise fault(
                    "must be set, the tokens of a window, got null; or set rows: documents and max_length",
                    at=["seq_len"],
                )
            if self.max_length is not None:
                raise fault(
                    f"must be null where rows are windows, got {self.max_length}: seq_len says how long a window is; "
                    "or set rows: documents, and seq_len to null",
                    at=["max_length"],
                )
            return self
        if self.seq_len is not None:
            raise fault(
                f"must be null where rows are documents, got {self.seq_len}: each has its own length, of at most "
                "max_length",
                at=["seq_len"],
            )
        if self.max_length is None:
            raise fault(
                "must be set where rows are documents, got null: the most tokens that one may have, its end among them",
                at=["max_length"],
            )
        if self.tail != "drop":
            raise fault(
                f"must be drop where rows are documents, got {self.tail!r}: every document is whole", at=["tail"]
            )
        return self

    def field_names(self) -> tuple[str, ...]:
        return ("input_ids",) if self.rows == "documents" else ("input", "target")
