"""Where config files live: the built-in ones, and the folders a user may add.

In a wheel ``conf/`` and ``recipes/`` are package data (``_conf``, ``_recipes``); in a checkout they are the folders
beside the package.
"""

import os
from pathlib import Path

__all__ = ["ENVIRONMENT", "conf_dir", "display", "recipe_dirs", "recipe_names", "user_dirs"]

ENVIRONMENT = "FLODL_PIPE_CONFIG_PATH"
"""Environment variable that names more config folders, separated like ``PATH``."""

_PACKAGE = Path(__file__).resolve().parent.parent


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
    """
    candidates = [("--config-dir", config_dir / "recipes")] if config_dir else []
    candidates += [(ENVIRONMENT, folder / "recipes") for folder in user_dirs()]
    candidates += [("working directory", Path.cwd() / "recipes"), ("built-in", _built_in("recipes"))]
    found: dict[Path, str] = {}
    for origin, folder in candidates:
        if folder.is_dir():
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
    return str(file.relative_to(here) if file.is_relative_to(here) else file)
