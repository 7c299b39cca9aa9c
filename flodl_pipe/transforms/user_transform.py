"""A callable of the user's own as a transform: ``function(batch, keys, **args)``, with a scope and a tag.

The tag names the callable (``MODULE:NAME``) and its arguments, not its code: a run may be resumed after its code was
edited, and two functions of one name, such as two lambdas of a module, are not told apart.
"""

import enum
import hashlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import PurePath
from typing import Any, final, get_args

import numpy as np
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.errors import LoaderError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.protocol import Scope

__all__ = ["CALLED", "UserTransform", "name_of", "require_signature"]

CALLED = "a transform is called with (batch, keys) and returns the batch"
"""How every transform is called; the end of several messages."""

_PER_SAMPLE = ("torchvision", "albumentations")
_MAX_TEXT = 60


@final
class UserTransform:
    """Calls a function of the user's own.

    Attributes:
        scope: How far its rows look at each other.
        tag: What is called, and with which arguments.

    Raises:
        LoaderError: if it cannot be called with ``(batch, keys, **args)``, or the scope is none.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        scope: Scope | None = None,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        made_with: Mapping[str, Any] | None = None,
    ) -> None:
        """Take a function.

        Args:
            function: Called as ``function(batch, keys, **args)``.
            scope: How far rows look at each other; None: what its own attribute ``scope`` says, else ``row``.
            name: Name in the tag, for example its import path; None: its module and name.
            args: Keyword arguments.
            made_with: Arguments that the object was made with, where it is one of a class; only for the tag.
        """
        self._function = function
        self._args = dict(args or {})
        shown = name or name_of(function)
        require_signature(function, shown, self._args)
        self.scope: Scope = _scope(function, scope, shown)
        constants = {**(made_with or {}), **_partial_args(function), **self._args}
        self.tag = f"{shown}({', '.join(f'{key}={_text(value)}' for key, value in constants.items())})"

    def __call__(self, batch: Batch, keys: PickKeys) -> Any:
        """Return whatever the function returns; the chain judges it."""
        return self._function(batch, keys, **self._args)

    def __repr__(self) -> str:
        return f"UserTransform({self.tag})"


def name_of(thing: object) -> str:
    """Return ``MODULE:NAME`` of a function, or of an object's class.

    >>> name_of(name_of)
    'flodl_pipe.transforms.user_transform:name_of'
    """
    if isinstance(thing, partial):
        return name_of(thing.func)
    named = thing if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def require_signature(function: Callable[..., Any], name: str, args: Mapping[str, Any]) -> None:
    """Refuse a callable that cannot take a batch, keys and these arguments.

    Raises:
        LoaderError: naming its signature and the remedy.
    """
    remedy = f"{CALLED}; write a function (batch, keys) around it"
    if type(function).__module__.partition(".")[0] in _PER_SAMPLE:
        raise LoaderError(f"{name} is a transform of single samples, and {remedy} that changes batch[FIELD] as a whole")
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # some callables of C code have none; calling them says what is wrong
        return
    try:
        signature.bind(None, None, **args)
    except TypeError as error:
        if args:
            remedy = f"{CALLED}, here also with {', '.join(args)}; correct the arguments or the function"
        raise LoaderError(f"{name} takes {signature}, and {remedy} ({error})") from None


def _scope(function: object, scope: Scope | None, name: str) -> Scope:
    own: Any = getattr(function, "scope", None)  # a function of the user's has it or not
    if own is not None and scope is not None and own != scope:
        raise LoaderError(f"{name} says scope={own!r} itself, and scope={scope!r} was given; keep one")
    asked: Any = scope or own or "row"
    if asked not in get_args(Scope):
        raise LoaderError(f"the scope of {name} must be 'row', 'pair' or 'batch', got {asked!r}")
    checked: Scope = asked
    return checked


def _partial_args(function: object) -> dict[str, Any]:
    """Return what a partial function was given beforehand."""
    if not isinstance(function, partial):
        return {}
    positional = {f"arg{place}": value for place, value in enumerate(function.args)}
    return {**_partial_args(function.func), **positional, **function.keywords}


def _text(value: object) -> str:
    """Return a value as the tag shows it: the same in every process, and another for another value where that shows."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        content = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=4).hexdigest()
        return f"{value.dtype}{list(value.shape)}#{content}"
    text = _plain(value)
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[: _MAX_TEXT - 12]}...#{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def _plain(value: object) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, enum.Enum):
        return f"{name_of(type(value))}.{value.name}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, PurePath):
        return repr(str(value))
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}: {_text(item)}' for key, item in value.items())}}}"
    return name_of(value)  # its repr may hold an address, which is another one in each process
