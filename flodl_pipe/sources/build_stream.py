"""Section ``source`` of kind ``stream`` -> :class:`flodl_pipe.sources.text_stream.TextStream`."""

from collections.abc import Sequence

from flodl_pipe.config.source_stream import StreamConfig
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.default_path import default_path
from flodl_pipe.sources.imports import import_callable
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.sources.stream_sample import (
    sample_documents,
    sample_documents_fact,
    sample_lines,
    sample_lines_fact,
)
from flodl_pipe.sources.text_stream import TextStream

__all__ = ["build_stream"]


def build_stream(config: StreamConfig, data_dir: str, allowed: Sequence[str] = ()) -> TextStream:
    """Open the text that a config names, the user's default folder, or the sample corpus.

    Args:
        config: The section.
        data_dir: Folder of the user's data sets.
        allowed: Modules that ``encode`` may come from.

    Raises:
        ConfigError: if a setting is impossible, or ``encode`` may not or cannot be imported.
        SourceError: if data is missing, unreadable or damaged.
    """
    path: str | Sequence[str] | None = config.path
    notes: tuple[Fact, ...] = ()
    if path is None:
        path = default_path(data_dir, config.kind, config.if_missing)
    if path is None:
        if config.format == "lines":
            path, notes = str(sample_lines()), (sample_lines_fact(),)
        elif config.text_key == "text":
            path, notes = str(sample_documents()), (sample_documents_fact(),)
        else:
            raise SourceError(
                f"the sample holds JSON lines with the key 'text', and source.text_key is {config.text_key!r}; leave "
                "it unset, or set source.path to your data"
            )
    encode = import_callable(config.encode, allowed, "source.encode") if config.encode else None
    return TextStream.open(
        path,
        rows=config.rows,
        seq_len=config.seq_len,
        max_length=config.max_length,
        file_format=config.format,
        tail=config.tail,
        text_key=config.text_key,
        shuffle_buffer=config.shuffle_buffer,
        lanes=config.lanes,
        encode=encode,
        vocab_size=config.vocab_size,
        notes=notes,
    )
