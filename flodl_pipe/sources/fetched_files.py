"""What is in a data folder, against what should be there.

A file that was downloaded as it is has its published digest. A file out of an archive has the digest noted in
``.fetched.json`` when it was unpacked; the note holds as long as it belongs to the published archive.
"""

import contextlib
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.known_sets import Content, KnownFile, KnownSet, Member
from flodl_pipe.units import format_count

__all__ = ["MANIFEST", "Found", "check_file", "check_member", "read_manifest", "sync_folder", "write_manifest"]

MANIFEST = ".fetched.json"
"""Name of the note."""
_KIND = "flodl_pipe fetch"
_VERSION = 1
_CHUNK_BYTES = 1 << 20


@final
@dataclass(frozen=True)
class Found:
    """A file of a set, in its folder.

    Attributes:
        name: Its name.
        num_bytes: Its size.
        sha256: Its digest.
        how: How it came there, in words.
    """

    name: str
    num_bytes: int
    sha256: str
    how: str


def check_file(file: KnownFile, folder: Path) -> Found | None:
    """Return a file that lies in a folder, None if it does not.

    Raises:
        SourceError: if there is one and it is not the published one.
        OSError: if it cannot be read.
    """
    path = folder / file.name
    if not _is_there(path):
        plain = folder / file.name.removesuffix(".gz")
        if file.content is None or plain == path or not _is_there(plain):
            return None
        found = _digest(plain)
        if found != file.content:
            raise _wrong(plain, found, file.content, "the unpacked file, as published,")
        return Found(file.name, found.num_bytes, found.sha256, f"kept: unpacked, as {plain.name}")
    found = _digest(path)
    if (found.num_bytes, found.sha256) == (file.num_bytes, file.sha256):
        return Found(file.name, found.num_bytes, found.sha256, "kept: it was there")
    if file.content is not None and _unpacked(path, file.content.num_bytes) == file.content:
        return Found(
            file.name, found.num_bytes, found.sha256, "kept: it was there, packed by another gzip, the content right"
        )
    raise _wrong(path, found, Content(file.num_bytes, file.sha256), f"published ({file.published})")


def check_member(member: Member, folder: Path, known: Mapping[str, Content]) -> Found | None:
    """Return a file of an archive that lies in a folder, None if it does not or nothing is known of it.

    Args:
        member: The file.
        folder: Where.
        known: Sizes and digests, as noted or as just unpacked.

    Raises:
        SourceError: if there is one and it is another.
        OSError: if it cannot be read.
    """
    path = folder / member.name
    if not _is_there(path):
        return None
    expected = known.get(member.name)
    if expected is None:
        num_bytes = path.stat().st_size
        if member.num_bytes is not None and num_bytes != member.num_bytes:
            raise _wrong(path, _digest(path), Content(member.num_bytes, "unknown before unpacking"), "published")
        return None
    found = _digest(path)
    if found != expected:
        raise _wrong(path, found, expected, "in the published archive")
    return Found(member.name, found.num_bytes, found.sha256, "kept: it was there")


def _is_there(path: Path) -> bool:
    if path.is_file():
        return True
    if path.is_symlink() or path.exists():
        what = "a link that leads nowhere" if path.is_symlink() and not path.exists() else "no regular file"
        raise SourceError(f"{path} is {what}, and a file of the data set has this name; move it away and fetch again")
    return False


def _wrong(path: Path, found: Content, expected: Content, whose: str) -> SourceError:
    return SourceError(
        f"{path} is there and is another file, so it is not replaced:\n"
        f"  it has {format_count(found.num_bytes)} bytes, sha256 {found.sha256}\n"
        f"  {whose} {format_count(expected.num_bytes)} bytes, sha256 {expected.sha256}\n"
        f"  move it away or remove it and fetch again, or, if it is data of your own, set data_dir to another folder"
    )


def _digest(path: Path) -> Content:
    with path.open("rb") as file:
        return _digest_of(file)


def _digest_of(file: IO[bytes] | gzip.GzipFile, most: int | None = None) -> Content:
    digest, num_bytes = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        num_bytes += len(chunk)
        if most is not None and num_bytes > most:
            break
    return Content(num_bytes, digest.hexdigest())


def _unpacked(path: Path, most: int) -> Content | None:
    """Return what a gzip file holds, as far as ``most`` bytes and a little; None if it is damaged or none."""
    with contextlib.suppress(gzip.BadGzipFile, EOFError, zlib.error), gzip.open(path) as file:
        return _digest_of(file, most)
    return None


def read_manifest(known: KnownSet, folder: Path) -> dict[str, Content]:
    """Return the noted sizes and digests of the files of an archive, by name; empty if there is no note that holds."""
    try:
        note = json.loads((folder / MANIFEST).read_bytes())
        files = {name: _content(entry) for name, entry in note["files"].items()}
        holds = (note["kind"], note["version"], note["sha256"]) == (_KIND, _VERSION, known.files[0].sha256)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return files if holds and set(files) == set(known.names()) else {}


def _content(entry: Any) -> Content:
    num_bytes, sha256 = entry["bytes"], entry["sha256"]
    if type(num_bytes) is not int or not isinstance(sha256, str) or len(sha256) != 64:
        raise ValueError(entry)
    return Content(num_bytes, sha256)


def write_manifest(known: KnownSet, folder: Path, files: Mapping[str, Content]) -> None:
    """Note the sizes and digests of the files of an archive."""
    note = {
        "kind": _KIND,
        "version": _VERSION,
        "archive": known.files[0].name,
        "sha256": known.files[0].sha256,
        "files": {name: {"bytes": content.num_bytes, "sha256": content.sha256} for name, content in files.items()},
    }
    beside = folder / f"{MANIFEST}.part"
    with beside.open("w", encoding="utf-8") as file:
        json.dump(note, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / MANIFEST)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
