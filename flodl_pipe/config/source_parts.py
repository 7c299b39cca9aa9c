"""What may be part of a mixture: every kind of source that is read by index, and is no mixture itself."""

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
from flodl_pipe.config.source_records import RecordsConfig
from flodl_pipe.config.source_text import TextConfig
from flodl_pipe.config.source_tokens import TokenShardsConfig

__all__ = ["PartSource"]

PartSource = Annotated[
    TokenShardsConfig
    | RecordsConfig
    | MnistConfig
    | FashionMnistConfig
    | Cifar10Config
    | Cifar10DiskConfig
    | Cifar100Config
    | TextConfig
    | CustomConfig,
    Field(discriminator="kind"),
]
"""The section of a part, told apart by ``kind``."""
