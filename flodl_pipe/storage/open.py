"""Addresses -> blobs: the one place that chooses between local files and a remote store."""

from collections.abc import Sequence

from flodl_pipe.storage.address import local_path, require_one_kind
from flodl_pipe.storage.local import LocalBlobs
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.storage.remote import RemoteBlobs
from flodl_pipe.storage.remote_address import is_remote

__all__ = ["open_blobs"]


def open_blobs(uris: Sequence[str]) -> Blobs:
    """Return the files or objects at these addresses, in order, ready to be read.

    Args:
        uris: Local paths and ``file://`` addresses, or ``s3://``, ``gs://``, ``az://`` and ``http(s)://`` addresses.

    Raises:
        SourceError: if both kinds are mixed, a file or an object is missing or cannot be read, or ``obstore`` is
            missing.
    """
    require_one_kind(uris)
    if any(map(is_remote, uris)):
        return RemoteBlobs(uris)
    return LocalBlobs([local_path(uri) for uri in uris])
