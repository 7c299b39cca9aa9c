"""A validated config -> the source it describes."""

from collections.abc import Sequence

from flodl_pipe.config.source import SourceConfig
from flodl_pipe.config.source_custom import CustomConfig
from flodl_pipe.config.source_images import CifarConfig, IdxConfig
from flodl_pipe.config.source_mixture import MixtureConfig
from flodl_pipe.config.source_parts import PartSource
from flodl_pipe.config.source_records import RecordsConfig
from flodl_pipe.config.source_stream import StreamConfig
from flodl_pipe.config.source_text import TextConfig
from flodl_pipe.errors import ConfigError, SourceError
from flodl_pipe.sources.build_images import build_cifar, build_idx
from flodl_pipe.sources.build_mixture import build_mixture
from flodl_pipe.sources.build_stream import build_stream
from flodl_pipe.sources.build_text import build_text
from flodl_pipe.sources.build_tokens import build_tokens
from flodl_pipe.sources.custom import build_custom
from flodl_pipe.sources.impure import ImpureDataset, as_impure
from flodl_pipe.sources.protocol import Source
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.stream_protocol import Stream
from flodl_pipe.sources.subset import apply_subset

__all__ = ["build_source"]


def build_source(config: SourceConfig, data_dir: str, allowed: Sequence[str] = ()) -> Source | Stream:
    """Open the source that the section ``source`` describes.

    With no path, ``<data_dir>/<kind>`` is read if it exists; otherwise ``if_missing`` decides between an error and
    sample data. A path that was given is never replaced by a sample.

    Args:
        config: The section.
        data_dir: Folder of the user's data sets.
        allowed: Modules of the user's that may be imported.

    Raises:
        ConfigError: if the layout is impossible, or code is named that may not be imported.
        SourceError: if data is missing, unreadable or damaged.
    """
    found = _open(config, data_dir, allowed)
    if config.subset is None:
        return found
    whole = _indexed(found, "source.subset chooses samples by number")
    if isinstance(whole, ImpureDataset):  # keys are those of picks, which count the subset's samples
        return as_impure(apply_subset(whole.source, config.subset))
    return apply_subset(whole, config.subset)


def _open(config: SourceConfig, data_dir: str, allowed: Sequence[str]) -> Source | Stream:
    if isinstance(config, RecordsConfig):
        return _records(config)
    if isinstance(config, IdxConfig):
        return build_idx(config, data_dir)
    if isinstance(config, CifarConfig):
        return build_cifar(config, data_dir)
    if isinstance(config, TextConfig):
        return build_text(config, data_dir)
    if isinstance(config, StreamConfig):
        return build_stream(config, data_dir, allowed)
    if isinstance(config, CustomConfig):
        return build_custom(config, allowed)
    if isinstance(config, MixtureConfig):

        def build_part(part: PartSource) -> Source:
            made = _indexed(build_source(part, data_dir, allowed), "a mixture reads its parts by number")
            if isinstance(made, ImpureDataset):
                raise ConfigError.at(
                    "pure",
                    "must be true in a part of a mixture, got false: a mixture does not tell its parts which pick a "
                    "sample is read for; move the randomness to a transform of the batch keyed by batch.pick_keys",
                )
            return made

        return build_mixture(config, build_part)
    return build_tokens(config, data_dir)


def _indexed(found: Source | Stream, why: str) -> Source:
    if isinstance(found, Source):
        return found
    raise SourceError(f"{type(found).__name__} is a stream, which has no index, and {why}; give a data set with len()")


def _records(config: RecordsConfig) -> Records:
    parts = {name: RecordPart(field.offset, field.dtype, tuple(field.shape)) for name, field in config.fields.items()}
    return Records.open(config.path, record_bytes=config.record_bytes, header_bytes=config.header_bytes, parts=parts)
