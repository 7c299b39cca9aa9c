"""What a user writes as a place -> a local path, or a refusal; remote addresses are taken apart elsewhere."""

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flodl_pipe.errors import SourceError
from flodl_pipe.storage.remote_address import is_remote, redacted

__all__ = ["local_path", "require_one_kind"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def local_path(address: str) -> str:
    """Return the absolute path of a local file, folder or glob pattern.

    Plain paths are taken letter by letter (``a%20b`` is a file name); only ``file://`` addresses are percent-decoded.
    A leading ``~`` is the user's home. Links are kept.

    Raises:
        SourceError: if the address is empty, has a NUL character, or is not of this machine.

    >>> local_path("file:///data/a%20b.npy"), local_path("/data/a%20b.npy")
    ('/data/a b.npy', '/data/a%20b.npy')
    """
    if not address or "\0" in address:
        raise SourceError(f"{address!r} is no path; give a file, a folder or a glob pattern")
    match = _SCHEME.match(address)
    if not match:
        try:
            return str(Path(address).expanduser().absolute())
        except RuntimeError as error:
            raise SourceError(f"{address}: names a home folder that cannot be found; write the path out") from error
    if match[1].lower() == "file":
        parts = urlsplit(address)
        if parts.netloc in ("", "localhost") and parts.path:
            return unquote(parts.path)
        raise SourceError(
            f"{address}: after file:// stands {parts.netloc!r}, read as the name of a machine; a local file has "
            "three slashes and its absolute path, file:///folder/file, or give the plain path without file://"
        )
    raise SourceError(f"{redacted(address)}: a place on this machine is needed here; give a local path")


def require_one_kind(uris: Sequence[str]) -> None:
    """Refuse a list of local and remote places.

    Raises:
        SourceError: naming one of each.
    """
    remote = [uri for uri in uris if is_remote(uri)]
    local = [uri for uri in uris if not is_remote(uri)]
    if remote and local:
        raise SourceError(
            f"one list names {local[0]} on this machine and {redacted(remote[0])} elsewhere; give local places only, "
            "or remote ones only"
        )
