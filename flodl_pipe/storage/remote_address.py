"""An address with a scheme -> where an object lies, with every secret kept out of what is shown.

``s3``, ``gs`` and ``az`` addresses are taken letter by letter, as the tools of those stores do (``a%20b`` is a key).
Those of ``http`` and ``https`` are percent-decoded, and a query is kept and sent. Logins are no part of an address:
they would end up in logs, run folders and pickles, so they are refused here, and nothing below shows the values of a
query.
"""

import re
from dataclasses import dataclass
from typing import Literal, cast, final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from flodl_pipe.errors import SourceError

__all__ = ["RemoteAddress", "Scheme", "is_remote", "redacted"]

Scheme = Literal["s3", "gs", "az", "http", "https"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SCHEMES = ("s3", "gs", "az", "http", "https")
_UNQUOTED = "/!$&'()*+,;=:@[]|^~"
_SECRET_KEY = re.compile(
    r"x-(amz|goog|ms|oss)-.*|sig|.*signature|.*token|.*secret|.*passw(or)?d|.*credential|(api|access)?[_-]?key(-pair-id)?"
    r"|auth(orization)?|awsaccesskeyid|googleaccessid|policy|expires",
    re.IGNORECASE,
)


def is_remote(address: str) -> bool:
    """Return whether an address has a scheme other than ``file://``.

    >>> is_remote("s3://bucket/a.npy"), is_remote("file:///a.npy"), is_remote("/a.npy")
    (True, False, False)
    """
    match = _SCHEME.match(address)
    return match is not None and match[1].lower() != "file"


def redacted(address: str) -> str:
    """Return an address as messages may show it: no login, and of a query the names only.

    >>> redacted("https://me:secret@host/a.npy?part=1&sig=abc")
    'https://host/a.npy?part=...&sig=...'
    """
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address
    place, slash, path = rest.partition("/")
    if "@" in path and not re.fullmatch(r"[^:@]*(:\d*)?", place) and "@" not in place:
        place, slash, path = rest.rpartition("@")[2].partition("/")  # a login with a slash in it
    place = place.rpartition("@")[2]
    if scheme.lower() not in ("http", "https"):
        return f"{scheme}://{place}{slash}{path}"
    place, cut, tail = place.partition("?")
    if not cut:
        path, cut, tail = path.partition("?")
    names = "&".join(f"{pair.partition('=')[0]}=..." for pair in tail.partition("#")[0].split("&") if pair)
    return f"{scheme}://{place}{slash}{path.partition('#')[0]}{f'?{names}' if names else ''}"


@final
@dataclass(frozen=True, repr=False)
class RemoteAddress:
    """Where an object lies.

    Attributes:
        scheme: Which kind of store.
        place: Bucket, container, or host with port.
        key: Name of the object there, without a leading slash.
        query: What an http address has after its question mark; part of no key, and never shown.
    """

    scheme: Scheme
    place: str
    key: str
    query: str = ""

    @classmethod
    def parse(cls, address: str) -> "RemoteAddress":
        """Take an address apart.

        Raises:
            SourceError: if the scheme is unknown, a part is missing, or the address holds a login.
        """
        shown = redacted(address)
        scheme, _, rest = address.partition("://")
        scheme = scheme.lower()
        if scheme not in _SCHEMES:
            raise SourceError(
                f"{shown}: {scheme}:// is not served; use s3://, gs://, az://, http://, https:// or a local path"
            )
        if "\0" in address:
            raise SourceError(f"{shown!r} is no address; remove the NUL character")
        kind = cast("Scheme", scheme)
        found = _parse_http(kind, address, shown) if kind in ("http", "https") else cls(kind, *_split(rest))
        if not found.place:
            what = "host" if kind in ("http", "https") else "container" if kind == "az" else "bucket"
            raise SourceError(f"{shown}: no {what} after {kind}://; write {kind}://{what}/path/of/the/object")
        if "@" in found.place:
            raise _refuse_login(shown, "a login before the @", kind)
        for part in found.key.removesuffix("/").split("/"):
            if (not part and found.key) or part in (".", ".."):
                raise SourceError(
                    f"{shown}: the part {part!r} between two slashes cannot be asked for; give the object a name "
                    "without empty, . and .. parts"
                )
        return found

    @property
    def shown(self) -> str:
        """The address as messages show it."""
        return redacted(self.full)

    @property
    def full(self) -> str:
        """The address, query included; not for messages."""
        web = self.scheme in ("http", "https")
        key = quote(self.key, safe=_UNQUOTED) if web else self.key
        return f"{self.scheme}://{self.place}/{key}{f'?{self.query}' if self.query else ''}"

    def __repr__(self) -> str:
        return f"RemoteAddress({self.shown!r})"


def _split(rest: str) -> tuple[str, str]:
    place, _, key = rest.partition("/")
    return place, key


def _parse_http(scheme: Scheme, address: str, shown: str) -> RemoteAddress:
    try:
        parts = urlsplit(address)
        place = parts.netloc
        _ = parts.port
    except ValueError:
        place = ""
    if not place:
        raise SourceError(f"{shown}: the host or its port cannot be understood; correct the address")
    if "@" in place:
        raise _refuse_login(shown, "a login before the @", scheme)
    secret = next((name for name, _ in parse_qsl(parts.query, True) if _SECRET_KEY.fullmatch(name)), None)
    if secret is not None:
        raise _refuse_login(shown, f"{secret!r} in its query, which looks like a signature or a login", scheme)
    if re.search("%2f", parts.path, re.IGNORECASE):
        raise SourceError(f"{shown}: an escaped slash (%2F) cannot be asked for; give the object a name without it")
    return RemoteAddress(scheme, place, unquote(parts.path).removeprefix("/"), parts.query)


def _refuse_login(shown: str, what: str, scheme: str) -> SourceError:
    remedy = (
        "use s3://, gs:// or az:// with credentials in the environment, or an address that needs none"
        if scheme in ("http", "https")
        else "set credentials in the environment"
    )
    return SourceError(
        f"{shown}: the address holds {what} (not shown); credentials come from the environment only: {remedy}"
    )
