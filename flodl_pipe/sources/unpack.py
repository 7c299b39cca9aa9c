"""Wanted files out of a ``.tar.gz``, and nothing else.

The archive is read as a stream, front to back. A member is written only if its path is one of the wanted ones, if it is
a plain file and if it has the expected size, and it is written under a name of ours, never under one that the archive
gives. Links, devices, sparse files and paths that lead elsewhere have no way out of it.
"""

import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.known_sets import Content, Member
from flodl_pipe.units import format_count

__all__ = ["SMALL_BYTES", "unpack"]

SMALL_BYTES = 64 << 10
"""Most bytes of a member whose size is not known beforehand."""
_CHUNK_BYTES = 1 << 20


def unpack(
    archive: Path, members: Sequence[Member], into: Path, progress: Callable[[int], None] = lambda _: None
) -> dict[str, Content]:
    """Write wanted members of an archive into a folder.

    Args:
        archive: The ``.tar.gz``.
        members: What is wanted.
        into: Folder to write to, empty; each member gets its own name there.
        progress: Told the bytes written so far.

    Returns:
        Size and digest of each file written, by name.

    Raises:
        SourceError: if a wanted member is missing, comes twice, is no plain file or has another size, if any member
            is larger than all that is wanted, or if the archive is damaged.
        OSError: if a file cannot be written.
    """
    wanted = {member.path: member for member in members}
    most = sum(SMALL_BYTES if member.num_bytes is None else member.num_bytes for member in members)
    found: dict[str, Content] = {}
    done = 0
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for info in tar:
                if info.size > most:
                    raise _refused(archive, info, f"has {format_count(info.size)} bytes, more than all that is wanted")
                member = wanted.get(info.name.removeprefix("./"))
                if member is None:
                    continue
                _check(archive, info, member, found)
                stream = tar.extractfile(info)
                if stream is None:
                    raise _refused(archive, info, "holds no bytes of its own")
                found[member.name] = _write(stream, info.size, into / member.name, progress, done)
                done += info.size
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise SourceError(f"{archive}: damaged ({error}); remove it and fetch again") from error
    missing = sorted(set(wanted) - {path for path, member in wanted.items() if member.name in found})
    if missing:
        raise SourceError(f"{archive}: lacks {', '.join(missing)}; it is not the archive that is known by its name")
    return found


def _check(archive: Path, info: tarfile.TarInfo, member: Member, found: dict[str, Content]) -> None:
    if member.name in found:
        raise _refused(archive, info, "comes twice")
    if not info.isreg() or info.issparse():
        raise _refused(archive, info, f"must be a plain file, and is of tar's type {info.type!r}")
    if member.num_bytes is not None and info.size != member.num_bytes:
        raise _refused(
            archive, info, f"has {format_count(info.size)} bytes, and must have {format_count(member.num_bytes)}"
        )
    if info.size > SMALL_BYTES and member.num_bytes is None:
        raise _refused(archive, info, f"has {format_count(info.size)} bytes, and may have {format_count(SMALL_BYTES)}")


def _refused(archive: Path, info: tarfile.TarInfo, what: str) -> SourceError:
    return SourceError(f"{archive}: member {info.name!r} {what}; it is not the archive that is known by its name")


def _write(stream: IO[bytes], num_bytes: int, path: Path, progress: Callable[[int], None], before: int) -> Content:
    digest = hashlib.sha256()
    written = 0
    with path.open("xb") as file:
        while chunk := stream.read(min(_CHUNK_BYTES, num_bytes - written)):
            file.write(chunk)
            digest.update(chunk)
            written += len(chunk)
            progress(before + written)
        file.flush()
        os.fsync(file.fileno())
    if written != num_bytes:
        raise EOFError(f"{path.name} ends after {format_count(written)} of {format_count(num_bytes)} bytes")
    return Content(written, digest.hexdigest())
