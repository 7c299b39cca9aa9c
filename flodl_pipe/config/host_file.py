"""What a host says of itself: a small YAML file of its own, and variables of its environment, which stand over it.

A recipe is the same for all hosts. What only the host knows lies beside it, where whoever looks after the host keeps
it. Both are checked like the config, and a fault is reported with its line or its variable.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, final

import yaml
from pydantic import BeforeValidator, ValidationError
from pydantic_core import ErrorDetails

from flodl_pipe.config.base import StrictModel, absolute, fault, shown
from flodl_pipe.config.cluster_host import GpuRamShare, HostName, Interface
from flodl_pipe.config.keys import did_you_mean, dotted, key_names
from flodl_pipe.config.validate import problem_from
from flodl_pipe.errors import ConfigError, Problem

__all__ = ["DEFAULT_FILE", "FILE_VARIABLE", "VARIABLES", "HostFile", "HostSays", "what_the_host_says"]

FILE_VARIABLE = "FLODL_PIPE_HOST_FILE"
"""Environment variable that names the host's own file."""

DEFAULT_FILE = "/etc/flodl_pipe/host.yaml"
"""The host's own file where no other is named; it need not be there."""

VARIABLES = {
    "name": "FLODL_PIPE_HOST",
    "gpu_ram_share": "FLODL_PIPE_GPU_RAM_SHARE",
    "data_dir": "FLODL_PIPE_DATA_DIR",
    "interface": "FLODL_PIPE_INTERFACE",
}
"""Key of the file -> the environment variable that stands over it."""

_MAPPING, _NULL, _TIMESTAMP = (f"tag:yaml.org,2002:{kind}" for kind in ("map", "null", "timestamp"))
# What PyYAML lets through of the values that it cannot make: a tag that does not fit, too many digits.
_MISREAD = (ValueError, LookupError, ArithmeticError, AttributeError, TypeError)


class _Loader(yaml.SafeLoader):
    """YAML as recipes are read: what looks like a date is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _not_relative(value: Any) -> str:
    path = absolute(value)
    if _printable(path) != path:
        raise fault(f"must be UTF-8, got {shown(path)}; rename the folder, or name a link to it")
    if "://" in path or Path(value).expanduser().is_absolute():
        return path
    raise fault(f"must be an absolute path, got {shown(value)}: jobs start in folders of their own")


class HostFile(StrictModel):
    """What a host's own file may say."""

    name: HostName | None = None
    """The host's name in `cluster.hosts`; null: what `hostname` prints."""

    gpu_ram_share: GpuRamShare | None = None
    """Share of its memory that an integrated GPU may take; null: what the recipe says."""

    data_dir: Annotated[str, BeforeValidator(_not_relative, json_schema_input_type=str)] | None = None
    """Folder of data sets, absolute; null: what the recipe says."""

    interface: Interface | None = None
    """Network interface that reaches the other hosts; null: what the recipe says."""


@final
@dataclass(frozen=True)
class HostSays:
    """What a host says of itself.

    Attributes:
        said: The values; None where it says nothing.
        places: Key -> who says so, a variable or a line of the file.
    """

    said: HostFile
    places: Mapping[str, str] = field(default_factory=dict)


def what_the_host_says(environment: Mapping[str, str]) -> HostSays:
    """Return what this host says of itself. A variable that is empty says nothing.

    Args:
        environment: Variables of the process.

    Raises:
        ConfigError: if the file cannot be read, or a value is wrong.
    """
    named = environment.get(FILE_VARIABLE)
    file = _expanded(named) if named else Path(DEFAULT_FILE)
    plain: dict[str, Any] = {}
    places: dict[str, str] = {}
    if named or _is_there(file):
        plain, places = _read(file)
    for key, variable in VARIABLES.items():
        text = environment.get(variable)
        if text and text.strip():
            plain[key] = _FROM_TEXT.get(key, str)(text)
            places[key] = f"environment: {variable}={_printable(text)}"
    try:
        said = HostFile.model_validate(plain, strict=True)
    except ValidationError as error:
        raise ConfigError([_problem(detail, places) for detail in error.errors(include_url=False)]) from None
    return HostSays(said, {key: place for key, place in places.items() if plain.get(key) is not None})


def _expanded(named: str) -> Path:
    try:
        return Path(named).expanduser()
    except RuntimeError:
        raise ConfigError.at(
            "",
            f"{shown(named)} names a home folder that cannot be found; write the path out",
            f"environment: {FILE_VARIABLE}={_printable(named)}",
        ) from None


def _printable(text: str) -> str:
    """Return a text with an escape for each part of it that is not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _is_there(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:
        return True  # a folder that may not be entered: reading says so


def _number(text: str) -> float | str:
    """Return the number that a text is; the text itself, which its rule refuses, if it is none."""
    try:
        return float(text)
    except ValueError:
        return text


def _typed_path(text: str) -> str:
    """Return a path as somebody types it, who stands in a folder."""
    return text if "://" in text or text.startswith("~") else str(Path(text).absolute())


_FROM_TEXT: Mapping[str, Callable[[str], Any]] = {"gpu_ram_share": _number, "data_dir": _typed_path}


def _problem(error: ErrorDetails, places: Mapping[str, str]) -> Problem:
    key = error["loc"]
    where = places.get(str(key[0]) if key else "")
    if error["type"] != "extra_forbidden":
        return problem_from(error, lambda _: where)
    names = key_names(HostFile)
    near = did_you_mean(str(key[-1]), names) or f" Known keys of a host's own file: {', '.join(names)}"
    return Problem(dotted(tuple(key)), f"unknown key.{near}", where)


def _read(file: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a file says, and the line of each key."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError.at(
            "", f"{file}, what this host says of itself, cannot be read ({reason}); {FILE_VARIABLE} names another"
        ) from None
    try:
        return _keys_of(_Loader(text), file)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        reason = error.problem or str(error.context)
        if "recursive" in reason:
            reason = "a list or mapping that holds itself, by an alias inside its own anchor; write the value out"
        raise ConfigError.at("", f"not valid YAML: {reason}", f"{file}:{line}") from None
    except yaml.YAMLError as error:
        raise ConfigError.at("", f"not valid YAML: {' '.join(str(error).split())}", str(file)) from None
    except RecursionError:
        raise ConfigError.at(
            "", f"lists and mappings lie too deep in each other to be read; {_what_it_holds()}", str(file)
        ) from None


def _what_it_holds() -> str:
    return f"it must be a mapping with keys of {', '.join(key_names(HostFile))}"


def _keys_of(loader: _Loader, file: Path) -> tuple[dict[str, Any], dict[str, str]]:
    tree = loader.get_single_node()
    if tree is None or tree.tag == _NULL:
        return {}, {}
    if not isinstance(tree, yaml.MappingNode) or tree.tag != _MAPPING:
        raise ConfigError.at("", f"{_what_it_holds()}, got {shown(_value(loader, tree, '', file))}", f"{file}:1")
    plain: dict[str, Any] = {}
    places: dict[str, str] = {}
    for name, node in tree.value:
        place = f"{file}:{name.start_mark.line + 1}"
        if not isinstance(name, yaml.ScalarNode):
            raise ConfigError.at("", f"a list or mapping cannot be a key; {_what_it_holds()}", place)
        key = _printable(name.value)
        if key in places:
            raise ConfigError.at(key, f"is there twice, at {places[key]} too; leave one out", place)
        plain[key], places[key] = _value(loader, node, key, file), place
    return plain, places


def _value(loader: _Loader, node: yaml.Node, key: str, file: Path) -> Any:
    try:
        value = loader.construct_object(node, deep=True)  # deep: refuses what holds itself
        shown(value)  # which a whole number of very many digits cannot be
    except _MISREAD:
        written = shown(node.value) if isinstance(node, yaml.ScalarNode) else "what it holds"
        message = (
            f"{written} cannot be read as {node.tag.rpartition(':')[2]}; write it in quotes if it is meant as text"
        )
        raise ConfigError.at(key, message, f"{file}:{node.start_mark.line + 1}") from None
    return value
