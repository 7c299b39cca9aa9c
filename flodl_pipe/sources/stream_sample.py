"""A small real text corpus as it would be published: JSON lines in gzip, out of Python's own standard library.

::

    <cache>/flodl_pipe/sample_documents-1-py3.12.3-zlib1.3/
        manifest.json
        documents/part-0.jsonl.gz .. part-7.jsonl.gz       {"path": "json/decoder.py", "text": "..."}

Documents are dealt over the files one by one, 4 MiB of text in all. The same Python and zlib give the same bytes.
"""

import gzip
import json
import platform
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.sources.sample_data import standard_library
from flodl_pipe.sources.sample_folder import sample_folder
from flodl_pipe.units import format_count

__all__ = ["sample_documents", "sample_documents_fact"]

_VERSION = 1
_NUM_FILES = 8
_MAX_BYTES = 4 << 20
_MIN_BYTES = 1 << 16


def sample_documents() -> Path:
    """Return the folder of the sample's files, made now if it is not there or is damaged.

    Raises:
        SourceError: if the standard library has no sources here, or the cache cannot be written.
    """
    python = platform.python_version()
    about = {"version": _VERSION, "python": python, "zlib": zlib.ZLIB_RUNTIME_VERSION, "text_key": "text"}
    name = f"sample_documents-{_VERSION}-py{python}-zlib{zlib.ZLIB_RUNTIME_VERSION}"
    return sample_folder(name, "a sample text corpus out of Python's standard library", _files, about) / "documents"


def sample_documents_fact() -> Fact:
    """Return what to tell about the data: that it is a sample, and of what."""
    return Fact("sample data", f"Python {platform.python_version()}'s standard library, one document a file")


def _files() -> Iterator[tuple[str, bytes]]:
    lines: list[list[str]] = [[] for _ in range(_NUM_FILES)]
    root = Path(sysconfig.get_path("stdlib"))
    held = number = 0
    for path in standard_library(root):
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            continue  # the library has a few in other encodings
        if held + len(text) > _MAX_BYTES:
            break
        document = {"path": path.relative_to(root).as_posix(), "text": text}
        lines[number % _NUM_FILES].append(json.dumps(document, ensure_ascii=False) + "\n")
        held, number = held + len(text), number + 1
    if held < _MIN_BYTES or number < _NUM_FILES:
        raise SourceError(
            f"{root} holds {format_count(held)} characters of Python sources, too few for a sample corpus (zipped or "
            "compiled installations have none); set source.path to data of your own"
        )
    for file, part in enumerate(lines):
        yield f"documents/part-{file}.jsonl.gz", gzip.compress("".join(part).encode(), compresslevel=6, mtime=0)
