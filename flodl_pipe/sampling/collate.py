"""Collation: the rows of a batch become tensors.

::

    stack        rows of one shape            -> (B, *shape)
    pad          rows of different lengths    -> (B, T, *shape) filled up at the right, and a mask
    ragged       rows of different lengths    -> nested tensors of the jagged layout, nothing filled up
    a function   the list of samples          -> whatever tensors of B rows it returns

A collate object is made and checked when the loader is built; what it makes of ``B`` rows depends on those rows alone.
Its tensors are new: they share memory with nothing. It keeps no state that changes, so readers call it at once.

Shape letters: ``B`` rows, ``T`` the padded length.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch

from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ConfigError
from flodl_pipe.sampling.collate_pad import PadCollate
from flodl_pipe.sampling.collate_ragged import RaggedCollate
from flodl_pipe.sampling.collate_stack import StackCollate, fresh
from flodl_pipe.sampling.collate_user import UserCollate

__all__ = ["Collate", "make_collate", "pass_through"]


@runtime_checkable
class Collate(Protocol):
    """Makes tensors of the rows of a batch."""

    tag: str
    """What it does, with every constant that changes its results, for example ``pad(pad_id=0, multiple=8)``."""

    def check(self, spec: SampleSpec) -> None:
        """Say at build whether it can work on these fields.

        Args:
            spec: The delivered fields, under the names that they have in a batch.

        Raises:
            ConfigError: if it cannot; the message names field, rule and remedy.
        """
        ...

    def output(self, spec: SampleSpec) -> SampleSpec | None:
        """Return the fields that it makes of these, which it was checked for; None where only calling it tells.

        A field that :attr:`~flodl_pipe.batch.spec.Field.is_ragged` has, after the rows, an axis whose length is
        another from batch to batch.
        """
        ...

    def __call__(self, rows: Columns) -> tuple[tuple[str, ...], tuple[torch.Tensor, ...]]:
        """Return names and tensors of ``B`` rows.

        Args:
            rows: The delivered rows: an array of shape ``(B, *shape)`` per field, a :class:`Ragged` per ragged one.

        Raises:
            TransformError: if these rows cannot be collated; the message names field, rule and remedy.
        """
        ...


def make_collate(
    how: str | Callable[..., Any],
    *,
    pad_id: int = 0,
    pad_multiple: int = 8,
    pad_length: int | None = None,
    labels_from: str | None = None,
) -> Collate:
    """Return the collation that a loader was asked for.

    Args:
        how: ``stack``, ``pad`` or ``ragged``; or a function that is called with the list of samples, like a
            ``collate_fn`` of torch; or a :class:`Collate`, which is returned as it is.
        pad_id: See :class:`~.collate_pad.PadCollate`, like the others. They must keep their defaults unless ``how`` is
            ``pad``.
        pad_multiple: See there.
        pad_length: See there.
        labels_from: See there.

    Raises:
        ConfigError: if ``how`` is none of these, or a value is out of range or without effect.
    """
    if how == "pad":
        return PadCollate(pad_id=pad_id, multiple=pad_multiple, length=pad_length, labels_from=labels_from)
    given = {"pad_id": pad_id, "pad_multiple": pad_multiple, "pad_length": pad_length, "labels_from": labels_from}
    defaults = {"pad_id": 0, "pad_multiple": 8, "pad_length": None, "labels_from": None}
    idle = next((name for name, value in given.items() if value != defaults[name]), None)
    if idle is not None:
        shown = repr(how) if isinstance(how, str) else "a collate function or object"
        raise ConfigError.at(
            f"loader.{idle}", f"is {given[idle]!r}, which only collate: pad looks at, and collate is {shown}; leave it"
        )
    if how == "stack":
        return StackCollate()
    if how == "ragged":
        return RaggedCollate()
    if isinstance(how, str) or not callable(how):
        raise ConfigError.at(
            "loader.collate", f"must be 'stack', 'pad', 'ragged' or a function of the list of samples, got {how!r}"
        )
    if isinstance(how, type):
        raise ConfigError.at(
            "loader.collate", f"is the class {how.__qualname__}, not an object of it; give {how.__qualname__}(...)"
        )
    return how if isinstance(how, Collate) else UserCollate(how)


def pass_through(rows: Columns) -> tuple[tuple[str, ...], tuple[torch.Tensor, ...]]:
    """Return one sample as it is: no batch axis, a ragged row at its own length.

    Args:
        rows: The delivered rows of one sample, each of them with a first axis of 1.

    Raises:
        ValueError: if they are rows of another number of samples.
    """
    if any(len(values) != 1 for values in rows.values()):
        raise ValueError(f"one sample passes through, got rows of {[len(values) for values in rows.values()]}")
    tensors = tuple(fresh(values.row(0) if isinstance(values, Ragged) else values[0]) for values in rows.values())
    return tuple(rows), tensors
