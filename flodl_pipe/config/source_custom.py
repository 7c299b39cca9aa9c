"""Section ``source``, kind ``custom``: a dataset made by a function of the user's own code."""

from typing import Any, Literal

from pydantic import Field, model_validator

from flodl_pipe.config.base import fault
from flodl_pipe.config.callable_path import CallablePath
from flodl_pipe.config.source_base import SourceSection

__all__ = ["CustomConfig"]


class CustomConfig(SourceSection):
    """A dataset of your own: whatever a function of your code returns."""

    kind: Literal["custom"] = "custom"
    """Your own."""

    factory: CallablePath
    """`MODULE:CALLABLE`, a function or class that returns a dataset or a source. Its module must be allowed on the
    command line, `allow_import=[MODULE]`, or by `FLODL_PIPE_ALLOW_IMPORT`."""

    args: dict[str, Any] = Field(default={})
    """Keyword arguments of the factory."""

    thread_safe: bool | None = None
    """Whether several threads may read the dataset at once; null: what its attribute of this name says, and that
    arrays, tensors, lists and Hugging Face datasets are."""

    ragged: bool | list[str] = False
    """Fields whose samples differ in length, for `loader.collate` pad, ragged or a function: a list of names; true:
    those that differ among the first few."""

    pure: bool = True
    """Whether a sample is the same every time it is read. If false, its randomness (by the global generators of torch,
    NumPy and Python) is seeded per sample and epoch, it is kept in no memory tier, and processes read it."""

    @model_validator(mode="after")
    def _one_at_a_time(self) -> "CustomConfig":
        if not self.pure and self.thread_safe:
            raise fault(
                "must be false with pure=false, got true: threads would draw from each other's generators; processes "
                "read such a dataset at once (loader.reader_kind=process)",
                at=["thread_safe"],
            )
        return self
