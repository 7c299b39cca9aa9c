"""Addresses -> blobs: the one place that will choose between local files and a remote store."""

from collections.abc import Sequence

from flodl_pipe.storage.address import local_path
from flodl_pipe.storage.local import LocalBlobs
from flodl_pipe.storage.protocol import Blobs

__all__ = ["open_blobs"]


def open_blobs(uris: Sequence[str]) -> Blobs:
    """Return the files at these addresses, in order, ready to be read.

    Args:
        uris: Local paths or ``file://`` addresses.

    Raises:
        SourceError: if an address is remote, or a file is missing or not a regular file.
    """
    return LocalBlobs([local_path(uri) for uri in uris])
