"""Section ``reports``: what a run shows of itself."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from flodl_pipe.config.base import StrictModel, fault, shown

__all__ = ["ReportsConfig"]


def _progress(value: Any) -> Any:
    if isinstance(value, bool) or value == "auto":
        return value
    raise fault(f"must be 'auto', true or false, got {shown(value)}")


class ReportsConfig(StrictModel):
    """Reports of a run."""

    progress: Annotated[
        Literal["auto"] | bool, BeforeValidator(_progress, json_schema_input_type=Literal["auto"] | bool)
    ] = "auto"
    """A progress bar: always, never, or when standard error is a terminal."""
