"""Hydra's and OmegaConf's errors as :class:`~flodl_pipe.errors.ConfigError`: key, rule, what was probably meant."""

import re
import shlex
import traceback
from collections.abc import Sequence
from pathlib import Path

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.utils import JobReturn
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from flodl_pipe.config.keys import did_you_mean, dotted, elsewhere, may_be_added, parse_key
from flodl_pipe.config.places import conf_dir, display, recipe_dirs, recipe_names
from flodl_pipe.config.provenance import file_of
from flodl_pipe.config.recipes import GROUP
from flodl_pipe.config.root import Config
from flodl_pipe.errors import ConfigError

__all__ = ["COMPOSITION_ERRORS", "explain", "no_folder"]

# What composing a config can raise. InstantiationException is one of Hydra's, but is about objects, not config.
# RecursionError: Hydra follows defaults lists without end.
COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, RecursionError)

# Hydra 1.3's and 1.4's words for an override in a defaults list that matches no group.
_UNMATCHED = re.compile(r"Could not override '([^'@]+)'\. No match in|No earlier Group Default for '([^'@]+)'")
_CONTAINING = re.compile(r"In '([^']+)': ")


def _setter(loader: ConfigLoaderImpl, words: Sequence[str], group: str, text: str, error: str) -> str | None:
    """Find who chose a group's option: an override, or a file's line that holds ``text``."""
    for word in words:
        if word.partition("=")[0].lstrip("+~").partition("@")[0] == group and text in word:
            return f"command line: {word}"
    # Hydra names the file that holds the group, not the one that overrode it: look in the recipes first.
    recipes = [f"{GROUP}/{word.partition('=')[2]}" for word in words if word.startswith(f"+{GROUP}=")]
    containing = _CONTAINING.findall(error)
    for config_path in (*recipes, *containing):
        file = file_of(loader, config_path)
        if file is None or not file.is_file() or file.is_relative_to(conf_dir()):
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if text in line.partition("#")[0]:
                return f"{display(file)}:{number}"
    return None


def _no_recipe(option: str, names: Sequence[str]) -> str:
    """Return the words for a recipe that does not exist, which is often a path of one that does."""
    name = re.sub(r"\.ya?ml$", "", option)
    if name == option and not option.startswith(("/", ".", "recipes/")):
        return f"there is no recipe '{option}'.{did_you_mean(option, names)}"
    ends = [known for known in names if f"/{name}".endswith(f"/{known}")]
    near = f" Did you mean '{max(ends, key=len)}'?" if ends else did_you_mean(name.rpartition("/")[2], names)
    return f"'{option}' is no recipe: a recipe is given by its name, not by a path.{near}"


def _missing_option(
    error: MissingConfigException, loader: ConfigLoaderImpl, words: Sequence[str], config_dir: Path | None
) -> ConfigError:
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    if group.split("/")[0] == GROUP:
        option = "/".join([*group.split("/")[1:], option])
        names = recipe_names(config_dir)
        searched = ", ".join(display(folder) for _, folder in recipe_dirs(config_dir))
        message = (
            f"{_no_recipe(option, names)} Known recipes: {', '.join(names)} (searched {searched}; "
            "--config-dir DIR adds DIR/recipes)"
        )
        return ConfigError.at(GROUP, message, _setter(loader, words, group, option, str(error)))
    options = [str(known) for known in error.options or ()]
    if not group or not options:
        groups = _groups(loader)
        known = did_you_mean(group, groups) or f" Known groups: {', '.join(groups)}."
        head = f"there is no group '{group}'.{known}" if group else f"there is no config '{option}'"
        return ConfigError.at(group.replace("/", "."), head, _setter(loader, words, group, option, str(error)))
    message = f"there is no option '{option}'.{did_you_mean(option, options)} Known options: {', '.join(options)}"
    return ConfigError.at(group.replace("/", "."), message, _setter(loader, words, group, option, str(error)))


def _groups(loader: ConfigLoaderImpl) -> list[str]:
    return [str(group) for group in loader.list_groups("")]


def _word_for(words: Sequence[str], key: str) -> str | None:
    """Find the override of a key, or of one below it."""
    for word in words:
        given = dotted(parse_key(word.partition("=")[0].lstrip("+~")))
        if key and f"{given}.".startswith(f"{key}."):
            return f"command line: {word}"
    return None


def _bad_override(error: HydraException, cause: OmegaConfBaseException, words: Sequence[str]) -> ConfigError:
    """An override that does not fit the composed config: an unknown key, an item that exists, a wrong parent."""
    reason = str(cause).splitlines()[0]
    head = str(error).splitlines()[0] if str(error).strip() else ""
    key = dotted(parse_key(str(cause.full_key or cause.key or "")))
    if not key:
        quoted = re.search(r"'([^'=]+)", head)
        key = quoted[1] if quoted else ""
    if re.search(r"^Key '.*' (is )?not in ", reason) and isinstance(cause.parent_node, DictConfig):
        if may_be_added(Config, parse_key(key)):
            added = f"+{_with_points(key)}=..."
            return ConfigError.at(key, f"not there yet: add it with a leading +, {added}", _word_for(words, key))
        word, names = str(cause.key), [str(name) for name in cause.parent_node]
        near = elsewhere(Config, word) or did_you_mean(word, names) or elsewhere(Config, word, cutoff=0.75)
        known = f" Known keys: {', '.join(names)}" if names else " What is above it holds a value, not keys."
        return ConfigError.at(key, f"unknown key.{near or known}", _word_for(words, key))
    return ConfigError.at(key, f"{head} {reason}".strip(), _word_for(words, key))


def _with_points(key: str) -> str:
    """Return a key as an override spells it: Hydra's grammar has no brackets.

    >>> _with_points("cluster.hosts[0].devices")
    'cluster.hosts.0.devices'
    """
    return re.sub(r"\[(\d+)\]", r".\1", key)


def _unparsable(error: OverrideParseException) -> ConfigError:
    word = str(error.override)
    if "=" not in word:
        name = word.lstrip("+~")
        what = f"an override is KEY=VALUE, and a recipe is chosen with +recipe={name}"
        return ConfigError.at("", f"'{word}' is not an override: {what}")
    key, _, value = word.partition("=")
    if _with_points(key) != key:
        remedy = f"write {_with_points(key)}={value}"
        return ConfigError.at(
            key.lstrip("+~"),
            f"a place in a list is set off by points, not by brackets: {remedy}",
            f"command line: {word}",
        )
    # Hydra reads a backslash before a quote as part of the quote.
    quoted = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ('\\"' if found[2] else ""), value)
    shell = shlex.quote(f'{key}="{quoted}"')
    remedy = f"if it is text, quote it for Hydra and the shell: {shell}"
    return ConfigError.at(
        key.lstrip("+~"), f"{value} cannot be read as Hydra writes values; {remedy}", f"command line: {word}"
    )


def _cycle(loader: ConfigLoaderImpl, recipe: str, way: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the recipes by which a recipe includes itself, the first one again at the end; () when it does not."""
    if recipe in way:
        return (*way[way.index(recipe) :], recipe)
    file = file_of(loader, recipe)
    tree = yaml.safe_load(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else None
    for entry in (tree.get("defaults") or ()) if isinstance(tree, dict) else ():
        # Hydra reads an entry as one beside the file that holds it, or, with a slash in front, from the top.
        found = str(entry).removesuffix(".yaml")
        below = found[1:] if found.startswith("/") else f"{recipe.rpartition('/')[0]}/{found}"
        cycle = _cycle(loader, below, (*way, recipe))
        if cycle:
            return cycle
    return ()


def _endless(loader: ConfigLoaderImpl, words: Sequence[str]) -> ConfigError:
    remedy = "take it out of one 'defaults' list"
    for word in words:
        name = word.partition("=")[2].removesuffix(".yaml")
        cycle = _cycle(loader, f"{GROUP}/{name}") if word.startswith(f"+{GROUP}=") else ()
        if cycle:
            names = " -> ".join(part.removeprefix(f"{GROUP}/") for part in cycle)
            first = file_of(loader, cycle[0])
            return ConfigError.at(
                GROUP, f"a recipe may not include itself, but {names}; {remedy}", display(first) if first else None
            )
    return ConfigError.at("", f"the config is nested without end: a file includes itself; {remedy}")


def _is_of_a_job(error: BaseException) -> bool:
    """Return whether a launcher handed on what a job raised, perhaps in another process."""
    handed_on = JobReturn.return_value.fget.__code__  # type: ignore[attr-defined]
    return any(frame.f_code is handed_on for frame, _ in traceback.walk_tb(error.__traceback__))


def no_folder(error: BaseException | None) -> ConfigError | None:
    """Return what kept a run's folder or log from being written; None when the error is about something else."""
    if type(error) is ValueError:  # logging's, for a log file
        error = error.__cause__
    if not isinstance(error, OSError) or isinstance(error, BrokenPipeError) or _is_of_a_job(error):
        return None
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return ConfigError.at(
        "hydra.run.dir",
        f"the folder of the run cannot be written ({what}); choose another with hydra.run.dir=/some/folder, "
        "or hydra.sweep.dir=/some/folder with -m",
    )


def explain(
    error: Exception, loader: ConfigLoaderImpl, words: Sequence[str], config_dir: Path | None = None
) -> ConfigError | None:
    """Return what went wrong in composing a config; None when the error is about something else.

    Args:
        error: What was raised.
        loader: Loader of the composition.
        words: Overrides as the user wrote them.
        config_dir: The user's config folder, if any.
    """
    if isinstance(error, InstantiationException) or not isinstance(error, COMPOSITION_ERRORS):
        return None
    if isinstance(error, RecursionError):
        return None if _is_of_a_job(error) else _endless(loader, words)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        where = f"{display(Path(mark.name))}:{mark.line + 1}" if mark is not None else None
        return ConfigError.at("", f"not valid YAML: {error.problem or error.context}", where)
    if isinstance(error, OverrideParseException):
        return _unparsable(error)
    if isinstance(error, MissingConfigException):
        return _missing_option(error, loader, words, config_dir)
    if isinstance(error, OmegaConfBaseException):
        return ConfigError.at(dotted(parse_key(str(error.full_key or ""))), str(error).splitlines()[0])
    if isinstance(error, HydraException) and isinstance(error.__cause__, OmegaConfBaseException):
        return _bad_override(error, error.__cause__, words)
    text = " ".join(str(error).split())
    unmatched = _UNMATCHED.search(text)
    if unmatched:
        group = next(name for name in unmatched.groups() if name)
        message = f"there is no group '{group}' to override.{did_you_mean(group, _groups(loader))}"
        return ConfigError.at(group.replace("/", "."), message, _setter(loader, words, group, group, text))
    return ConfigError.at("", text)
