"""Section ``job``: what to do with the pipeline. One model per ``kind``, chosen by ``job=KIND``."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flodl_pipe.config.base import Count, LocalPath, StrictModel, fault

__all__ = ["JobConfig", "PlanJob", "RunJob", "SchemaJob"]


class RunJob(StrictModel):
    """Iterate the loader, as a training loop would."""

    kind: Literal["run"] = "run"
    """Run."""

    epochs: Count = 1
    """Passes over the data."""

    max_steps: Count | None = None
    """Stop after this many steps, counted from the start of the first run; null: no limit."""

    save: LocalPath | None = None
    """File to write the cursor to, at the end and every `save_every_steps`."""

    save_every_steps: Count | None = None
    """Steps between two writes of the cursor; null: only at the end. Needs `save`."""

    resume: LocalPath | None = None
    """Save file to continue from; it must exist, unless it is also `save`: then the run starts anew."""

    step_time_s: Annotated[float, Field(ge=0.0)] = 0.0
    """Seconds each step pretends to compute."""

    @model_validator(mode="after")
    def _every_needs_save(self) -> "RunJob":
        if self.save_every_steps is not None and self.save is None:
            raise fault(
                f"save_every_steps={self.save_every_steps} needs save: set save to the file to write, "
                "or leave save_every_steps at null",
                at=["save_every_steps"],
            )
        return self


class PlanJob(StrictModel):
    """Say what a run would do, and with how much memory, without doing it."""

    kind: Literal["plan"] = "plan"
    """Plan."""


class SchemaJob(StrictModel):
    """Print the JSON schema of a recipe. Needs no recipe."""

    kind: Literal["schema"] = "schema"
    """Schema."""


JobConfig = Annotated[RunJob | PlanJob | SchemaJob, Field(discriminator="kind")]
"""The section, told apart by ``kind``."""
