"""A remote folder or pattern -> the objects meant, by the rules that :mod:`flodl_pipe.storage.listing` has for files.

Object stores have no folders, only keys; a folder here is a prefix that ends with ``/``, and its files are the keys
with that prefix and no further ``/``. Addresses that end in ``/``, or that no object has, are folders. Web servers have
no listing at all: each object is named.
"""

import fnmatch
import functools
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import final

from flodl_pipe.errors import SourceError
from flodl_pipe.storage.remote_address import RemoteAddress, redacted
from flodl_pipe.storage.remote_client import RemoteClient
from flodl_pipe.storage.remote_errors import StoreError, explain
from flodl_pipe.storage.remote_exit import OPEN
from flodl_pipe.storage.remote_flight import Overdue, fly
from flodl_pipe.storage.remote_patience import RemotePolicy
from flodl_pipe.units import format_duration

__all__ = ["expand_remote"]

_MAGIC = re.compile(r"[*?[]")

Found = tuple[list[str], list[str]]
"""Addresses, and names of what lay beside them."""


def expand_remote(paths: Sequence[str], suffixes: Sequence[str], policy: RemotePolicy | None = None) -> list[Found]:
    """Expand each address to the objects it means and the names left out.

    Args:
        paths: Addresses of objects, folders and patterns.
        suffixes: Endings that objects of a folder must have.
        policy: Limits and time-outs.

    Raises:
        SourceError: if something does not exist, matches nothing, may not be read, or cannot be listed.
    """
    policy = policy or RemotePolicy()
    wanted, found = [], dict[int, Found]()
    for place, path in enumerate(paths):
        address = _parse(path)
        if address is None:
            found[place] = [path], []
        else:
            wanted.append((place, address))
    if wanted:
        lister = _Lister(RemoteClient(policy), suffixes)

        async def expand(place: int, address: RemoteAddress) -> None:
            found[place] = await lister.expand(address)

        jobs: list[Callable[[], Awaitable[None]]] = [functools.partial(expand, *one) for one in wanted]
        late = False
        try:
            fly(jobs, in_flight=min(policy.in_flight, len(jobs)), deadline_s=policy.deadline_s)
        except Overdue:
            late = True
        if late:
            raise SourceError(
                f"{wanted[0][1].shown}: was not listed within the deadline of {format_duration(policy.deadline_s)}; "
                "check the network, or name the objects one by one"
            )
    return [found[place] for place in range(len(paths))]


def _parse(path: str) -> RemoteAddress | None:
    """Return the address of what must be looked up, None for one that is an object by itself."""
    address = RemoteAddress.parse(path)
    if address.scheme not in ("http", "https"):
        return address
    name = path.partition("?")[0]
    if not address.key or name.endswith("/") or re.search(r"[*[]", name):
        raise SourceError(
            f"{redacted(path)}: a web server has no listing, so a folder or a pattern cannot be read from it; name "
            "each object in a list, source.path=[https://.../a.npy,https://.../b.npy] (a * or [ that belongs to a name "
            "is written %2A or %5B)"
        )
    return None


@final
class _Lister:
    """Looks addresses up in one flight.

    Args:
        client: The stores.
        suffixes: Endings that objects of a folder must have.
    """

    def __init__(self, client: RemoteClient, suffixes: Sequence[str]) -> None:
        self._client, self._suffixes = client, tuple(suffixes)

    async def expand(self, address: RemoteAddress) -> Found:
        if not address.key or address.key.endswith("/"):
            return await self._folder(address)
        missing: StoreError | None = None
        try:
            await self._client.head(address)
        except StoreError as failure:
            if failure.status != 404:
                raise
            missing = failure
        if missing is None:
            return [address.full], []
        if await self._exists(address, address.key):
            return await self._folder(address)
        folder, pattern = await self._split(address)
        if pattern:
            return await self._matching(address, folder, pattern)
        raise SourceError(
            f"{address.shown} does not exist, neither as an object nor as a folder: the server says "
            f"{missing.status}; correct source.path"
        )

    async def _folder(self, address: RemoteAddress) -> Found:
        prefix = address.key.rstrip("/")
        keys, folders = await self._level(address, prefix)
        files: list[str] = []
        foreign = [f"{name}/" for name in map(_name, folders) if not name.startswith(".")]
        for key in keys:
            if not _name(key).startswith("."):
                (files if key.endswith(self._suffixes) else foreign).append(key)
        foreign = sorted(map(_name_of_foreign, foreign))
        if not files:
            endings = " or ".join(self._suffixes)
            held = f"it holds {', '.join(foreign[:5])}" if foreign else "nothing lies there"
            raise SourceError(
                f"{address.shown}: no object ends in {endings}; {held}. Correct source.path, or name objects "
                "by a pattern"
            )
        return [_at(address, key) for key in sorted(files)], foreign

    async def _matching(self, address: RemoteAddress, folder: list[str], pattern: list[str]) -> Found:
        prefix, foreign = "/".join(folder), []
        if len(pattern) == 1 and pattern[0] != "**":
            keys, folders = await self._level(address, prefix)
            foreign = sorted(f"{name}/" for name in map(_name, folders) if _matches([name], pattern))
        else:
            keys = await self._below(address, prefix)
        first = len(folder)
        files = sorted(key for key in keys if _matches(key.split("/")[first:], pattern))
        if not files:
            raise SourceError(f"{address.shown}: no object matches; correct the pattern in source.path")
        return [_at(address, key) for key in files], foreign

    async def _split(self, address: RemoteAddress) -> tuple[list[str], list[str]]:
        """Split a key after the last folder that exists by that name; no pattern if nothing is left to match."""
        folder: list[str] = []
        rest = address.key.split("/")
        while len(rest) > 1:
            if _MAGIC.search(rest[0]) and not await self._exists(address, "/".join([*folder, rest[0]])):
                break
            folder.append(rest.pop(0))
        return folder, rest if any(map(_MAGIC.search, rest)) else []

    async def _level(self, address: RemoteAddress, prefix: str) -> tuple[list[str], list[str]]:
        """Return the keys directly in a folder, and the folders in it."""
        return await self._client.insist(address, functools.partial(self._level_once, address, prefix))

    async def _level_once(self, address: RemoteAddress, prefix: str) -> tuple[list[str], list[str]]:
        import obstore  # noqa: PLC0415 - an extra

        store = self._client.store(address)
        try:
            found = await OPEN.note(obstore.list_with_delimiter_async(store, prefix or None))
        except Exception as error:  # noqa: BLE001 - its text must not be chained: it holds the request
            failure = explain(error, address, "listing")
        else:
            keys = [meta["path"] for meta in found["objects"] if meta["path"] != prefix]
            return _files_of(keys), list(found["common_prefixes"])
        raise failure

    async def _below(self, address: RemoteAddress, prefix: str, *, first_only: bool = False) -> list[str]:
        """Return all keys below a folder, at any depth."""
        return await self._client.insist(address, functools.partial(self._below_once, address, prefix, first_only))

    async def _below_once(self, address: RemoteAddress, prefix: str, first_only: bool) -> list[str]:
        import obstore  # noqa: PLC0415 - an extra

        store, keys = self._client.store(address), list[str]()
        try:
            chunks = obstore.list(store, prefix or None, chunk_size=1000)
            while not (keys and first_only):
                keys += [meta["path"] for meta in await OPEN.note(chunks.__anext__()) if meta["path"] != prefix]
        except StopAsyncIteration:
            return _files_of(keys)
        except Exception as error:  # noqa: BLE001 - as above
            failure = explain(error, address, "listing")
        else:
            return _files_of(keys)
        raise failure

    async def _exists(self, address: RemoteAddress, folder: str) -> bool:
        return bool(await self._below(address, folder, first_only=True))


def _files_of(keys: list[str]) -> list[str]:
    """Leave out the empty objects that some tools make to stand for a folder: others lie below them."""
    folders = {key[:place] for key in keys for place, sign in enumerate(key) if sign == "/"}
    return [key for key in keys if key not in folders]


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Return whether a key, cut at its slashes, matches; as ``glob`` does: ``**`` is any number of folders.

    >>> [_matches(key.split("/"), ["**", "*.npy"]) for key in ("a.npy", "x/y/a.npy", ".x/a.npy", "x/.a.npy", "a.bin")]
    [True, True, False, False, False]
    """
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] != "**":
        hidden = parts[0].startswith(".") and not pattern[0].startswith(".")
        return not hidden and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
    if parts[0].startswith("."):
        return _matches(parts, pattern[1:])
    return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern if len(parts) > 1 or len(pattern) > 1 else [])


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _name_of_foreign(key: str) -> str:
    return f"{_name(key[:-1])}/" if key.endswith("/") else _name(key)


def _at(address: RemoteAddress, key: str) -> str:
    return RemoteAddress(address.scheme, address.place, key).full
