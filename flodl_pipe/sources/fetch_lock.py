"""One fetch at a time in a folder.

The lock is on a file, which its holder removes when done. Somebody who waited for it may then hold a lock on a file
that is gone, so whoever gets it looks whether its name still leads to it, and else tries again.
"""

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["fetch_lock"]

_log = logging.getLogger("flodl_pipe")


@contextlib.contextmanager
def fetch_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, made if it is not there; wait, aloud, while another process holds it.

    Raises:
        OSError: if the folder cannot be written.
    """
    path = folder / ".fetch.lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)  # another fetch that came to nothing may have removed it
        try:
            lock = path.open("ab")
        except FileNotFoundError:
            continue
        with lock as file:
            if not _acquired(file.fileno(), folder) or not _leads_to(path, file.fileno()):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _acquired(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.info("another fetch is at work in %s; waiting for it", folder)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        _log.warning("%s: its file system has no locks; run one fetch at a time there", folder)
    return True


def _leads_to(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
