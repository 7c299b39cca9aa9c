"""A validated config -> the source it describes."""

from flodl_pipe.config.source import SourceConfig
from flodl_pipe.config.source_records import RecordsConfig
from flodl_pipe.sources.build_tokens import build_tokens
from flodl_pipe.sources.protocol import Source
from flodl_pipe.sources.records import RecordPart, Records

__all__ = ["build_source"]


def build_source(config: SourceConfig, data_dir: str) -> Source:
    """Open the source that the section ``source`` describes.

    With no path, ``<data_dir>/<kind>`` is read if it exists; otherwise ``if_missing`` decides between an error and
    sample data. A path that was given is never replaced by a sample.

    Args:
        config: The section.
        data_dir: Folder of the user's data sets.

    Raises:
        ConfigError: if the layout is impossible.
        SourceError: if data is missing, unreadable or damaged.
    """
    if isinstance(config, RecordsConfig):
        return _records(config)
    return build_tokens(config, data_dir)


def _records(config: RecordsConfig) -> Records:
    parts = {name: RecordPart(field.offset, field.dtype, tuple(field.shape)) for name, field in config.fields.items()}
    return Records.open(config.path, record_bytes=config.record_bytes, header_bytes=config.header_bytes, parts=parts)
