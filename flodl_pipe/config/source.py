"""Section ``source``: which data, in which layout. One model per ``kind``, each in a file of its own."""

from typing import Annotated

from pydantic import Field

from flodl_pipe.config.source_custom import CustomConfig
from flodl_pipe.config.source_images import (
    Cifar10Config,
    Cifar10DiskConfig,
    Cifar100Config,
    FashionMnistConfig,
    MnistConfig,
)
from flodl_pipe.config.source_mixture import MixtureConfig
from flodl_pipe.config.source_records import RecordsConfig
from flodl_pipe.config.source_stream import StreamConfig
from flodl_pipe.config.source_text import TextConfig
from flodl_pipe.config.source_tokens import TokenShardsConfig

__all__ = ["SourceConfig"]

SourceConfig = Annotated[
    TokenShardsConfig
    | RecordsConfig
    | MnistConfig
    | FashionMnistConfig
    | Cifar10Config
    | Cifar10DiskConfig
    | Cifar100Config
    | TextConfig
    | StreamConfig
    | MixtureConfig
    | CustomConfig,
    Field(discriminator="kind"),
]
"""The section, told apart by ``kind``."""
