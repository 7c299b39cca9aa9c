"""Section ``job``: what to do with the pipeline. One model per ``kind``, chosen by ``job=KIND``."""

from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from flodl_pipe.config.base import Count, LocalPath, StrictModel, fault, shown

__all__ = ["FetchJob", "JobConfig", "KnownSetName", "PlanJob", "RunJob", "SchemaJob"]

KnownSetName = Literal["mnist", "fashion_mnist", "cifar10", "cifar100", "shakespeare"]
"""A data set that can be downloaded."""


class _Steps(StrictModel):
    """How far a run goes, and where it keeps its place."""

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
    def _every_needs_save(self) -> "_Steps":
        if self.save_every_steps is not None and self.save is None:
            raise fault(
                f"save_every_steps={self.save_every_steps} needs save: set save to the file to write, "
                "or leave save_every_steps at null",
                at=["save_every_steps"],
            )
        return self


class RunJob(_Steps):
    """Iterate the loader, as a training loop would."""

    kind: Literal["run"] = "run"
    """Run."""


class PlanJob(_Steps):
    """Say what a run would do, and with how much memory, without doing it. Takes the keys of a run."""

    kind: Literal["plan"] = "plan"
    """Plan."""


def _set_names(value: Any) -> Any:
    names = value if isinstance(value, list) else [value]
    known = get_args(KnownSetName)
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        got = ", ".join(map(shown, wrong)) or "an empty list"
        raise fault(f"must name data sets that can be downloaded ({', '.join(known)}), got {got}")
    return list(dict.fromkeys(names)) if isinstance(value, list) else value


def _mirror(value: Any) -> str:
    rule = "must be the http or https address of a folder, as in https://host/folder"
    if not isinstance(value, str):
        raise fault(f"{rule}, got {shown(value)}")
    try:
        parts = urlsplit(value)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        raise fault(f"{rule}, got {shown(value)}") from None
    if parts.username is not None or parts.password is not None:
        raise fault(f"{rule}; leave out the name and password before '@', which would be printed")
    if not fits or not value.isascii() or not value.isprintable() or " " in value:
        raise fault(f"{rule}, got {shown(value)}")
    return value


class FetchJob(StrictModel):
    """Download known data sets into `data_dir`. Needs no recipe when `datasets` is given."""

    kind: Literal["fetch"] = "fetch"
    """Fetch."""

    datasets: (
        Annotated[
            KnownSetName | list[KnownSetName],
            BeforeValidator(_set_names, json_schema_input_type=KnownSetName | list[KnownSetName]),
        ]
        | None
    ) = None
    """A name or a list: mnist, fashion_mnist, cifar10, cifar100, shakespeare; null: the set of the source's kind."""

    mirror: Annotated[str, BeforeValidator(_mirror, json_schema_input_type=str)] | None = None
    """Address to download from instead of the published ones; files lie at `<mirror>/<data set>/<file>`."""


class SchemaJob(StrictModel):
    """Print the JSON schema of a recipe. Needs no recipe."""

    kind: Literal["schema"] = "schema"
    """Schema."""


JobConfig = Annotated[RunJob | PlanJob | FetchJob | SchemaJob, Field(discriminator="kind")]
"""The section, told apart by ``kind``."""
