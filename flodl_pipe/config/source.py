"""Section ``source``: which data, in which layout. One model per ``kind``, each in a file of its own."""

from typing import Annotated

from pydantic import Field

from flodl_pipe.config.source_records import RecordsConfig
from flodl_pipe.config.source_tokens import TokenShardsConfig

__all__ = ["SourceConfig"]

SourceConfig = Annotated[TokenShardsConfig | RecordsConfig, Field(discriminator="kind")]
"""The section, told apart by ``kind``."""
