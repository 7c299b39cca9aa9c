"""Small real text corpora as they would be published, out of Python's own standard library: documents, and lines.

::

    <cache>/flodl_pipe/sample_documents-1-py3.12.3-zlib1.3/
        manifest.json
        documents/part-0.jsonl.gz .. part-7.jsonl.gz       {"path": "json/decoder.py", "text": "..."}

    <cache>/flodl_pipe/sample_lines-1-py3.12.3/
        manifest.json
        lines/part-0.txt .. part-7.txt                     lines of code and of comments, 1 to 255 bytes each

Source files are dealt over the files of a corpus one by one, 4 MiB of text in all. The same Python and zlib give the
same bytes.
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

__all__ = ["sample_documents", "sample_documents_fact", "sample_lines", "sample_lines_fact"]

_VERSION = 1
_NUM_FILES = 8
_MAX_BYTES = 4 << 20
_MIN_BYTES = 1 << 16
_MAX_LINE_BYTES = 255


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


def sample_lines() -> Path:
    """Return the folder of the lines, made now if it is not there or is damaged.

    Raises:
        SourceError: if the standard library has no sources here, or the cache cannot be written.
    """
    python = platform.python_version()
    about = {"version": _VERSION, "python": python, "encoding": "utf-8"}
    name = f"sample_lines-{_VERSION}-py{python}"
    return sample_folder(name, "sample lines out of Python's standard library", _files_of_lines, about) / "lines"


def sample_lines_fact() -> Fact:
    """Return what to tell about the lines: that they are a sample, and of what."""
    return Fact("sample data", f"Python {platform.python_version()}'s standard library, a line a document")


def _files() -> Iterator[tuple[str, bytes]]:
    lines: list[list[str]] = [[] for _ in range(_NUM_FILES)]
    for number, (path, text) in enumerate(_sources()):
        document = {"path": path, "text": text}
        lines[number % _NUM_FILES].append(json.dumps(document, ensure_ascii=False) + "\n")
    for file, part in enumerate(lines):
        yield f"documents/part-{file}.jsonl.gz", gzip.compress("".join(part).encode(), compresslevel=6, mtime=0)


def _files_of_lines() -> Iterator[tuple[str, bytes]]:
    parts: list[list[bytes]] = [[] for _ in range(_NUM_FILES)]
    for number, (_, text) in enumerate(_sources()):
        lines = (line.strip() for line in text.encode().splitlines())
        parts[number % _NUM_FILES] += [line for line in lines if 0 < len(line) <= _MAX_LINE_BYTES]
    for file, part in enumerate(parts):
        yield f"lines/part-{file}.txt", b"".join(line + b"\n" for line in part)


def _sources() -> Iterator[tuple[str, str]]:
    """Yield the sources of the standard library, each with its path in it, until there are enough of them.

    Raises:
        SourceError: at the end, if there are too few.
    """
    root = Path(sysconfig.get_path("stdlib"))
    held = number = 0
    for path in standard_library(root):
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            continue  # the library has a few in other encodings
        if held + len(text) > _MAX_BYTES:
            break
        yield path.relative_to(root).as_posix(), text
        held, number = held + len(text), number + 1
    if held < _MIN_BYTES or number < _NUM_FILES:
        raise SourceError(
            f"{root} holds {format_count(held)} characters of Python sources, too few for a sample corpus (zipped or "
            "compiled installations have none); set source.path to data of your own"
        )
