"""Checking one section on its own, for callers that have keywords and no YAML."""

import numbers
from typing import TypeGuard, TypeVar

from pydantic import ValidationError

from flodl_pipe.config.base import StrictModel
from flodl_pipe.config.validate import problem_from
from flodl_pipe.errors import ConfigError

__all__ = ["check_section"]

Section = TypeVar("Section", bound=StrictModel)


def check_section(model: type[Section], name: str, **values: object) -> Section:
    """Return a section made of keywords.

    Args:
        model: Model of the section.
        name: Name of the section in the root config, for messages.
        values: The keys.

    Raises:
        ConfigError: naming every key that is wrong.
    """
    # NumPy's integers are integers too.
    values = {key: int(value) if _is_integer(value) else value for key, value in values.items()}
    try:
        return model.model_validate(values, strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise ConfigError(
            [problem_from({**fault, "loc": (name, *fault["loc"])}, lambda _: None) for fault in faults]
        ) from None


def _is_integer(value: object) -> TypeGuard[numbers.Integral]:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
