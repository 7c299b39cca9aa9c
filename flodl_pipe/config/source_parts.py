"""What may be part of a mixture: every kind of source that is read by index, and is no mixture itself."""

from typing import Annotated

from pydantic import Field

from flodl_pipe.config.source_records import RecordsConfig
from flodl_pipe.config.source_tokens import TokenShardsConfig

__all__ = ["PartSource"]

PartSource = Annotated[TokenShardsConfig | RecordsConfig, Field(discriminator="kind")]
"""The section of a part, told apart by ``kind``."""
