"""What a folder's disk has, and what the disk stage may take of it.

The file system is found in ``mountinfo``: the mount whose point is the longest beginning of the folder's real path, the
later one where two share a point. A stage on the network would be slower than the source it relieves, or fail in ways
of its own, and is refused. A tmpfs is memory: it is allowed with a warning, and is to be charged to the host share.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flodl_pipe.errors import StagingError
from flodl_pipe.memory.budget import Grant
from flodl_pipe.units import format_bytes

__all__ = ["DiskFacts", "disk_grant", "memory_warning", "probe_disk"]

_MEMORY_TYPES = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_NETWORK = (
    "nfs nfs3 nfs4 cifs smb3 smbfs 9p afs ncpfs lustre glusterfs ceph gpfs beegfs fhgfs panfs orangefs pvfs2 wekafs "
    "moosefs coda"
)
_NETWORK_FUSE = (
    "sshfs nfs smbnetfs glusterfs ceph ceph-fuse lizardfs mfs moosefs juicefs s3fs mountpoint-s3 goofys gcsfuse "
    "blobfuse blobfuse2 rclone davfs curlftpfs"
)
_NETWORK_TYPES = frozenset(_NETWORK.split()) | {f"fuse.{name}" for name in _NETWORK_FUSE.split()}


@final
@dataclass(frozen=True)
class DiskFacts:
    """A folder, and the disk that it is on.

    Attributes:
        folder: Its path, as asked for.
        free_bytes: What may still be written there without special rights.
        total_bytes: Size of the disk.
        fs_type: Its file system, for example ``ext4``; empty where the platform does not tell.
        is_folder: Whether there is such a folder.
        is_writable: Whether files may be made in it.
    """

    folder: str
    free_bytes: int
    total_bytes: int
    fs_type: str
    is_folder: bool = True
    is_writable: bool = True

    @property
    def is_network(self) -> bool:
        """Whether the file system is one that is reached over a network."""
        return self.fs_type in _NETWORK_TYPES

    @property
    def is_memory(self) -> bool:
        """Whether what is written there takes host memory."""
        return self.fs_type in _MEMORY_TYPES


def probe_disk(
    folder: str | os.PathLike[str],
    *,
    mountinfo: Path = Path("/proc/self/mountinfo"),
    statvfs: Callable[[str], os.statvfs_result] = os.statvfs,
) -> DiskFacts:
    """Look at a folder and its disk; a folder that is not there is an answer, not an error.

    Args:
        folder: The folder.
        mountinfo: The table of mounts, as Linux writes it.
        statvfs: Asks a disk for its sizes.
    """
    name, real = os.fspath(folder), os.path.realpath(folder)
    fs_type = _fs_type(real, mountinfo)
    try:
        is_folder = Path(real).is_dir()
        sizes = statvfs(real)
    except OSError:
        return DiskFacts(name, 0, 0, fs_type, is_folder=False, is_writable=False)
    return DiskFacts(
        folder=name,
        free_bytes=sizes.f_bavail * sizes.f_frsize,
        total_bytes=sizes.f_blocks * sizes.f_frsize,
        fs_type=fs_type,
        is_folder=is_folder,
        # The superuser may write anywhere but on a disk that is mounted for reading only.
        is_writable=is_folder and os.access(real, os.W_OK | os.X_OK) and not sizes.f_flag & os.ST_RDONLY,
    )


def disk_grant(asked_bytes: int, facts: DiskFacts, *, set_bytes: int | None = None) -> Grant:
    """Return what the disk stage may hold.

    Args:
        asked_bytes: ``loader.disk_stage``; 0 is off.
        facts: Probe of its folder.
        set_bytes: Bytes of the rows that it could hold; None where that is not known.

    Raises:
        StagingError: if the folder is missing, not writable or on a network, or the disk has less than was asked for.
    """
    if asked_bytes == 0:
        return Grant(0, "loader.disk_stage: 0, off")
    where = "loader.disk_stage_dir"
    if not facts.is_folder:
        raise StagingError(
            f"{where}={facts.folder}: there is no such folder, and the disk stage writes into one; make it, or name "
            "another"
        )
    if facts.is_network:
        raise StagingError(
            f"{where}={facts.folder} is on a network file system ({facts.fs_type}), and the disk stage must be on a "
            f"disk of this machine: reading it back would be no faster than the source; set {where} to a local folder, "
            "or loader.disk_stage=0"
        )
    if not facts.is_writable:
        raise StagingError(
            f"{where}={facts.folder}: files cannot be made there, and the disk stage is one; give this user write "
            "permission, or name another folder"
        )
    asked = f"loader.disk_stage={format_bytes(asked_bytes)}"
    free = f"{format_bytes(facts.free_bytes)} is free on the disk of {facts.folder}"
    if asked_bytes > facts.free_bytes:
        raise StagingError(f"{asked}, but {free}; lower loader.disk_stage, or set {where} to a folder on a larger disk")
    kind = f" ({facts.fs_type})" if facts.fs_type else ""
    if set_bytes is not None and set_bytes < asked_bytes:
        return Grant(set_bytes, f"all rows, of {asked}; {free}{kind}")
    return Grant(asked_bytes, f"{asked}; {free}{kind}")


def memory_warning(facts: DiskFacts, num_bytes: int) -> str | None:
    """Return what to warn of where a disk stage would lie in memory; None where it would not."""
    if not facts.is_memory:
        return None
    return (
        f"loader.disk_stage_dir={facts.folder} is a {facts.fs_type}: a disk stage of {format_bytes(num_bytes)} there "
        "takes host memory, and is charged to the host share as the RAM cache is; set loader.disk_stage_dir to a "
        "folder on a disk, or loader.disk_stage=0 and leave that memory to the RAM cache"
    )


def _fs_type(real: str, mountinfo: Path) -> str:
    """Return the type of the file system that a real path is on, or an empty string."""
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""  # not Linux
    best, found = -1, ""
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields, types = before.split(), after.split()
        if not separator or len(fields) < 5 or not types:
            continue
        point = _unescaped(fields[4]).rstrip("/")
        if (real == point or real.startswith(point + "/")) and len(point) >= best:
            best, found = len(point), types[0]
    return found


def _unescaped(text: str) -> str:
    r"""Return a path without the kernel's octal escapes: ``\040`` is a space."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text
