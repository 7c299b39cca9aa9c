"""One composition: Hydra merges files and overrides, OmegaConf resolves, and validation takes over.

Composes with Hydra's loader alone, so nothing of Hydra's global state is set and other Hydra programs in the process
go on undisturbed. When Hydra refuses an override (an unknown key), it stops at the first. So the composition is then
repeated with every override forced, and validation finds that fault together with all others.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from flodl_pipe.config.allow_import import KEY as ALLOW_IMPORT
from flodl_pipe.config.allow_import import Permission
from flodl_pipe.config.explain import COMPOSITION_ERRORS, explain
from flodl_pipe.config.keys import Key, children, dotted, key_names, parse_key
from flodl_pipe.config.places import conf_dir, recipe_names, user_dirs
from flodl_pipe.config.provenance import setter, trace
from flodl_pipe.config.recipes import GROUP, register, with_config_dir
from flodl_pipe.config.root import Config
from flodl_pipe.config.validate import validate
from flodl_pipe.errors import ConfigError, Problem

__all__ = ["Composition"]

log = logging.getLogger("flodl_pipe")

_WITH_KINDS = ("source", "job")


@final
@dataclass(frozen=True)
class Composition:
    """One primary config with one list of overrides.

    Attributes:
        words: Overrides, with ``+recipe=NAME`` spelled out.
        config_dir: The user's config folder, absolute; searched after the built-in one.
        config_name: Primary config.
        permission: Which modules the user has allowed; None: what ``words`` and the environment say.
        loader: Hydra's loader for this search path.
    """

    words: tuple[str, ...]
    config_dir: Path | None = None
    config_name: str = "config"
    permission: Permission | None = None
    loader: ConfigLoaderImpl = field(init=False, compare=False)
    _places: dict[Key, str] = field(init=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        register()
        setup_globals()  # the ${now:} and ${hydra:} resolvers, which hydra.main would add
        with with_config_dir(self.config_dir):
            path = create_config_search_path(str(conf_dir()))
        if self.config_dir is not None:  # where hydra.main puts it too
            path.prepend("command-line", f"file://{self.config_dir}", anchor=SearchPathQuery(provider="schema"))
        object.__setattr__(self, "loader", ConfigLoaderImpl(path))

    def config(self) -> Config:
        """Compose and validate; a ConfigError holds every fault."""
        try:
            composed = self._compose(self.words)
        except COMPOSITION_ERRORS as error:
            reason = explain(error, self.loader, self.words, self.config_dir)
            if reason is None:
                raise
            self._validate_forced(reason)
            raise reason from None
        except OSError as error:
            text = f"{error.filename} cannot be read: {error.strerror}; config files must be readable"
            raise ConfigError.at("", text) from None
        except ValueError as error:  # Hydra's for an option that is no text, as in source=null
            if isinstance(error, ConfigError):
                raise
            raise ConfigError.at("", str(error)) from None
        return self.validate(composed)

    def _compose(self, words: Sequence[str]) -> DictConfig:
        composed = self.loader.load_configuration(self.config_name, list(words), RunMode.RUN, from_shell=False)
        with flag_override(composed, ["struct", "readonly"], values=False):
            del composed["hydra"]
        return composed

    def _validate_forced(self, reason: ConfigError) -> None:
        """Raise every fault at once, if only unknown keys were in the way; else return."""
        try:
            parsed = OverridesParser.create(config_loader=self.loader).parse_overrides(list(self.words))
            forced = [
                word
                if override.is_add() or override.is_delete() or self.loader.get_group_options(override.key_or_group)
                else f"++{word.lstrip('+')}"
                for word, override in zip(self.words, parsed, strict=True)
            ]
            composed = self._compose(forced)
        except COMPOSITION_ERRORS:
            return
        try:
            self.validate(composed)
        except ConfigError as error:
            # A config whose only other faults are unset keys says nothing about why Hydra refused the override.
            if {problem.key for problem in reason.problems} & {problem.key for problem in error.problems} or any(
                "unknown key" in problem.message for problem in error.problems
            ):
                raise

    def where(self, key: Key) -> str | None:
        """Say where a key was set. Never in the way of the error that it explains."""
        try:
            if not self._places:
                self._places.update(trace(self.loader, self.config_name, self.words))
            return setter(self._places, key)
        except (*COMPOSITION_ERRORS, OSError, ConfigError):
            log.debug("no place for %s", dotted(key), exc_info=True)
            return None

    def validate(self, composed: DictConfig) -> Config:
        """Leave OmegaConf: resolve interpolations, then let Pydantic judge."""
        try:
            plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False, enum_to_str=True)
        except OmegaConfBaseException as error:
            key = parse_key(str(error.full_key or ""))
            raise ConfigError.at(dotted(key), str(error).splitlines()[0], self.where(key)) from None
        if not isinstance(plain, dict):
            raise ConfigError.at("", f"{self.config_name} must be a mapping, got {type(plain).__name__}")
        sections = {str(key): value for key, value in plain.items()}
        has_recipe = any(re.match(rf"\+{GROUP}\b", word) for word in self.words)
        permission = self.permission or Permission.typed(self.words)
        problems: list[Problem] = []
        try:
            sections[ALLOW_IMPORT] = permission.modules(
                sections.get(ALLOW_IMPORT),
                self.loader,
                lambda: self._file_line((ALLOW_IMPORT,)),
                may_be_in_files=self.config_dir is not None or bool(user_dirs()),  # recipes are refused when read
            )
        except ConfigError as error:
            problems += error.problems
            sections[ALLOW_IMPORT] = []
        for name in _WITH_KINDS:
            self._keep_one_kind(sections, name)
        try:
            config = validate(sections, self.where, [] if has_recipe else recipe_names(self.config_dir))
        except ConfigError as error:
            raise self._without_noise(ConfigError([*problems, *error.problems])) from None
        if problems:
            raise ConfigError(problems)
        return config

    def _keep_one_kind(self, sections: dict[str, Any], name: str) -> None:
        """Drop the defaults of one kind from a section that a file or an override made one of another kind.

        A recipe that says ``source: {kind: mnist}`` and chooses no option gets the keys of the default option as well.
        What nobody but the option set goes; the model of the kind has defaults of its own, equal to its option's.
        """
        section = sections.get(name)
        kind = section.get("kind") if isinstance(section, dict) else None
        model = next((one for one in children(Config, name) if one.model_fields["kind"].default == kind), None)
        if not isinstance(section, dict) or model is None or set(section) <= set(key_names(model)):
            return
        if self.where((name, "kind")) is not None:
            for key in [key for key in section if self.where((name, key)) is None]:
                del section[key]

    def _file_line(self, key: Key) -> str | None:
        """Return which line of a user's file sets a key, whatever is merged over it; None when none does."""
        words = [word for word in self.words if parse_key(word.partition("=")[0].lstrip("+~"))[:1] != key[:1]]
        return setter(trace(self.loader, self.config_name, words), key)

    def _without_noise(self, error: ConfigError) -> ConfigError:
        """Replace the problems of a section whose kind alone was changed on the command line by the one behind them."""
        problems = list(error.problems)
        for word in self.words:
            key, _, kind = word.partition("=")
            group, dot, last = key.lstrip("+").partition(".")
            below = [problem for problem in problems if problem.key.startswith(f"{group}.")]
            chosen = dot and last == "kind" and kind in self.loader.get_group_options(group)
            if not chosen or not any("it belongs to kind" in problem.message for problem in below):
                continue
            text = (
                f"must not be set to '{kind}' by itself: the keys of another kind would stay; "
                f"write {group}={kind}, which brings the keys of its own, with a recipe of that kind or none"
            )
            problems = [problem for problem in problems if problem not in below]
            problems.insert(0, Problem(f"{group}.kind", text, f"command line: {word}"))
        return ConfigError(problems)
