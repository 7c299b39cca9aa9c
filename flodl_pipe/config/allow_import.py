"""Who may allow a config to import code of the user's own: the person who starts the program, and nobody else.

A recipe is data that people pass around, so the key ``allow_import`` counts only where it was typed: as an override on
the command line or in a call of :func:`flodl_pipe.load`, or in the variable ``FLODL_PIPE_ALLOW_IMPORT`` as it was when
the program started. What files, interpolations, sweepers and Hydra's own settings make of the key is compared with what
was typed, and any difference is an error. So a way to set it that nobody thought of is refused as well.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser

from flodl_pipe.config.base import shown
from flodl_pipe.config.keys import parse_key
from flodl_pipe.errors import ConfigError

__all__ = ["KEY", "NOT_IN_A_FILE", "VARIABLE", "Permission"]

KEY = "allow_import"
VARIABLE = "FLODL_PIPE_ALLOW_IMPORT"
NOT_IN_A_FILE = (
    "a config file cannot allow code to be imported, only the person who starts the program can: take it out, and if "
    f"you trust the code give {KEY}=[MODULE] on the command line, or {VARIABLE}=MODULE"
)


@final
@dataclass(frozen=True)
class Permission:
    """What was typed. Pickles, so that jobs of a sweep that run elsewhere know it.

    Attributes:
        words: Overrides of the command line, or of a call in Python.
        environment: The variable's value when the program started.
    """

    words: tuple[str, ...]
    environment: str

    @classmethod
    def typed(cls, words: Sequence[str]) -> "Permission":
        """Return what these overrides and the environment of this moment allow."""
        return cls(tuple(words), os.environ.get(VARIABLE, ""))

    def modules(
        self, composed: Any, loader: ConfigLoaderImpl, file_line: Callable[[], str | None], *, may_be_in_files: bool
    ) -> Any:
        """Return the modules that may be imported.

        Args:
            composed: What the composed config has under the key; None when it is not there.
            loader: Hydra's loader, to read overrides with.
            file_line: Says which line of a config file sets the key, if any does. Takes some 30 ms.
            may_be_in_files: Whether to ask it even where the key came out empty: files of the user's may have set it,
                and others after them have hidden that.

        Returns:
            A list of module names; a value of another type is returned as it is, to be refused like any wrong type.

        Raises:
            ConfigError: if something else than what was typed decides, or a name is no module's.
        """
        typed, place = self._typed(loader)
        line = file_line() if composed or place or may_be_in_files else None
        if line is not None:
            raise ConfigError.at(KEY, NOT_IN_A_FILE, line)
        if (composed or []) != (typed or []):
            raise ConfigError.at(
                KEY,
                f"is {shown(composed)}, and {shown(typed or [])} was typed: only what is typed counts, written out and "
                f"without ${{...}}; give {KEY}=[MODULE] on the command line, or {VARIABLE}=MODULE",
                place,
            )
        names = composed or []
        if not isinstance(names, list):
            return names
        _require_modules(names, place)
        granted = [name for part in self.environment.split(",") if (name := part.strip())]
        _require_modules(granted, f"environment: {VARIABLE}={self.environment}")
        return list(dict.fromkeys([*names, *granted]))

    def _typed(self, loader: ConfigLoaderImpl) -> tuple[Any, str | None]:
        """Return the value that was typed and where; (None, None) when none was."""
        typed, place = None, None
        for word in self.words:
            if KEY not in word:
                continue
            override = OverridesParser.create(config_loader=loader).parse_override(word)
            key = parse_key(override.key_or_group)
            if not key or key[0] != KEY:
                continue
            place = f"command line: {word}"
            if len(key) > 1:
                raise ConfigError.at(KEY, f"must be given whole, {KEY}=[MODULE,...]", place)
            if override.is_sweep_override():
                raise ConfigError.at(KEY, f"cannot be swept; give one list, {KEY}=[MODULE,...]", place)
            typed = None if override.is_delete() else override.value()
        return typed, place


def _require_modules(names: Sequence[object], place: str | None) -> None:
    for name in names:
        if isinstance(name, str) and not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError.at(KEY, f"must name modules such as mypkg or mypkg.data, got {shown(name)}", place)
