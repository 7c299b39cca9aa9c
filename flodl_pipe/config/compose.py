"""The door to configuration: a recipe and overrides in, one validated :class:`~flodl_pipe.config.root.Config` out.

Two ways lead in. :func:`load_config` composes in this process, for Python users. :func:`run_hydra` is the command line:
Hydra's flags, run folders and sweeps around one task. Nothing past them sees an OmegaConf container.
:func:`instantiate_engine` is the only place that builds an object by name, and the name is pinned.
"""

import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, final

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from flodl_pipe.config.allow_import import Permission
from flodl_pipe.config.arguments import (
    NO_SWEEP,
    read_arguments,
    recipe_word,
    torchrun_rank,
    without_folder,
)
from flodl_pipe.config.base import shown
from flodl_pipe.config.composition import Composition
from flodl_pipe.config.explain import explain, no_folder
from flodl_pipe.config.places import ENVIRONMENT, check_working_dir, conf_dir, display, user_dirs
from flodl_pipe.config.recipes import GROUP, with_config_dir
from flodl_pipe.config.root import ENGINE, Config
from flodl_pipe.errors import ConfigError, FlodlPipeError, Problem

__all__ = ["check_command", "instantiate_engine", "load_config", "run_folder", "run_hydra", "typed_command"]

log = logging.getLogger("flodl_pipe")

# Jobs that leave no run folder behind, and how they log. So those that only print work where nothing can be written.
_PRINTING = {**dict.fromkeys(("digest", "fetch", "launch", "plan", "verify"), "stdout"), "schema": "none"}

_warned: set[Path] = set()

# Hydra 1.4 wants the targets that may be instantiated named at the call site, and has no version_base. Given to
# hydra.main, the list also covers what Hydra itself builds from the config: callbacks and logging handlers.
_HAS_WHITELIST = "execution_whitelist" in inspect.signature(hydra.main).parameters
_MAIN_OPTIONS: dict[str, Any] = {"execution_whitelist": ENGINE} if _HAS_WHITELIST else {"version_base": "1.3"}


def load_config(name_or_override: str, *overrides: str, config_dir: str | os.PathLike[str] | None = None) -> Config:
    """Return the config of a recipe and overrides, without a run folder and without Hydra's global state.

    Args:
        name_or_override: A recipe's name (``olmo_shards``, also as ``recipe=olmo_shards``), or an override.
        *overrides: Overrides in Hydra's grammar, for example ``loader.batch_size=64``.
        config_dir: A folder with ``recipes/`` and groups of the user's own, as ``--config-dir``.

    Raises:
        ConfigError: with every problem found.

    >>> load_config("olmo_shards", "loader.batch_size=64").loader.batch_size
    64
    """
    _check_types(name_or_override, overrides, config_dir)
    check_working_dir()
    folder = Path(config_dir).expanduser().absolute() if config_dir is not None else None
    if folder is not None and not folder.is_dir():
        raise ConfigError.at("", f"config_dir {config_dir}: no such folder")
    first = name_or_override
    if "=" not in first and not first.startswith(("~", "+", "[")):
        is_plain = re.fullmatch(r"[A-Za-z_][\w/.-]*", first) is not None
        first = f"{GROUP}={first if is_plain else _in_quotes(first)}"
    _warn_of_missing()
    _warn_of_shadowed(folder)
    return Composition(tuple(recipe_word(word) for word in (first, *overrides)), folder).config()


def _in_quotes(text: str) -> str:
    """Return a text as Hydra's grammar reads it back."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _check_types(first: object, overrides: Sequence[object], config_dir: object) -> None:
    """Refuse what is no text: the annotations of :func:`load_config` are not checked when it is called."""
    problems = []
    for place, word in enumerate((first, *overrides)):
        if isinstance(word, str):
            continue
        what = "override {place}" if place else "name_or_override"
        remedy = "write it as text, 'KEY=VALUE'"
        if isinstance(word, list | tuple | set):
            remedy = "give each as an argument of its own: load(NAME, 'KEY=VALUE', 'KEY=VALUE'), or unpack with *"
        elif not place:
            name = f", {shown(word.stem)}" if isinstance(word, PurePath) else ""
            remedy = f"give a recipe's name as text{name}, or an override 'KEY=VALUE'"
        problems.append(Problem("", f"{what.format(place=place)} must be text, got {shown(word)}; {remedy}"))
    if config_dir is not None and not isinstance(config_dir, str | os.PathLike):
        problems.append(Problem("", f"config_dir must be a path, got {shown(config_dir)}; give a folder, or None"))
    if problems:
        raise ConfigError(problems)


def _warn_of_shadowed(folder: Path | None) -> None:
    """Hydra searches the user's folder after our conf/: an option there with a built-in name is never read."""
    for file in folder.glob("*/**/*.yaml") if folder is not None else ():
        option = file.relative_to(folder or file)
        if option.parts[0] != "recipes" and (conf_dir() / option).is_file():
            log.warning("flodl_pipe: warning: %s is ignored: the built-in %s has the same name", display(file), option)


def _warn_of_missing() -> None:
    """Say once in a process that a folder of the environment does not exist: it may be one of another machine."""
    for folder in user_dirs():
        if folder not in _warned and not folder.is_dir():
            _warned.add(folder)
            log.warning("flodl_pipe: warning: %s of %s is ignored: there is no such folder", folder, ENVIRONMENT)


@final
class _Task:
    """What Hydra calls with each composed config. Pickles, as launchers need, when ``run`` does."""

    folder: Path | None = None
    """Of the class: the run folder while a task runs. Hydra's own record of it outlives the run."""
    command: tuple[str, ...] | None = None
    """Of the class: the command line of the task that runs."""

    def __init__(
        self, run: Callable[[Config], float | None], permission: Permission, flags: tuple[str, ...] = ()
    ) -> None:
        self.run, self.permission, self.flags = run, permission, flags
        self.called = False
        self.value: float | None = None
        self.error: Exception | None = None

    def __call__(self, composed: DictConfig) -> float | None:
        self.called = True
        settings = HydraConfig.get()
        sweeps = settings.mode == RunMode.MULTIRUN
        if sweeps and torchrun_rank() is not None:
            raise ConfigError.at("", NO_SWEEP)
        # Unresolved: reading the list as a whole would resolve ${...} inside the overrides.
        words = [
            str(word)
            for part in (settings.overrides.task, settings.overrides.hydra)
            for word in OmegaConf.to_container(part, resolve=False) or ()
            if not str(word).startswith("hydra.mode=")
        ]
        user = next((s.path for s in settings.runtime.config_sources if s.provider == "command-line"), None)
        name = settings.job.config_name or "config"
        _Task.folder = Path(settings.runtime.output_dir)
        _Task.command = (*self.flags, *self.permission.words)
        if sweeps:  # this point of it, in the folder that the sweep has made for it
            point = [str(word) for word in OmegaConf.to_container(settings.overrides.task, resolve=False) or ()]
            _Task.command = (*self.flags, *point, f"hydra.run.dir={_in_quotes(str(_Task.folder))}")
        composition = Composition(tuple(words), Path(user) if user else None, name, self.permission)
        try:
            self.value = self.run(composition.validate(composed))
        except Exception as error:
            self.error = error
            # Raised through Hydra it would come with a line of Hydra's; a sweep needs that line, to know which job.
            if isinstance(error, FlodlPipeError | BrokenPipeError) and not sweeps:
                return None
            raise
        finally:
            _Task.folder = _Task.command = None
        return self.value


@contextmanager
def _hydra_process(argv: Sequence[str]) -> Iterator[None]:
    """Give Hydra its argv, and have it raise errors instead of printing them and exiting."""
    old_argv, old_flag = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [old_argv[0], *argv]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = old_argv
        if old_flag is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = old_flag


def run_hydra(argv: Sequence[str], task: Callable[[Config], float | None]) -> float | None:
    """Do what a command line asks: run ``task`` once, once per point of a sweep, or answer ``--help`` and the like.

    Args:
        argv: The command line without the program's name.
        task: Called with each validated config; a module-level function, so that launchers can pickle it. A sweeper
            optimises the number it returns.

    Returns:
        What ``task`` returned, when it ran once in this process.

    Raises:
        ConfigError: if the command line or the config is wrong.
        SystemExit: after ``--help`` and the like.
    """
    check_working_dir()
    arguments = read_arguments(argv)
    _warn_of_missing()
    _warn_of_shadowed(arguments.config_dir)
    # Taken now: a sweeper adds overrides, and Hydra sets variables, that nobody typed.
    permission = Permission.typed(arguments.words)
    composition = Composition(arguments.words, arguments.config_dir, arguments.config_name, permission)
    job = _Task(task, permission, arguments.kept_flags)
    if arguments.runs:
        config = composition.config()  # before Hydra makes a run folder: a refused config leaves nothing behind
        if config.job.kind in _PRINTING:
            arguments = without_folder(arguments, _PRINTING[config.job.kind])
    try:
        with _hydra_process([*arguments.flags, *arguments.words]), with_config_dir(arguments.config_dir):
            hydra.main(config_path=str(conf_dir()), config_name="config", **_MAIN_OPTIONS)(job)()
    except Exception as error:
        if error is job.error:
            raise
        reason = explain(error, composition.loader, arguments.words, arguments.config_dir)
        reason = reason or no_folder(error)
        if reason is None and type(error) is ValueError and not job.called:
            reason = ConfigError.at("", str(error))  # Hydra's, for flags or options that do not go together
        if reason is None:
            raise
        raise reason from None
    if job.error is not None:
        raise job.error
    return job.value


def instantiate_engine(config: Config, **arguments: Any) -> Any:
    """Return what the pinned engine builds from a config.

    Args:
        config: The validated config.
        **arguments: Further arguments of the engine, which no config holds.

    Raises:
        Exception: whatever the engine raises, itself and not wrapped.
    """
    options = {"_execution_whitelist_": ENGINE} if _HAS_WHITELIST else {}
    node = {"_target_": config.engine.target, "_recursive_": False, "_partial_": True}
    try:
        engine = hydra.utils.instantiate(node, **options)
    except InstantiationException as error:
        if error.__cause__ is None:
            raise
        cause = error.__cause__
    else:
        # Called here, for Hydra makes config nodes of the dataclasses among an object's arguments.
        return engine(cfg=config, **arguments)
    raise cause  # outside the handler, so that the engine's error keeps its own context


def run_folder() -> Path | None:
    """Return the folder of the run that this process is in; None where there is none, as for :func:`load_config`."""
    return _Task.folder


def typed_command() -> tuple[str, ...] | None:
    """Return the command line of the job that this process runs: the flags that matter to its config, and overrides.

    In a sweep they are those of this point, and its folder. None where no command line was given, as for
    :func:`load_config`.
    """
    return _Task.command


def check_command(argv: Sequence[str]) -> Config:
    """Return the config that a command line would give, without doing what it asks.

    Raises:
        ConfigError: with every problem found.
    """
    arguments = read_arguments(argv)
    return Composition(arguments.words, arguments.config_dir, arguments.config_name).config()
