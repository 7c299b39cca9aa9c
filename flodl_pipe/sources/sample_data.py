"""A small real corpus, made on the machine it is used on, so that every recipe runs without a download.

The text is Python's own standard library, as installed: real source code, some 12 MB of it. Each byte is a token
(0 .. 255) and a token 256 ends each file. The first 4 Mi tokens are written as uint16 over four shards::

    <cache>/flodl_pipe/sample_corpus-1-py3.12.3-raw/
        manifest.json
        shards/part-0-00000.npy .. part-3-00000.npy

Layout ``raw`` is what OLMo's shards are: headerless, though named ``.npy``. Layout ``npy`` is true ``.npy``. The same
Python gives the same bytes. The folder is written under another name and renamed when complete, so it is there whole
or not at all; a lock makes a second process wait for the first and then use what that one made.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import logging
import os
import platform
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.units import format_count

__all__ = ["LAYOUTS", "NUM_TOKENS", "SAMPLE_VOCAB_SIZE", "cache_folder", "sample_corpus", "sample_fact"]

_logger = logging.getLogger("flodl_pipe")

LAYOUTS = ("raw", "npy")
NUM_TOKENS = 4 * 2**20
"""Most tokens of the corpus."""
SAMPLE_VOCAB_SIZE = 257
"""256 byte values and the end of a document."""

_VERSION = 1
_NUM_SHARDS = 4
_MIN_TOKENS = 2**16
_END_OF_DOCUMENT = 256
# Not part of every installation, or not text a person wrote.
_LEFT_OUT = {
    *("site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip", "distutils"),
    *("turtledemo", "__pycache__", "sitecustomize.py", "usercustomize.py"),
}
# Generated for one machine.
_MACHINE = ("_sysconfigdata", "_sysconfig_vars", "config-")


def cache_folder() -> Path:
    """Return the folder for data that can be made again: ``$FLODL_PIPE_CACHE``, else one in the user's cache folder."""
    own = os.environ.get("FLODL_PIPE_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared and Path(shared).is_absolute() else Path.home() / ".cache") / "flodl_pipe"


def sample_corpus(layout: str) -> Path:
    """Return the folder of the sample's shards, made now if it is not there or is damaged.

    Args:
        layout: One of ``LAYOUTS``.

    Raises:
        SourceError: if the layout is unknown, the standard library has no sources here, or the cache cannot be
            written.
    """
    if layout not in LAYOUTS:
        raise SourceError(f"there is no sample corpus in layout {layout!r}; set source.format to one of {LAYOUTS}")
    folder = cache_folder() / f"sample_corpus-{_VERSION}-py{platform.python_version()}-{layout}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent):
            damage = _damage(folder)
            if damage:
                if folder.exists():
                    _logger.warning("%s is damaged (%s) and is made again", folder, damage)
                    _discard(folder)
                _build(folder, layout)
                _logger.info("made a sample corpus out of Python's standard library: %s", folder)
    except OSError as error:
        raise SourceError(
            f"{folder}: the sample corpus cannot be written ({error.strerror}); set FLODL_PIPE_CACHE to a folder with "
            "room, or source.path to data of your own"
        ) from error
    return folder / "shards"


def sample_fact() -> Fact:
    """Return what to tell about the data: that it is a sample, and of what."""
    return Fact("sample data", f"Python {platform.python_version()}'s standard library, one token a byte")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the cache's lock. The system releases it when its holder dies."""
    with (folder / ".lock").open("ab") as file:
        with contextlib.suppress(OSError):  # a network mount without locks: the rename alone keeps the folder whole
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _documents(root: Path) -> list[Path]:
    """Return the sources of the standard library, sorted by their path below it."""
    found: list[tuple[str, Path]] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith(_MACHINE)]
        for name in files:
            if name.endswith(".py") and name not in _LEFT_OUT and not name.startswith(_MACHINE):
                path = Path(folder, name)
                found.append((path.relative_to(root).as_posix(), path))
    return [path for _, path in sorted(found)]


def _tokens() -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    root = Path(sysconfig.get_path("stdlib"))
    corpus = np.empty(NUM_TOKENS, dtype="<u2")
    filled = 0
    for path in _documents(root):
        text = np.frombuffer(path.read_bytes(), dtype=np.uint8)[: NUM_TOKENS - filled]
        corpus[filled : filled + len(text)] = text
        filled += len(text)
        if filled == NUM_TOKENS:
            break
        corpus[filled] = _END_OF_DOCUMENT
        filled += 1
    if filled < _MIN_TOKENS:
        raise SourceError(
            f"{root} holds {format_count(filled)} bytes of Python sources, too few for a sample corpus (zipped or "
            "compiled installations have none); set source.path to data of your own"
        )
    return corpus[:filled]


def _build(folder: Path, layout: str) -> None:
    tokens = _tokens()
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        (building / "shards").mkdir()
        files = {}
        for shard, part in enumerate(np.array_split(tokens, _NUM_SHARDS)):
            content = part.tobytes() if layout == "raw" else _npy(part)
            name = f"part-{shard}-00000.npy"
            (building / "shards" / name).write_bytes(content)
            files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest = {
            "version": _VERSION,
            "python": platform.python_version(),
            "layout": layout,
            "dtype": "uint16",
            "vocab_size": SAMPLE_VOCAB_SIZE,
            "end_of_document": _END_OF_DOCUMENT,
            "tokens": len(tokens),
            "files": files,
        }
        (building / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        building.chmod(0o755)
        try:
            building.rename(folder)
        except OSError:
            if _damage(folder):  # no complete copy by another process where locks do not work: a fault of its own
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _npy(part: np.ndarray[tuple[int], np.dtype[np.uint16]]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, part, allow_pickle=False)
    return buffer.getvalue()


def _damage(folder: Path) -> str:
    """Return what is wrong with a cached corpus, or nothing: its files and sizes are those of its manifest."""
    try:
        files = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]
        sizes = {name: entry["bytes"] for name, entry in files.items()}
        found = {path.name: path.stat().st_size for path in (folder / "shards").iterdir()}
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "its manifest cannot be read"
    if len(sizes) != _NUM_SHARDS or found != sizes:
        return "its files are not those of its manifest"
    return ""


def _discard(folder: Path) -> None:
    """Move a folder out of the way, then delete it, so that a half-deleted one never stands under its name."""
    aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=folder.parent))
    try:
        folder.rename(aside / folder.name)
    except FileNotFoundError:
        pass  # another process was quicker
    finally:
        shutil.rmtree(aside, ignore_errors=True)
