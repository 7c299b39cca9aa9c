"""A small real corpus, made on the machine it is used on, so that every recipe runs without a download.

The text is Python's own standard library, as installed: real source code, some 12 MB of it. Each byte is a token
(0 .. 255) and a token 256 ends each file. The first 4 Mi tokens are written as uint16 over four shards::

    <cache>/flodl_pipe/sample_corpus-2-py3.12.3-raw/
        manifest.json
        shards/part-0-00000.npy .. part-3-00000.npy

Layout ``raw`` is what OLMo's shards are: headerless, though named ``.npy``. Layout ``npy`` is true ``.npy``. The same
Python gives the same bytes.
"""

import io
import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.sources.sample_folder import sample_folder
from flodl_pipe.units import format_count

__all__ = ["LAYOUTS", "NUM_TOKENS", "SAMPLE_VOCAB_SIZE", "sample_corpus", "sample_fact", "standard_library"]

LAYOUTS = ("raw", "npy")
NUM_TOKENS = 4 * 2**20
"""Most tokens of the corpus."""
SAMPLE_VOCAB_SIZE = 257
"""256 byte values and the end of a document."""

_VERSION = 2
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
    about = {
        "version": _VERSION,
        "python": platform.python_version(),
        "layout": layout,
        "dtype": "uint16",
        "vocab_size": SAMPLE_VOCAB_SIZE,
        "end_of_document": _END_OF_DOCUMENT,
    }
    name = f"sample_corpus-{_VERSION}-py{platform.python_version()}-{layout}"
    what = "a sample corpus out of Python's standard library"
    return sample_folder(name, what, lambda: _shards(layout), about) / "shards"


def sample_fact() -> Fact:
    """Return what to tell about the data: that it is a sample, and of what."""
    return Fact("sample data", f"Python {platform.python_version()}'s standard library, one token a byte")


def standard_library(root: Path) -> list[Path]:
    """Return the source files of the standard library at ``root``, sorted by their path below it."""
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
    for path in standard_library(root):
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


def _shards(layout: str) -> Iterator[tuple[str, bytes]]:
    for shard, part in enumerate(np.array_split(_tokens(), _NUM_SHARDS)):
        yield f"shards/part-{shard}-00000.npy", part.tobytes() if layout == "raw" else _npy(part)


def _npy(part: np.ndarray[tuple[int], np.dtype[np.uint16]]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, part, allow_pickle=False)
    return buffer.getvalue()
