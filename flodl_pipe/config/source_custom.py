"""Section ``source``, kind ``custom``: a dataset made by a function of the user's own code."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from flodl_pipe.config.base import fault
from flodl_pipe.config.callable_path import CallablePath
from flodl_pipe.config.source_base import SourceSection

__all__ = ["CustomConfig"]


def _pure(value: Any) -> Any:
    if value is False:
        raise fault(
            "must be true, got false: datasets that are random on purpose are not served yet; move the randomness out "
            "of the dataset, to a transform of the batch keyed by batch.pick_keys"
        )
    return value


class CustomConfig(SourceSection):
    """A dataset of your own: whatever a function of your code returns."""

    kind: Literal["custom"] = "custom"
    """Your own."""

    factory: CallablePath
    """`MODULE:CALLABLE`, a function or class that returns a dataset or a source. Its module must be allowed on the
    command line, `allow_import=[MODULE]`, or by `FLODL_PIPE_ALLOW_IMPORT`."""

    args: dict[str, Any] = Field(default={})
    """Keyword arguments of the factory."""

    thread_safe: bool = False
    """Whether several threads may read the dataset at once."""

    ragged: bool | list[str] = False
    """Fields whose samples differ in length, for `loader.collate` pad, ragged or a function: a list of names; true:
    those that differ among the first few."""

    pure: Annotated[Literal[True], BeforeValidator(_pure)] = True
    """Whether a sample is the same every time it is read."""
