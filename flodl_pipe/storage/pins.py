"""What a file was when it was opened, and whether it still is.

A pin is one ``os.stat``: size, device, inode and times. Reads compare it with a fresh ``os.stat`` of the same *path*
after the bytes were taken, so a file that was shortened, rewritten, replaced or deleted meanwhile is noticed even where
the kernel itself reports nothing: pages past a new end of file, for example, read as zeros.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.storage import kernel
from flodl_pipe.units import format_count

__all__ = ["FilePin", "PinWatch", "pin_file", "require_pinned", "require_status"]

_REMEDY = (
    "files must stay as they are while a run reads them: restore the file, or start again so that the new one is read"
)


class FilePin(NamedTuple):
    """Identity of a file's content at one moment."""

    size: int
    device: int
    inode: int
    mtime_ns: int
    ctime_ns: int


def _pin(status: os.stat_result) -> FilePin:
    return FilePin(status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def pin_file(path: str) -> FilePin:
    """Return the pin of a regular file; links are followed.

    Raises:
        SourceError: if there is no such file, it may not be seen, or it is no regular file.
    """
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SourceError(f"{path}: {reason}; correct the path or the permissions") from error
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{path}: not a regular file; a source reads regular files only")
    return _pin(status)


def require_status(path: str, pin: FilePin, status: os.stat_result, *, offset: int | None = None) -> None:
    """Compare a fresh status with the pin: size, identity and modification time.

    The change time is left out: it moves when a backup makes a hard link or an owner changes, which is no reason to
    stop in the middle of an epoch. :func:`require_pinned` with ``strict`` compares it as well.

    Raises:
        ChangedError: naming file, offset if given, and what differs.
    """
    now = (status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns)
    if now == pin[:4] and status.st_nlink:
        return
    raise ChangedError(f"{path}{_at(offset)}: {_difference(pin, _pin(status), status.st_nlink)}; {_REMEDY}")


def require_pinned(path: str, pin: FilePin, *, strict: bool = False, offset: int | None = None) -> None:
    """Compare the file that stands at ``path`` now with its pin.

    Args:
        path: Absolute path.
        pin: What the file was.
        strict: Compare the change time too, which tells a rewrite whose modification time was set back.
        offset: Byte that was being read, for the message.

    Raises:
        ChangedError: if the file is gone or differs.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - once per file and read: Path.stat costs twice as much
    except FileNotFoundError as error:
        raise ChangedError(f"{path}{_at(offset)}: deleted or renamed after it was opened; {_REMEDY}") from error
    except OSError as error:
        raise ChangedError(f"{path}{_at(offset)}: no longer reachable ({error.strerror}); {_REMEDY}") from error
    require_status(path, pin, status, offset=offset)
    if strict and status.st_ctime_ns != pin.ctime_ns:
        raise ChangedError(
            f"{path}{_at(offset)}: changed after it was opened (its change time moved: the content was rewritten with "
            f"an old modification time, or mode, owner or links were changed); {_REMEDY}"
        )


@final
class PinWatch:
    """Compares some of many files with their pins, at 1 us a file: what :func:`require_pinned` does for one.

    Args:
        names: Absolute path of every file.
        pins: What each was.
    """

    def __init__(self, names: Sequence[str], pins: Sequence[FilePin]) -> None:
        self._paths = [os.fsencode(name) for name in names]
        self._identities = [kernel.identity(pin.size, pin.device, pin.inode, pin.mtime_ns) for pin in pins]

    def changed(self, blobs: Sequence[int]) -> int | None:
        """Return the first of these files that is gone or not the pinned one any more, None if all are."""
        for blob in blobs:
            if not kernel.has_identity(self._paths[blob], self._identities[blob]):
                return blob
        return None


def _at(offset: int | None) -> str:
    return "" if offset is None else f", byte {format_count(offset)}"


def _difference(pin: FilePin, now: FilePin, num_links: int) -> str:
    if not num_links:
        return "deleted after it was opened"
    if (now.device, now.inode) != (pin.device, pin.inode):
        return "replaced by another file after it was opened"
    if now.size != pin.size:
        return f"changed after it was opened: expected {format_count(pin.size)} bytes, found {format_count(now.size)}"
    return "rewritten after it was opened: its modification time moved"
