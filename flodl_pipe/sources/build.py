"""A validated config -> the source it describes."""

from pathlib import Path

from flodl_pipe.config.source import RecordsConfig, SourceConfig, TokenShardsConfig
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.protocol import Fact, FileSource
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.sample_data import sample_corpus, sample_fact
from flodl_pipe.sources.tokens import TokenShards

__all__ = ["build_source"]


def build_source(config: SourceConfig, data_dir: str) -> FileSource:
    """Open the source that the section ``source`` describes.

    With no path, ``<data_dir>/token_shards`` is read if it exists; otherwise ``if_missing`` decides between an error
    and the sample corpus. A path that was given is never replaced by a sample.

    Args:
        config: The section.
        data_dir: Folder of the user's data sets.

    Raises:
        ConfigError: if the layout is impossible.
        SourceError: if data is missing, unreadable or damaged.
    """
    if isinstance(config, RecordsConfig):
        parts = {
            name: RecordPart(field.offset, field.dtype, tuple(field.shape)) for name, field in config.fields.items()
        }
        return Records.open(
            config.path, record_bytes=config.record_bytes, header_bytes=config.header_bytes, parts=parts
        )
    if config.path is not None:
        return _open(config, config.path, config.format, config.dtype)
    default = Path(data_dir, config.kind).absolute()
    if default.exists():
        return _open(config, str(default), config.format, config.dtype)
    if config.if_missing == "error":
        raise SourceError(
            f"source.path is not set and {default} does not exist; set source.path to your data, or "
            "source.if_missing=sample to try it with a small sample"
        )
    if config.format == "llmc":
        raise SourceError("there is no sample in format llmc; set source.path to your data, or source.format=raw")
    if config.dtype not in (None, "uint16"):
        raise SourceError(f"the sample holds uint16 tokens, source.dtype says {config.dtype}; leave source.dtype unset")
    if config.format == "npy":
        return _open(config, str(sample_corpus("npy")), "npy", None, sample_fact())
    return _open(config, str(sample_corpus("raw")), "raw", "uint16", sample_fact())


def _open(
    config: TokenShardsConfig, path: str | list[str], file_format: str, dtype: str | None, *notes: Fact
) -> TokenShards:
    return TokenShards.open(
        path,
        seq_len=config.seq_len,
        stride=config.stride,
        tail=config.tail,
        vocab_size=config.vocab_size,
        file_format=file_format,
        dtype=dtype,
        notes=notes,
    )
