"""A path, a list, a glob pattern or a folder -> the files meant, in an order that every machine agrees on.

- Files are sorted by name, by Unicode code point: ``part-10`` comes before ``part-2``; pad the numbers. The order in
  which the file system lists them never matters. The entries of a list keep the order given.
- A path that exists is taken literally, even if it holds ``*``, ``?`` or ``[``; only otherwise is it a pattern. The
  folders that a pattern begins with, as far as they exist, are literal too.
- In a folder, hidden files (``.name``) are skipped, sub-folders are not entered, and only files with the wanted
  suffixes are taken; everything else is reported as foreign.

Remote addresses follow the same rules, as far as their stores can list (:mod:`flodl_pipe.storage.remote_listing`). A
list names local places or remote ones, not both.
"""

import errno
import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flodl_pipe.errors import SourceError
from flodl_pipe.storage.address import local_path, require_one_kind
from flodl_pipe.storage.remote_address import is_remote, redacted
from flodl_pipe.storage.remote_listing import expand_remote

__all__ = ["Listing", "list_files"]


@final
@dataclass(frozen=True)
class Listing:
    """The files of a source.

    Attributes:
        files: Absolute paths or addresses, in the order they are read.
        foreign: What lay beside them and was left out; folders end with ``/``.
    """

    files: tuple[str, ...]
    foreign: tuple[str, ...] = ()


def list_files(path: str | Sequence[str], *, suffixes: Sequence[str]) -> Listing:
    """Expand what the user wrote to files.

    Args:
        path: A file, a folder, a glob pattern (``**`` enters sub-folders), or a list of them; local or remote.
        suffixes: Endings that files of a folder must have, for example ``(".npy",)``; files named one by one or by a
            pattern may be called anything.

    Raises:
        SourceError: if something does not exist, matches nothing, may not be read, or is named twice, or if local and
            remote places are mixed.
    """
    paths = [path] if isinstance(path, str) else path
    remote = any(map(is_remote, paths))
    require_one_kind(paths)
    if remote:
        parts = [Listing(tuple(files), tuple(foreign)) for files, foreign in expand_remote(paths, suffixes)]
    else:
        parts = [_expand(local_path(one), suffixes) for one in paths]
    files = tuple(name for part in parts for name in part.files)
    if not files:
        raise SourceError("the list of paths is empty; name at least one file, folder or pattern")
    twice = sorted(name for name in set(files) if files.count(name) > 1) if len(set(files)) < len(files) else ()
    if twice:
        raise SourceError(f"{redacted(twice[0]) if remote else twice[0]} is named twice; name each file once")
    for name in files if not remote else ():
        _require_readable(name)
    return Listing(files, tuple(name for part in parts for name in part.foreign))


def _expand(path: str, suffixes: Sequence[str]) -> Listing:
    try:
        mode = Path(path).lstat().st_mode
        if stat.S_ISLNK(mode):
            mode = Path(path).stat().st_mode
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
        folder, rest = _existing_folder(path)
        if missing and glob.has_magic(rest):
            return _matching(path, folder, rest)
        if os.path.islink(path):  # noqa: PTH114 - Path.is_link raises where this answers
            raise SourceError(f"{path}: the link leads nowhere; restore the file it points to") from error
        if missing:
            raise SourceError(f"{path} does not exist; correct source.path") from error
        raise SourceError(f"{path}: {error.strerror}; correct its permissions or the path") from error
    return _directory(path, suffixes) if stat.S_ISDIR(mode) else Listing((path,))


def _directory(path: str, suffixes: Sequence[str]) -> Listing:
    files, foreign = [], []
    for name, is_dir in _visible(path):
        if is_dir:
            foreign.append(f"{name}/")
        elif name.endswith(tuple(suffixes)):
            files.append(str(Path(path, name)))
        else:
            foreign.append(name)
    if not files:
        endings = " or ".join(suffixes)
        found = f"it holds {', '.join(sorted(foreign)[:5])}" if foreign else "it is empty (is a mount missing?)"
        raise SourceError(
            f"{path}: no file ends in {endings}; {found}. Correct source.path, or name files by a pattern"
        )
    return Listing(tuple(sorted(files)), tuple(sorted(foreign)))


def _visible(path: str) -> Iterator[tuple[str, bool]]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    yield entry.name, entry.is_dir()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}; correct the permissions of the folder") from error


def _existing_folder(path: str) -> tuple[str, str]:
    """Split an absolute path after the last folder, from the root on, that exists by that name."""
    folder, *parts = Path(path).parts
    while parts and os.path.isdir(Path(folder, parts[0])):  # noqa: PTH112 - Path.is_dir raises for a name too long
        folder = str(Path(folder, parts.pop(0)))
    return folder, str(Path(*parts))


def _matching(pattern: str, folder: str, rest: str) -> Listing:
    full = str(Path(glob.escape(folder), rest))
    found = sorted(glob.glob(full, recursive=True))  # noqa: PTH207 - Path.glob matches hidden files
    files = tuple(name for name in found if not Path(name).is_dir())
    if not files:
        raise SourceError(f"{pattern}: no file matches; correct the pattern in source.path")
    return Listing(files, tuple(f"{Path(name).name}/" for name in found if Path(name).is_dir()))


def _require_readable(path: str) -> None:
    effective = os.access in os.supports_effective_ids
    if not os.access(path, os.R_OK, effective_ids=effective):
        reason = "Permission denied" if Path(path).exists() else "No such file or directory (or a link to nowhere)"
        raise SourceError(f"{path}: {reason}; make every file readable, or leave it out of source.path")
