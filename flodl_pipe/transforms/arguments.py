"""Arguments of transforms that are made in Python: the type and the range of each, as a recipe's keys are checked.

A wrong one is a :class:`ConfigError` at ``kind.argument`` with the value that was given, when the transform is made.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from flodl_pipe.errors import ConfigError

__all__ = [
    "require_count",
    "require_integer",
    "require_integer_list",
    "require_name",
    "require_names",
    "require_number",
    "require_numbers",
    "require_range",
    "require_size",
    "require_within",
    "whole_number",
]

_PLAIN = "; write it without quotes"


def require_name(value: object, key: str) -> str:
    """Return the name of a field.

    Raises:
        ConfigError: if it is none.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigError.at(key, f"must be the name of a field, a text, got {value!r}")
    return value


def require_names(value: object, key: str) -> tuple[str, ...]:
    """Return names of fields, at least one, all different.

    Raises:
        ConfigError: if they are none.
    """
    names = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise ConfigError.at(key, f"must be a list of different names of fields, got {value!r}")
    return names


def require_number(value: object, key: str, rule: str = "a finite number") -> float:
    """Return a finite number as a float: Python's, NumPy's, or a tensor or array of one.

    Args:
        value: What was given.
        key: Where, for example ``mixup.alpha``.
        rule: What must be given, for the message.

    Raises:
        ConfigError: if it is none; truth values and texts are none.
    """
    if isinstance(value, np.ndarray | torch.Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ConfigError.at(key, f"must be {rule}, got {value!r}{_PLAIN * isinstance(value, str)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError.at(key, f"must be {rule}, got {value!r}")
    return number


def require_within(value: object, least: float, most: float, key: str, remedy: str = "") -> float:
    """Return a number of ``least .. most`` as a float.

    Args:
        value: What was given.
        least: Smallest number.
        most: Largest number.
        key: Where.
        remedy: Ends the message, after a semicolon.

    Raises:
        ConfigError: if it is none.
    """
    rule = f"in {least:g} .. {most:g}"
    try:
        number = require_number(value, key, rule)
    except ConfigError:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise
        number = math.nan  # no finite one, which is out of range like others
    if not least <= number <= most:
        raise ConfigError.at(key, f"must be {rule}, got {value!r}{remedy and f'; {remedy}'}")
    return number


def require_numbers(value: object, key: str, rule: str) -> tuple[float, ...]:
    """Return one number, or each of a list, tuple, array or tensor of one dimension.

    Raises:
        ConfigError: if there is none, or one is not finite.
    """
    if isinstance(value, np.ndarray | torch.Tensor) and value.ndim:
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return (require_number(value, key, rule),)
    if not value:
        raise ConfigError.at(key, f"must be {rule}, got {value!r}")
    try:
        return tuple(require_number(number, key, rule) for number in value)
    except ConfigError:
        raise ConfigError.at(key, f"must be {rule}, got {value!r}") from None


def require_integer(value: Any, key: str, rule: str) -> int:
    """Return an integer, Python's or NumPy's.

    Raises:
        ConfigError: if it is none; truth values, floats and texts are none.
    """
    if not whole_number(value):
        raise ConfigError.at(key, f"must be {rule}, got {value!r}{_PLAIN * isinstance(value, str)}")
    return int(value)


def require_integer_list(value: object, key: str) -> tuple[int, ...]:
    """Return integers, none or several.

    Raises:
        ConfigError: if they are none.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError.at(key, f"must be a list of integers, got {value!r}")
    return tuple(require_integer(number, key, "a list of integers") for number in value)


def require_count(value: object, key: str, least: int = 1) -> int:
    """Return an integer of at least ``least``.

    Raises:
        ConfigError: if it is none.
    """
    rule = f"an integer of at least {least}"
    count = require_integer(value, key, rule)
    if count < least:
        raise ConfigError.at(key, f"must be {rule}, got {value!r}")
    return count


def require_size(value: Any, key: str, most: int) -> tuple[int, int]:
    """Return height and width, of both or of one integer for both.

    Raises:
        ConfigError: if they are not 1 to ``most`` pixels.
    """
    sizes = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value, value]
    if len(sizes) != 2 or not all(whole_number(length) and 1 <= length <= most for length in sizes):
        raise ConfigError.at(key, f"must be a number of pixels, 1 to {most}, or (height, width), got {value!r}")
    return int(sizes[0]), int(sizes[1])


def require_range(value: object, least: float, most: float, key: str) -> tuple[float, float]:
    """Return two numbers of ``least .. most`` as floats, the first not above the second, the second above 0.

    Raises:
        ConfigError: if they are not.
    """
    rule = f"two numbers in {least:g} .. {most:g}, the smaller one first and not both 0"
    numbers = require_numbers(value, key, rule)
    if len(numbers) != 2 or not least <= numbers[0] <= numbers[1] <= most or numbers[1] == 0.0:
        raise ConfigError.at(key, f"must be {rule}, got {value!r}")
    return numbers[0], numbers[1]


def whole_number(value: object) -> bool:
    """Return whether a value is an integer, Python's or NumPy's, and no truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
