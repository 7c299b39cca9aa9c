"""Where config files live: the built-in ones, and the folders a user may add.

In a wheel ``conf/`` and ``recipes/`` are package data (``_conf``, ``_recipes``); in a checkout they are the folders
beside the package.
"""

import os
from pathlib import Path

from flodl_pipe.errors import ConfigError

__all__ = ["ENVIRONMENT", "check_working_dir", "conf_dir", "display", "recipe_dirs", "recipe_names", "user_dirs"]

ENVIRONMENT = "FLODL_PIPE_CONFIG_PATH"
"""Environment variable that names more config folders, separated like ``PATH``."""

_PACKAGE = Path(__file__).resolve().parent.parent


def check_working_dir() -> None:
    """Refuse to start in a folder that is gone: relative paths would mean nothing.

    Raises:
        ConfigError: if the working directory was deleted, or cannot be read.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise ConfigError.at(
            "", f"the working directory cannot be used ({error.strerror}): change to a folder that exists"
        ) from None


def _is_folder(folder: Path) -> bool:
    """Return whether a folder of recipes exists; one that cannot be read would hide what is in it."""
    try:
        found = folder.is_dir()
        readable = not found or os.access(folder, os.R_OK | os.X_OK)
    except OSError:
        readable = False
    if not readable:
        raise ConfigError.at(
            "recipe",
            f"the folder {display(folder)} cannot be read: recipes are looked for in it; "
            f"give yourself the right to (chmod u+rx {display(folder)}), or start in another folder",
        )
    return found


def _built_in(name: str) -> Path:
    packaged = _PACKAGE / f"_{name}"
    if packaged.is_dir():
        return packaged
    # Without its pyproject.toml, a folder of that name beside an installed package is somebody else's.
    checkout = _PACKAGE.parent / name
    if (_PACKAGE.parent / "pyproject.toml").is_file() and checkout.is_dir():
        return checkout
    raise FileNotFoundError(
        f"flodl_pipe is not installed whole: neither {packaged} nor {checkout} exists; reinstall it"
    )


def conf_dir() -> Path:
    """Return the folder of ``config.yaml`` and the built-in groups.

    Raises:
        FileNotFoundError: if the installation lacks it.
    """
    return _built_in("conf")


def user_dirs() -> list[Path]:
    """Return the config folders that ``$FLODL_PIPE_CONFIG_PATH`` names."""
    return [Path(entry).expanduser().resolve() for entry in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if entry]


def recipe_dirs(config_dir: Path | None = None) -> list[tuple[str, Path]]:
    """Return the existing recipe folders as (where from, folder), the first one winning.

    Args:
        config_dir: The folder given as ``--config-dir``, whose ``recipes/`` comes before all others.

    Raises:
        ConfigError: if one exists and cannot be read.
    """
    candidates = [("--config-dir", config_dir / "recipes")] if config_dir else []
    candidates += [(ENVIRONMENT, folder / "recipes") for folder in user_dirs()]
    candidates += [("working directory", Path.cwd() / "recipes"), ("built-in", _built_in("recipes"))]
    found: dict[Path, str] = {}
    for origin, folder in candidates:
        if _is_folder(folder):
            found.setdefault(folder.resolve(), origin)
    return [(origin, folder) for folder, origin in found.items()]


def recipe_names(config_dir: Path | None = None) -> list[str]:
    """Return the names of the recipes that can be found, sorted; those in subfolders as ``folder/name``."""
    return sorted(
        {
            file.relative_to(folder).with_suffix("").as_posix()
            for _, folder in recipe_dirs(config_dir)
            for file in folder.rglob("*.yaml")
            if not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
        }
    )


def display(file: Path) -> str:
    """Return a path as messages show it: relative below the working directory, absolute elsewhere."""
    here = Path.cwd()
    # Everything is below the root: without its slash a path would read as one below a folder that people stand in.
    below = file.is_relative_to(here) and here != Path(here.anchor)
    return str(file.relative_to(here) if below else file)
