"""A callable by name, out of modules that the user has allowed; code of no other module is ever reached.

A module that is allowed allows its submodules. The callable must have been defined in an allowed module too: otherwise
a config could call whatever an allowed module happens to import, ``mypkg.data:run`` where it says ``from subprocess
import run``.
"""

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from flodl_pipe.errors import ConfigError, FlodlPipeError, SourceError

__all__ = ["import_callable", "raised_at", "require_arguments"]


def import_callable(path: str, allowed: Sequence[str], key: str) -> Callable[..., Any]:
    """Return the callable that a config names. Importing its module runs that module's code.

    The working directory is importable, as it is with ``python -m``.

    Args:
        path: ``MODULE:NAME`` or ``MODULE:CLASS.NAME``.
        allowed: Modules that may be imported.
        key: Key of the config that holds the path, for messages.

    Raises:
        ConfigError: if the module is not allowed or does not exist, or the name is no callable of an allowed module.
        SourceError: if the module raises while it is imported; its exception is the cause.
    """
    name, _, attributes = path.partition(":")
    _require_allowed(path, name, allowed, key)
    module = _import(name, path, key)
    found: Any = module
    for attribute in attributes.split("."):
        if found is not module and not isinstance(found, type):
            raise ConfigError.at(key, f"{path}: only a class may stand before the last dot; name a function or class")
        found = _attribute(found, attribute, path, key)
    if not callable(found):
        raise ConfigError.at(key, f"{path} is {type(found).__qualname__}, not callable; name a function or class")
    # An object that is called has its class's: functools.partial around a function of elsewhere belongs to functools.
    home = getattr(found, "__module__", None)
    if not isinstance(home, str):
        raise ConfigError.at(key, f"{path} does not say where it is defined; name a function or class of {name}")
    if not _covers(allowed, home):
        raise ConfigError.at(
            key,
            f"{path} is defined in {home}, which is not allowed: {_remedy(allowed, home)}, or write a function around "
            f"it in {name}",
        )
    checked: Callable[..., Any] = found
    return checked


def require_arguments(
    factory: Callable[..., Any], path: str, key: str, keywords: Mapping[str, Any], *positional: object
) -> None:
    """Refuse keywords that a callable does not take, before it is called.

    Args:
        factory: The callable.
        path: How the config names it.
        key: Key of the config that holds the keywords, for messages.
        keywords: The keywords.
        positional: What else it is called with.

    Raises:
        ConfigError: with the signature.
    """
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some callables of C code have none; calling them says what is wrong
        return
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        raise ConfigError.at(key, f"do not fit {path}{signature}: {error}; correct them or the factory") from None


def raised_at(error: BaseException) -> str:
    """Return an exception in a line: type, text, and the innermost line of code that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__qualname__}: {error}{at}; HYDRA_FULL_ERROR=1 shows the traceback"


def _covers(allowed: Sequence[str], module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def _remedy(allowed: Sequence[str], module: str) -> str:
    names = ",".join([*allowed, module.partition(".")[0]])
    return (
        f"if you trust it, say so on the command line, allow_import=[{names}], or with FLODL_PIPE_ALLOW_IMPORT={names}"
    )


def _require_allowed(path: str, module: str, allowed: Sequence[str], key: str) -> None:
    if not _covers(allowed, module):
        known = f"allowed are {', '.join(allowed)}" if allowed else "none are allowed"
        raise ConfigError.at(
            key,
            f"{path} would import code of the module {module}, and only modules that you allow are imported "
            f"({known}): {_remedy(allowed, module)}",
        )


def _import(name: str, path: str, key: str) -> ModuleType:
    here = str(Path.cwd())
    # The console script, unlike ``python -m``, does not see it; -P and PYTHONSAFEPATH say that it should not be seen.
    if not sys.flags.safe_path and not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except FlodlPipeError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            places = f"in the working directory {here} and " if {"", here} & set(sys.path) else ""
            raise ConfigError.at(
                key,
                f"{path}: there is no module {error.name!r}; it is looked for {places}among the installed packages",
            ) from None
        raise SourceError(f"importing {name} for {key}={path} failed: {raised_at(error)}") from error
    except (Exception, SystemExit) as error:
        raise SourceError(f"importing {name} for {key}={path} failed: {raised_at(error)}") from error


def _attribute(found: Any, attribute: str, path: str, key: str) -> Any:
    try:
        return getattr(found, attribute)
    except AttributeError:
        close = difflib.get_close_matches(attribute, dir(found), n=1)
        near = f". Did you mean {close[0]!r}?" if close else ""
        what = f"module {found.__name__}" if isinstance(found, ModuleType) else f"class {found.__qualname__}"
        raise ConfigError.at(key, f"{path}: the {what} has no {attribute!r}{near}") from None
