"""Folders of sample data in the user's cache: made once, whole or not at all.

::

    <cache>/flodl_pipe/<name>/
        manifest.json         sizes and digests of the files, and what the data is
        <files>

A folder is written under another name and renamed when complete; a lock makes a second process wait for the first and
then use what that one made. A folder that no longer is what its manifest says is made again, aloud.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from flodl_pipe.errors import SourceError

__all__ = ["cache_folder", "sample_folder"]

_logger = logging.getLogger("flodl_pipe")


def cache_folder() -> Path:
    """Return the folder for data that can be made again: ``$FLODL_PIPE_CACHE``, else one in the user's cache folder."""
    own = os.environ.get("FLODL_PIPE_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared and Path(shared).is_absolute() else Path.home() / ".cache") / "flodl_pipe"


def sample_folder(
    name: str, what: str, make: Callable[[], Iterable[tuple[str, bytes]]], about: Mapping[str, object]
) -> Path:
    """Return a folder of sample data, made now if it is not there or is damaged.

    Args:
        name: Name of the folder below the cache: kind, version of the recipe and everything the bytes depend on, so
            that other bytes never come under the same name.
        what: What it is, in words, as in "made a sample corpus".
        make: Gives the files: name (``/`` for sub-folders) and content, one after the other.
        about: What else the manifest says.

    Raises:
        SourceError: if the cache cannot be written, or what ``make`` raises.
    """
    folder = cache_folder() / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent):
            # Asked first: where locks do not work, another process may put a whole one there at any moment.
            was_there = folder.exists()
            damage = _damage(folder)
            if damage:
                if was_there:
                    _logger.warning("%s is damaged (%s) and is made again", folder, damage)
                    _discard(folder)
                _build(folder, make, about)
                _logger.info("made %s: %s", what, folder)
    except OSError as error:
        raise SourceError(
            f"{folder}: {what} cannot be written ({error.strerror}); set FLODL_PIPE_CACHE to a folder with room, or "
            "source.path to data of your own"
        ) from error
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the cache's lock. The system releases it when its holder dies."""
    with (folder / ".lock").open("ab") as file:
        with contextlib.suppress(OSError):  # a network mount without locks: the rename alone keeps the folder whole
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(folder: Path, make: Callable[[], Iterable[tuple[str, bytes]]], about: Mapping[str, object]) -> None:
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        files = {}
        for name, content in make():
            (building / name).parent.mkdir(parents=True, exist_ok=True)
            (building / name).write_bytes(content)
            files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest = {**about, "files": files}
        (building / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        building.chmod(0o755)
        try:
            building.rename(folder)
        except OSError:
            if _damage(folder):  # no complete copy by another process where locks do not work: a fault of its own
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _damage(folder: Path) -> str:
    """Return what is wrong with a folder, or nothing: its files and sizes are those of its manifest."""
    try:
        files = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]
        sizes = {name: entry["bytes"] for name, entry in files.items()}
        found = {
            path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()
        }
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "its manifest cannot be read"
    found.pop("manifest.json", None)
    return "" if sizes and found == sizes else "its files are not those of its manifest"


def _discard(folder: Path) -> None:
    """Move a folder out of the way, then delete it, so that a half-deleted one never stands under its name."""
    aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=folder.parent))
    try:
        folder.rename(aside / folder.name)
    except FileNotFoundError:
        pass  # another process was quicker
    finally:
        shutil.rmtree(aside, ignore_errors=True)
