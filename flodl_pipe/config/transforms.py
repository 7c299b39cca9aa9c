"""Section ``transforms``: named steps, in the order in which they are written. Told apart by ``kind``."""

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from flodl_pipe.config.base import StrictModel, fault, shown
from flodl_pipe.config.callable_path import CallablePath
from flodl_pipe.config.keys import key_names
from flodl_pipe.config.transforms_base import StepConfig
from flodl_pipe.config.transforms_image import (
    ColorJitterConfig,
    CutmixConfig,
    HorizontalFlipConfig,
    MixupConfig,
    NormalizeConfig,
    RandomCropConfig,
    RandomErasingConfig,
    RandomResizedCropConfig,
    ToFloatConfig,
    VerticalFlipConfig,
)
from flodl_pipe.config.transforms_text import MaskTokensConfig, RandomSpanConfig, ShiftConfig

__all__ = ["FunctionConfig", "TransformConfig", "TransformsSection", "key_tables", "kinds"]


class FunctionConfig(StepConfig):
    """A function of your own."""

    kind: Literal["function"] = "function"
    """Your own."""

    path: CallablePath
    """`MODULE:CALLABLE`: a function (batch, keys, **args), or a class whose objects are called with (batch, keys). Its
    module must be allowed on the command line, `allow_import=[MODULE]`, or by `FLODL_PIPE_ALLOW_IMPORT`."""

    args: dict[str, Any] = Field(default={})
    """Keyword arguments of the function, or of the class."""

    scope: Literal["row", "pair", "batch"] | None = None
    """How far rows look at each other: each by itself, in pairs, or at the whole batch. null: what the callable's own
    attribute `scope` says, else row."""


TransformConfig = Annotated[
    ToFloatConfig
    | NormalizeConfig
    | RandomCropConfig
    | RandomResizedCropConfig
    | HorizontalFlipConfig
    | VerticalFlipConfig
    | ColorJitterConfig
    | RandomErasingConfig
    | MixupConfig
    | CutmixConfig
    | MaskTokensConfig
    | RandomSpanConfig
    | ShiftConfig
    | FunctionConfig,
    Field(discriminator="kind"),
]
"""One step."""

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"


def _name(value: Any) -> Any:
    if not isinstance(value, str) or not re.fullmatch(_NAME, value):
        raise fault(f"{shown(value)} is not a name of a step: use letters, digits and _")
    return value


def _without_null(value: Any) -> Any:
    """Leave out what is null: how a file takes back a step of a file before it."""
    return {name: step for name, step in value.items() if step is not None} if isinstance(value, dict) else value


StepName = Annotated[str, BeforeValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"})]
"""A name that a command line can say."""

TransformsSection = Annotated[
    dict[StepName, TransformConfig],
    BeforeValidator(_without_null, json_schema_input_type=dict[StepName, TransformConfig | None]),
    Field(json_schema_extra={"additionalProperties": False}),  # else editors let other names pass
]
"""Name -> step."""


def kinds() -> dict[str, type[StrictModel]]:
    """Return the model of each kind of step, in the order of the documentation."""
    return {str(model.model_fields["kind"].default): model for model in get_args(get_args(TransformConfig)[0])}


def key_tables() -> dict[str, list[tuple[str, Any, str]]]:
    """Return what documentation lists of each kind: its keys without ``kind``, their defaults (``???``: required) and
    their meaning.
    """
    tables = {}
    for kind, model in kinds().items():
        fields = [(name, model.model_fields[name]) for name in key_names(model) if name != "kind"]
        tables[kind] = [
            (name, "???" if field.is_required() else field.default, field.description or "") for name, field in fields
        ]
    return tables
