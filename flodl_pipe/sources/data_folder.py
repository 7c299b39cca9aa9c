"""A data set that is a folder of files with published names, here or in a remote store.

A local folder is listed once, so that a missing file is named together with what lies there instead. A remote one
cannot be listed by every store: its files are found missing when they are opened.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.containers import refuse_container
from flodl_pipe.storage.address import local_path
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.storage.remote_address import is_remote

__all__ = ["DataFolder", "read_head", "refuse_archive", "stands_alone"]

_HEAD_BYTES = 512
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_FETCH = "or download the set with job=fetch"


@final
class DataFolder:
    """The folder of a data set.

    Args:
        address: Local path or remote address.

    Attributes:
        address: As given, without a slash at its end.
        is_remote: Whether it cannot be listed.
        entries: Names of what lies in a local folder, folders with ``/`` at their end; empty for a remote one.

    Raises:
        SourceError: if a local folder does not exist, may not be read, or is a file.
    """

    def __init__(self, address: str) -> None:
        self.is_remote = is_remote(address)
        self.address = (address if self.is_remote else local_path(address)).rstrip("/") or "/"
        self.entries: frozenset[str] = frozenset() if self.is_remote else frozenset(_list(self.address))

    def join(self, name: str) -> str:
        """Return the address of a file in the folder; an absolute path or an address stands for itself."""
        return name if stands_alone(name) else f"{self.address}/{name}"

    def lacks(self, name: str) -> bool:
        """Return whether a file is known not to be in the folder; of one in a sub-folder nothing is known."""
        return not self.is_remote and "/" not in name and name not in self.entries

    def missing(self, names: Sequence[str], what: str) -> SourceError:
        """Return the error for files that are not there.

        Args:
            names: Their names.
            what: What they belong to and all that it consists of, in words.
        """
        shown = sorted(entry for entry in self.entries if not entry.startswith("."))
        held = f"it holds {', '.join(shown[:5])}{', ...' if len(shown) > 5 else ''}" if shown else "it is empty"
        inside = next((entry for entry in shown if entry.endswith("/")), None)
        deeper = f"set source.path to {self.address}/{inside} if they are there, " if inside else ""
        verb = "is" if len(names) == 1 else "are"
        return SourceError(
            f"{self.address}: {', '.join(names)} {verb} missing: {what}; {held}. Copy what is missing, {deeper}name "
            f"other files in source.files, {_FETCH}"
        )


def stands_alone(name: str) -> bool:
    """Return whether a file's name says where it is without a folder: an absolute path or an address."""
    return "://" in name or Path(name).is_absolute()


def _list(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
    except FileNotFoundError as error:
        raise SourceError(f"{path} does not exist; correct source.path, {_FETCH}") from error
    except NotADirectoryError as error:
        blobs = open_blobs([path])
        refuse_archive(path, read_head(blobs, 0))
        raise SourceError(
            f"{path}: is a file; source.path names the folder of the data set, and source.files single files"
        ) from error
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}; correct the permissions of the folder") from error


def read_head(blobs: Blobs, blob: int) -> bytes:
    """Return the first bytes of a file, enough to tell what it is."""
    head = np.empty(min(int(blobs.sizes[blob]), _HEAD_BYTES), dtype=np.uint8)
    blobs.read_range(blob, 0, head)
    return head.tobytes()


def refuse_archive(name: str, head: bytes) -> None:
    """Refuse a file that is packed or an archive.

    Args:
        name: Path, for the message.
        head: What :func:`read_head` returned.

    Raises:
        SourceError: naming the file, what it is, and what to do.
    """
    if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC:
        raise SourceError(
            f"{name}: it is a tar archive; unpack it (tar -xf) and give the folder with the files, {_FETCH}"
        )
    if head.startswith(b"\x1f\x8b"):
        raise SourceError(
            f"{name}: it is gzip-compressed, such as a .tar.gz archive is; unpack it (tar -xzf) and give the folder "
            f"with the files, {_FETCH}"
        )
    refuse_container(name, head)
