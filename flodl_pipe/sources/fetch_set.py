"""A known data set into its folder: what is there is kept, what is missing is downloaded, nothing is replaced.

::

    <data_dir>/cifar10/
        data_batch_1.bin ...        complete and checked, or not there at all
        .fetched.json               sizes and digests of the files that came out of an archive
        .fetch/                     while something is missing: partial files; removed at the end
        .fetch.lock                 while a fetch is at work; the system frees it when its holder dies

A file gets its name by a rename, after its digest was checked. Every file that is there already is checked before
anything is downloaded, and one that is not what was published is an error: it may be somebody's work.
"""

import contextlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.default_path import UNFINISHED
from flodl_pipe.sources.download import Refused, Transfer, no_room
from flodl_pipe.sources.fetch_lock import fetch_lock
from flodl_pipe.sources.fetched_files import (
    MANIFEST,
    Found,
    check_file,
    check_member,
    read_manifest,
    sync_folder,
    write_manifest,
)
from flodl_pipe.sources.known_sets import KnownFile, KnownSet, Member
from flodl_pipe.sources.pooch_door import retrieve
from flodl_pipe.sources.unpack import SMALL_BYTES, unpack
from flodl_pipe.units import format_bytes

__all__ = ["Progress", "fetch_set"]

_log = logging.getLogger("flodl_pipe")

Progress = Callable[[str, int, int], None]
"""Told what is at work, the bytes done and the bytes in all."""

_STAGING = UNFINISHED
# Room left for everybody else on a disk that is filled by a download.
_SPARE_BYTES = 16 << 20


def fetch_set(known: KnownSet, folder: Path, mirror: str | None, progress: Progress) -> tuple[Found, ...]:
    """Make a known data set complete.

    Args:
        known: The set.
        folder: Its folder, made if it is not there.
        mirror: Address to use instead of the published ones: files lie at ``<mirror>/<set>/<file>``.
        progress: Shows how far it is.

    Returns:
        Every file of the set, and how it came there.

    Raises:
        SourceError: if a file that is there is not the published one, if no address has a file, if the folder cannot
            be written or has no room, if an archive is not what it should be, or if pooch is not installed.
    """
    there = _check(known, folder)
    if len(there) == len(known.names()):  # needs no lock and no right to write
        return _in_order(known, there)
    addresses = known.addresses if mirror is None else (f"{mirror.rstrip('/')}/{known.name}/",)
    is_new = not folder.exists()
    try:
        try:
            with fetch_lock(folder):
                there = _complete(known, folder, addresses, progress)
        finally:
            if is_new:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # if nothing came of it: to a source, an empty folder is a set without files
    except OSError as error:
        raise no_room(Path(error.filename or folder), error) from error
    return _in_order(known, there)


def _complete(known: KnownSet, folder: Path, addresses: tuple[str, ...], progress: Progress) -> dict[str, Found]:
    """Bring what is missing, while the lock is held."""
    there = _check(known, folder)  # another fetch may have been at work meanwhile
    staging = folder / _STAGING
    staging.mkdir(exist_ok=True)
    try:
        if known.members:
            _fetch_archive(known, folder, addresses, progress, there)
        else:
            missing = [file for file in known.files if file.name not in there]
            _require_room(folder, sum(_lacking(staging, file) for file in missing))
            for file in missing:
                origin = _download(file, staging, addresses, progress)
                _install(staging / file.name, folder / file.name)
                there[file.name] = Found(file.name, file.num_bytes, file.sha256, f"downloaded from {origin}")
        shutil.rmtree(staging)
    finally:
        with contextlib.suppress(OSError):
            staging.rmdir()  # if empty
    return there


def _in_order(known: KnownSet, there: dict[str, Found]) -> tuple[Found, ...]:
    return tuple(there[name] for name in known.names())


def _check(known: KnownSet, folder: Path) -> dict[str, Found]:
    """Return what is there and right, by name of the file.

    Raises:
        SourceError: naming every file that is there and wrong.
    """
    there: dict[str, Found] = {}
    wrong: list[str] = []
    manifest = read_manifest(known, folder) if known.members else {}
    for part in known.members or known.files:
        try:
            found = check_member(part, folder, manifest) if isinstance(part, Member) else check_file(part, folder)
        except SourceError as error:
            wrong.append(str(error))
        except OSError as error:
            wrong.append(f"{folder / part.name} cannot be read ({error.strerror}); give yourself the right to")
        else:
            if found is not None:
                there[part.name] = found
    if wrong:
        raise SourceError("\n".join(wrong))
    return there


def _lacking(staging: Path, file: KnownFile) -> int:
    """Return how many bytes of a file are still to come."""
    for path in (staging / file.name, _part(staging, file)):
        if path.exists():
            return max(0, file.num_bytes - path.stat().st_size)
    return file.num_bytes


def _part(staging: Path, file: KnownFile) -> Path:
    return staging / f"{file.name}.part"


def _require_room(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < num_bytes + _SPARE_BYTES:
        raise SourceError(
            f"{folder}: {format_bytes(num_bytes)} are still to be written and {format_bytes(free)} are free there "
            f"({format_bytes(_SPARE_BYTES)} are left to others); make room, or set data_dir to a folder with room"
        )


def _download(file: KnownFile, staging: Path, addresses: tuple[str, ...], progress: Progress) -> str:
    """Bring one file to the staging folder, whole and checked; returns the address it came from."""
    reasons = []
    transfer = Transfer(_part(staging, file), file.num_bytes, lambda done: progress(file.name, done, file.num_bytes))
    for address in addresses:
        url = f"{address}{file.name}"
        try:
            if _retrieved(url, file, staging, transfer):
                return address
            reasons.append(f"{url}: its bytes have another digest than the one published, sha256 {file.sha256}")
        except Refused as refused:
            reasons.append(f"{url}: {refused}")
        if address != addresses[-1]:
            _log.warning("%s; trying the next address", reasons[-1])
    raise SourceError(
        f"{file.name} could not be downloaded:\n"
        + "".join(f"  {reason}\n" for reason in reasons)
        + "try again later, or name a copy with job.mirror; a file that you have may be put into its folder by hand"
    )


def _retrieved(url: str, file: KnownFile, staging: Path, transfer: Transfer) -> bool:
    """Download from one address; once more from the first byte if bytes of several tries do not make the file."""
    if retrieve(url, file.sha256, staging, file.name, transfer):
        return True
    if not transfer.resumed:
        return False
    _log.warning("%s: parts of several tries do not make the file; downloading it from its first byte", url)
    return retrieve(url, file.sha256, staging, file.name, transfer)


def _fetch_archive(
    known: KnownSet, folder: Path, addresses: tuple[str, ...], progress: Progress, there: dict[str, Found]
) -> None:
    archive, staging = known.files[0], folder / _STAGING
    if (folder / MANIFEST).exists() and not read_manifest(known, folder):
        _log.warning(
            "%s is damaged or of another archive, and is not used: the files are compared with the archive",
            folder / MANIFEST,
        )
    # An archive that somebody put there is used, and stays.
    own = check_file(archive, folder)
    unpacked = sum(SMALL_BYTES if member.num_bytes is None else member.num_bytes for member in known.members)
    _require_room(folder, unpacked + (0 if own else _lacking(staging, archive)))
    origin = "here" if own else _download(archive, staging, addresses, progress)
    members = staging / "members"
    if members.exists():
        shutil.rmtree(members)
    members.mkdir()
    path = (folder if own else staging) / archive.name
    files = unpack(path, known.members, members, lambda done: progress(f"{archive.name}, unpacking", done, unpacked))
    wrong = []
    for member in known.members:
        try:
            found = check_member(member, folder, files)
        except SourceError as error:
            wrong.append(str(error))
        else:
            if found is not None:
                there[member.name] = found
    if wrong:
        raise SourceError("\n".join(wrong))
    for name, content in files.items():
        if name not in there:
            _install(members / name, folder / name)
            there[name] = Found(name, content.num_bytes, content.sha256, f"unpacked from {archive.name}, from {origin}")
    write_manifest(known, folder, files)


def _install(path: Path, final: Path) -> None:
    """Give a complete file its name."""
    if final.is_symlink() or final.exists():
        raise SourceError(f"{final} appeared meanwhile and is not replaced; fetch again to have it checked")
    path.rename(final)
    sync_folder(final.parent)
