"""Which file and line, or which command-line override, set a key. Runs only to word an error.

Hydra knows the order in which it merged files but no lines; PyYAML's node tree knows lines. Walking the files in merge
order, the last line that sets a key wins; then come the overrides. The built-in ``conf/`` counts as default and is left
out.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.config_source import ConfigSource
from hydra.types import RunMode

from flodl_pipe.config.keys import Key, parse_key
from flodl_pipe.config.places import conf_dir, display
from flodl_pipe.config.recipes import RecipeSource

__all__ = ["file_of", "setter", "trace"]


def _record(node: yaml.Node, at: Key, put: Callable[[Key, int], None]) -> None:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            put((*at, name.value), name.start_mark.line + 1)
            _record(value, (*at, name.value), put)
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            put((*at, place), value.start_mark.line + 1)
            _record(value, (*at, place), put)


def _leaves(value: Any, at: Key) -> Iterator[Key]:
    """Yield the keys that an override replaces: a mapping is merged, so what it does not name stays as it was."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*at, str(name)))
    else:
        yield at


def file_of(loader: ConfigLoaderImpl, config_path: str) -> Path | None:
    """Return the file that Hydra loads for a config path such as ``recipe/mine``; None when it is no file."""
    source: ConfigSource | None = next((s for s in loader.get_sources() if s.is_config(config_path=config_path)), None)
    if isinstance(source, RecipeSource):
        return source.file_for(config_path)
    if source is not None and source.scheme() == "file":
        return Path(source.path) / f"{config_path.removesuffix('.yaml')}.yaml"
    return None


def trace(loader: ConfigLoaderImpl, config_name: str, words: Sequence[str]) -> dict[Key, str]:
    """Return key -> where it was set, for every key that a user's file or an override sets.

    Args:
        loader: Hydra's loader of this composition.
        config_name: Primary config.
        words: Overrides, as the user wrote them.
    """
    places: dict[Key, str] = {}
    merged = loader.compute_defaults_list(config_name=config_name, overrides=list(words), run_mode=RunMode.RUN)
    for entry in merged.defaults:
        file = file_of(loader, entry.config_path) if entry.config_path else None
        if file is None or not file.is_file() or file.is_relative_to(conf_dir()):
            continue
        root = tuple(part for part in (entry.package or "").split(".") if part and part != "_global_")
        name = display(file)
        tree = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        if tree is not None:
            _record(tree, root, lambda key, line, name=name: places.__setitem__(key, f"{name}:{line}"))  # type: ignore[misc]
    for word in words:
        override = OverridesParser.create(config_loader=loader).parse_override(word)
        if loader.get_group_options(override.key_or_group) and not isinstance(override.value(), dict):
            continue  # chooses an option, whose own keys have places of their own
        key = parse_key(override.key_or_group)
        for leaf in _leaves(override.value(), key):
            for below in [known for known in places if known[: len(leaf)] == leaf]:
                del places[below]
            places[leaf] = f"command line: {override.input_line}"
    return places


def setter(places: dict[Key, str], key: Key) -> str | None:
    """Return where a key was set: an item of a list, and what is left out of it, stands where the item or the list
    does, a section where its first key does.
    """
    while key and key not in places and any(isinstance(part, int) for part in key):
        key = key[:-1]
    return places.get(key) or next((place for known, place in places.items() if known[: len(key)] == key), None)
