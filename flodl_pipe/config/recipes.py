"""How ``+recipe=NAME`` finds a recipe, and what a recipe may not do.

Hydra asks its config sources for ``recipe/NAME``. :class:`RecipeSource` answers from a folder of recipes, and
:class:`RecipeSearchPath` puts the recipe folders (:func:`~flodl_pipe.config.places.recipe_dirs`) on the search path of
our program; both leave other Hydra programs in the process alone.

A recipe is data that people pass around, and it is found in the working directory without being asked for. So it may
not name code, reach files outside the search path, or touch the parts of Hydra's own config that call things:
``hydra.callbacks``, the logging factories, launcher commands, the environment of a job.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, final

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, OmegaConf

from flodl_pipe.config.allow_import import KEY as ALLOW_IMPORT
from flodl_pipe.config.allow_import import NOT_IN_A_FILE
from flodl_pipe.config.keys import UNSET
from flodl_pipe.config.places import ENVIRONMENT, conf_dir, display, recipe_dirs, user_dirs
from flodl_pipe.errors import ConfigError

__all__ = ["GROUP", "RecipeSearchPath", "RecipeSource", "register", "with_config_dir"]

GROUP = "recipe"

# None: the whole subtree is allowed. Launchers are left out (theirs holds shell commands), and so is hydra.mode:
# Hydra 1.4 takes it from the command line only.
_HYDRA_KEYS: dict[str, frozenset[str] | None] = {
    "run": None,
    "sweep": None,
    "verbose": None,
    "output_subdir": None,
    "sweeper": frozenset({"params", "max_batch_size", "n_trials", "n_jobs", "direction"}),
}
_SWEEP = ("hydra", "sweeper", "params")
_CHECKED_MAPPINGS = (("hydra",), ("hydra", "sweeper"), _SWEEP)
_config_dir: ContextVar[Path | None] = ContextVar("config_dir", default=None)


def _refusal(content: Any, at: tuple[str, ...] = ()) -> tuple[str, str] | None:
    """Return the first forbidden key of a recipe as (dotted key, why), or None."""
    if isinstance(content, list):
        content = dict(enumerate(content))
    if not isinstance(content, dict):
        # An interpolation in place of a mapping whose keys are checked would bring in keys unseen.
        hides = at in _CHECKED_MAPPINGS and content is not None
        return (".".join(at), "must be a mapping in a recipe") if hides else None
    for name, value in content.items():
        path = (*at, str(name))
        key = ".".join(path)
        why = "a recipe may name data and numbers, not code; give it on the command line or in your --config-dir"
        below = _HYDRA_KEYS.get(path[1], frozenset()) if at[:1] == ("hydra",) else None
        if (
            name in ("_target_", "()")
            or (len(path) == 2 and at == ("hydra",) and path[1] not in _HYDRA_KEYS)
            or (len(path) == 3 and below is not None and path[2] not in below)
            or (at == _SWEEP and not _may_be_swept(str(name)))
        ):
            return key, f"not allowed in a recipe: {why}"
        found = _refusal(value, path)
        if found:
            return found
    return None


def _may_be_swept(name: str) -> bool:
    """Return whether a recipe may sweep a key: a plain path of ours. ``GROUP@PACKAGE`` would put a file anywhere."""
    plain = re.fullmatch(r"\+{0,2}([A-Za-z_]\w*)(?:[./]\w+)*", name)
    return plain is not None and plain[1] not in ("hydra", ALLOW_IMPORT)


def _refuse_defaults(defaults: Any) -> str | None:
    """Return the first entry of a defaults list that leaves the search path or picks its own package, or None."""
    for entry in defaults if isinstance(defaults, list) else []:
        pairs = entry.items() if isinstance(entry, dict) else [(entry, "")]
        for group, option in pairs:
            for text in [str(group), *map(str, option if isinstance(option, list) else [option])]:
                if "@" in text or "//" in text or "${" in text or ".." in re.split(r"[\s/]", text):
                    return f"{group}: {option}" if option else str(group)
            # An absolute option would be read as a path of the file system.
            if str(option).startswith("/"):
                return f"{group}: {option}"
    return None


def _keep_unset(node: Any) -> None:
    """Spell ``???`` so that it survives the merge: OmegaConf takes it for saying nothing, and keeps what was there."""
    for key in list(node.keys()) if isinstance(node, DictConfig) else range(len(node)):
        if OmegaConf.is_missing(node, key):
            node[key] = UNSET
        elif isinstance(node._get_node(key), DictConfig | ListConfig):  # noqa: SLF001 - reading would resolve
            _keep_unset(node._get_node(key))  # noqa: SLF001


@final
class RecipeSource(FileConfigSource):
    """``recipes:///folder``: shows ``folder/NAME.yaml`` as option NAME of the group ``recipe``."""

    @staticmethod
    def scheme() -> str:
        """Return the scheme of the folder's address."""
        return "recipes"

    def _inner(self, config_path: str) -> str | None:
        """``recipe`` -> "", ``recipe/a/b`` -> ``a/b``; None for other groups and for paths that leave the folder."""
        head, _, rest = config_path.strip("/").partition("/")
        if head != GROUP or rest.startswith("/") or ".." in rest.split("/"):
            return None
        return rest

    def file_for(self, config_path: str) -> Path:
        """Return the file of a recipe."""
        return Path(self.path) / self._normalize_file_name(self._inner(config_path) or "")

    # Hydra passes these parameters by keyword: their names are part of the protocol.
    def is_group(self, config_path: str) -> bool:
        """Return whether there are recipes below a path."""
        inner = self._inner(config_path)
        return not config_path.strip("/") or (inner is not None and bool(super().is_group(inner)))

    def is_config(self, config_path: str) -> bool:
        """Return whether a path is a recipe."""
        inner = self._inner(config_path)
        return inner is not None and inner != "" and bool(super().is_config(inner))

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a recipe, which always speaks about the whole config.

        Raises:
            ConfigError: if the file is not a YAML mapping, or holds what a recipe may not.
        """
        file = self.file_for(config_path)
        try:
            result = super().load_config(self._inner(config_path) or "")
            tree = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ConfigError.at("", f"{display(file)} is not a readable recipe: {error}") from None
        # Asked of the tree: OmegaConf takes a bare word for a mapping with one key.
        if tree is not None and not isinstance(tree, yaml.MappingNode):
            raise ConfigError.at("", "a recipe must be a mapping of keys to values", f"{display(file)}:1")
        content = OmegaConf.to_container(result.config, resolve=False)
        if not isinstance(content, dict):
            raise TypeError(f"{display(file)} is a mapping, but was read as {type(content).__name__}")
        if result.header.get("package") not in (None, "_global_"):
            text = f"package {result.header['package']} is not allowed in a recipe: write '# @package _global_'"
            raise ConfigError.at("", text, f"{display(file)}:1")
        entry = _refuse_defaults(content.get("defaults"))
        if entry:
            text = f"'{entry}' is not allowed in a recipe: name options of the search path, without '..', '@' or '${{'"
            raise ConfigError.at("defaults", text, display(file))
        if ALLOW_IMPORT in content:
            nodes = tree.value if isinstance(tree, yaml.MappingNode) else []
            line = next((f":{key.start_mark.line + 1}" for key, _ in nodes if key.value == ALLOW_IMPORT), "")
            raise ConfigError.at(ALLOW_IMPORT, NOT_IN_A_FILE, f"{display(file)}{line}")
        refused = _refusal(content)
        if refused:
            raise ConfigError.at(refused[0], refused[1], display(file))
        result.header["package"] = "_global_"
        _keep_unset(result.config)
        return result

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return recipes and folders of recipes below a path; names that start with a dot or ``_`` are private."""
        inner = self._inner(config_path)
        if inner is None:
            at_top = not config_path.strip("/") and results_filter in (None, ObjectType.GROUP)
            return [GROUP] if at_top else []
        found = set()
        for entry in (Path(self.path) / inner).iterdir():
            if entry.name.startswith((".", "_")):
                continue
            if entry.is_dir() and results_filter in (None, ObjectType.GROUP):
                found.add(entry.name)
            elif entry.suffix == ".yaml" and results_filter in (None, ObjectType.CONFIG):
                found.add(entry.stem)
        return sorted(found)


@final
class RecipeSearchPath(SearchPathPlugin):
    """Adds the recipe folders, and the groups of ``$FLODL_PIPE_CONFIG_PATH``, to our program's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Extend the search path when it is ours: when its primary folder is our ``conf/``."""
        if not any(part.provider == "main" and str(part.path) == str(conf_dir()) for part in search_path.get_path()):
            return
        for origin, folder in recipe_dirs(_config_dir.get()):
            search_path.append(f"recipes ({origin})", f"{RecipeSource.scheme()}://{folder}")
        for folder in user_dirs():
            search_path.append(ENVIRONMENT, f"file://{folder}")


@contextmanager
def with_config_dir(folder: Path | None) -> Iterator[None]:
    """Look for recipes in ``folder/recipes`` first, inside the block: Hydra does not tell plugins its --config-dir."""
    token = _config_dir.set(folder)
    try:
        yield
    finally:
        _config_dir.reset(token)


def register() -> None:
    """Make Hydra know both plugins. By hand, because a ``hydra_plugins`` package would load in every Hydra program."""
    Plugins.instance().register(RecipeSource)
    Plugins.instance().register(RecipeSearchPath)
