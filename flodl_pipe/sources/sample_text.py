"""A small real text, made on the machine it is used on: the begin of Python's own standard library.

Whole source files, sorted by path, until about 1 MB is there; the last one is cut at a line end. The same Python gives
the same bytes. It lies in the cache as ``sample_text-1-py3.12.3/input.txt``.
"""

import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.sources.sample_data import standard_library
from flodl_pipe.sources.sample_folder import sample_folder
from flodl_pipe.units import format_count

__all__ = ["MAX_BYTES", "sample_text", "sample_text_fact"]

MAX_BYTES = 2**20
"""Most bytes of the text."""

_VERSION = 1
_MIN_BYTES = 2**16


def sample_text() -> Path:
    """Return the sample's file, made now if it is not there or is damaged.

    Raises:
        SourceError: if the standard library has no sources here, or the cache cannot be written.
    """
    about = {"version": _VERSION, "python": platform.python_version(), "encoding": "utf-8"}
    name = f"sample_text-{_VERSION}-py{platform.python_version()}"
    return sample_folder(name, "a sample text out of Python's standard library", _files, about) / "input.txt"


def sample_text_fact() -> Fact:
    """Return what to tell about the data: that it is a sample, and of what."""
    return Fact("sample data", f"Python {platform.python_version()}'s standard library as text, not Shakespeare")


def _files() -> Iterator[tuple[str, bytes]]:
    root = Path(sysconfig.get_path("stdlib"))
    content = bytearray()
    for path in standard_library(root):
        source = path.read_bytes()
        try:
            source.decode()
        except UnicodeDecodeError:
            continue  # a module in an older encoding
        content += source
        if len(content) >= MAX_BYTES:
            break
    if len(content) < _MIN_BYTES:
        raise SourceError(
            f"{root} holds {format_count(len(content))} bytes of Python sources, too few for a sample text (zipped or "
            "compiled installations have none); set source.path to a text of your own"
        )
    cut = len(content) if len(content) <= MAX_BYTES else content.rindex(b"\n", 0, MAX_BYTES) + 1
    yield "input.txt", bytes(content[:cut])
