"""The file a run is resumed from: the loader's cursor, and the digest and steps of exactly what lies before it.

It is written whole or not at all: to a file beside it, flushed to the disk, then renamed over it. Whoever reads it,
also after a crash or a power cut, finds the last complete save. It is JSON, and is read as data only. Nothing but an
earlier save is ever replaced by it.
"""

import contextlib
import glob
import json
import os
import secrets
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from flodl_pipe.errors import ConfigError, ResumeError

__all__ = ["SavedRun", "read_saved", "require_writable", "saved_before", "write_saved"]

_KIND = "flodl_pipe run"
_VERSION = 1
_KEYS = ("kind", "version", "loader", "digest", "num_rows", "num_steps")
# A save takes some 500 bytes. What is much larger is another file.
_MAX_BYTES = 1 << 20
# Writing one takes seconds. A file beside a save that is older than this was left by a run that was killed.
_LEFTOVER_S = 3600.0
_REMEDY = "name a file that job.save wrote, or start anew without job.resume"


@final
@dataclass(frozen=True)
class SavedRun:
    """Where a run stood.

    Attributes:
        loader: State of the loader, see ``Loader.state_dict``.
        digest: Digest of all rows handed out before that place, 32 hexadecimal digits.
        num_rows: How many those were.
        num_steps: In how many steps.
    """

    loader: dict[str, Any]
    digest: str
    num_rows: int
    num_steps: int


def read_saved(path: str) -> SavedRun:
    """Read a save file.

    Raises:
        ResumeError: if it is missing, cannot be read, or is not what :func:`write_saved` wrote.
    """
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise ResumeError(f"{path}: no such file; {_REMEDY}") from None
    except OSError as error:
        raise ResumeError(f"{path}: cannot be read ({error.strerror}); {_REMEDY}") from error
    if len(raw) > _MAX_BYTES:
        raise ResumeError(f"{path}: more than {_MAX_BYTES} bytes, a save of a run has some hundred; {_REMEDY}")
    try:
        record = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ResumeError(f"{path}: damaged, {len(raw)} bytes that are not JSON; {_REMEDY}") from None
    if not isinstance(record, dict) or record.get("kind") != _KIND:
        raise ResumeError(f"{path}: JSON, but not a save of a run; {_REMEDY}")
    if record.get("version") != _VERSION:
        raise ResumeError(
            f"{path}: has version {record.get('version')!r}, and this flodl_pipe reads version {_VERSION}; resume with "
            "the flodl_pipe that wrote it"
        )
    for problem in _problems(record):
        raise ResumeError(f"{path}: damaged, {problem}; {_REMEDY}")
    return SavedRun(record["loader"], record["digest"], record["num_rows"], record["num_steps"])


def _problems(record: dict[str, Any]) -> list[str]:
    if set(record) != set(_KEYS):
        missing, extra = sorted(set(_KEYS) - set(record)), sorted(set(record) - set(_KEYS))
        return [f"keys missing: {', '.join(missing) or 'none'}, unknown: {', '.join(extra) or 'none'}"]
    problems = []
    digest = record["digest"]
    if not isinstance(digest, str) or len(digest) != 32 or set(digest) - set("0123456789abcdef"):
        problems.append(f"digest must be 32 hexadecimal digits, got {digest!r}")
    problems += [
        f"{name} must be an integer of at least 0, got {record[name]!r}"
        for name in ("num_rows", "num_steps")
        if type(record[name]) is not int or record[name] < 0
    ]
    if not isinstance(record["loader"], dict):
        problems.append(f"loader must be a loader's state, got {record['loader']!r}")
    return problems


def saved_before(path: str) -> bool:
    """Return whether a file is a save of a run, of whatever version.

    Raises:
        OSError: if there is no such file, or it cannot be read.
    """
    with Path(path).open("rb") as file:
        raw = file.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        return False
    try:
        record = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.get("kind") == _KIND


def require_writable(path: str) -> bool:
    """Find out now whether a save can be written, not hours later.

    Returns:
        Whether an earlier save lies there, which will be replaced.

    Raises:
        ConfigError: naming ``job.save``, if it cannot, or if something else than a save would be replaced.
    """
    target = Path(path)
    if "://" in path:
        raise ConfigError.at("job.save", f"{path} is an address; saves go to a local file, give a path")
    try:
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            raise ConfigError.at("job.save", f"{path} is not a regular file; give the path of a file to write")
        if not target.parent.is_dir():
            raise ConfigError.at("job.save", f"there is no folder {target.parent}; make it, or save elsewhere")
        earlier = target.exists() and target.stat().st_size > 0
        if earlier and not saved_before(path):
            raise ConfigError.at(
                "job.save",
                f"{path} exists and is not a save of a run, so it is not replaced; save elsewhere, or remove that file",
            )
        resolved = _resolved(target)
        _remove_leftovers(resolved)
        beside = _beside(resolved)
        beside.touch(exist_ok=False)
        beside.unlink()
    except OSError as error:
        raise ConfigError.at("job.save", f"{path} cannot be written ({error.strerror}); save elsewhere") from error
    return earlier


def write_saved(path: str, saved: SavedRun) -> None:
    """Replace a save file as one act, durable when this returns.

    Raises:
        ResumeError: if it cannot be written; what was there before is still there, whole.
    """
    record = {
        "kind": _KIND,
        "version": _VERSION,
        "loader": saved.loader,
        "digest": saved.digest,
        "num_rows": saved.num_rows,
        "num_steps": saved.num_steps,
    }
    target = _resolved(Path(path))
    beside = _beside(target)
    try:
        with beside.open("x", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
        # The rename itself is on the disk only when the folder is.
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ResumeError(
            f"{path}: the save at step {saved.num_steps} could not be written ({error.strerror}); make room or set "
            "job.save to another place. The save before it is whole"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _beside(target: Path) -> Path:
    # A name of its own for every write: two runs may save to one file, and neither takes the other's half.
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def _remove_leftovers(target: Path) -> None:
    for left in target.parent.glob(f".{glob.escape(target.name)}.[0-9]*-????????.part"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _LEFTOVER_S:
                left.unlink()


def _resolved(path: Path) -> Path:
    # A link stays a link: the file it names is replaced.
    return path.resolve() if path.is_symlink() else path
