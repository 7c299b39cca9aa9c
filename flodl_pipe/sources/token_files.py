"""Which files are token shards, by their names.

On top of :mod:`flodl_pipe.storage.listing`: Megatron's data sets are a pair, ``NAME.bin`` and ``NAME.idx``, and are
usually called by their prefix ``NAME``. The ``.bin`` is the shard; the ``.idx`` beside it is read with it, and is not
foreign in its folder.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.megatron import has_index
from flodl_pipe.storage.address import local_path
from flodl_pipe.storage.listing import Listing, list_files
from flodl_pipe.storage.remote_address import is_remote

__all__ = ["SUFFIXES", "list_token_files", "named"]

SUFFIXES = {
    "auto": (".npy", ".bin"),
    "npy": (".npy",),
    "raw": (".npy", ".bin"),
    "llmc": (".bin",),
    "megatron": (".bin",),
}
"""File endings taken from a folder, by format."""


def list_token_files(path: str | Sequence[str], file_format: str) -> Listing:
    """Expand what the user wrote to shards.

    Args:
        path: A file, a folder, a glob pattern, or a list of them; in format ``megatron`` also prefixes.
        file_format: One of ``SUFFIXES``; an unknown one takes no file from a folder.

    Raises:
        SourceError: as :func:`flodl_pipe.storage.listing.list_files`, or if a Megatron index is named for its data.
    """
    paths = [path] if isinstance(path, str) else list(path)
    if file_format == "megatron":
        paths = [_data_file(one) for one in paths]
    listing = list_files(paths, suffixes=SUFFIXES.get(file_format, ()))
    if file_format not in ("auto", "megatron") or not any(name.endswith(".idx") for name in listing.foreign):
        return listing
    pairs = [name for name in listing.files if name.endswith(".bin") and (file_format == "megatron" or has_index(name))]
    indexes = {Path(name).with_suffix(".idx").name for name in pairs}
    return Listing(listing.files, tuple(name for name in listing.foreign if name not in indexes))


def named(names: Sequence[str]) -> str:
    """Return up to five names and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _data_file(path: str) -> str:
    """Return ``path``, or the ``.bin`` it is the prefix of."""
    if path.endswith(".idx"):
        raise SourceError(f"{path}: is an index; give the data it belongs to, {path.removesuffix('.idx')}.bin")
    if is_remote(path):
        return path  # only a folder on this machine can be asked what is in it
    local = local_path(path)
    there = [os.path.exists(name) for name in (local, f"{local}.bin")]  # noqa: PTH110 - Path.exists raises on long names
    return f"{local}.bin" if there == [False, True] else path
