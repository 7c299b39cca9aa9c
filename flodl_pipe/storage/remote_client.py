"""Requests to stores through ``obstore``: what an object is now (HEAD), a part of it (GET), and what lies in a folder.

The client library makes a few quick retries, resumes a body that broke off where the object has an ETag, and refuses an
answer with another range than was asked for. What it leaves to us, here:

- Every answer must come from the pinned object: ``If-Match`` asks the server, and the answer's size and ETag (or
  Last-Modified) are compared as well, because many servers ignore the question.
- A server that is away or busy is asked again for as long as patience allows, and so is one whose body broke off or has
  another length than its range.
- A server that ignores ranges gets small objects fetched whole; larger ones are refused.
"""

import functools
import os
import re
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np

from flodl_pipe.arrays import ByteArray
from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.storage.remote_address import RemoteAddress
from flodl_pipe.storage.remote_errors import (
    RangeIgnored,
    StoreError,
    credential_remedy,
    explain,
    range_ignored,
    scrubbed,
)
from flodl_pipe.storage.remote_exit import OPEN
from flodl_pipe.storage.remote_patience import Patience, RemotePolicy
from flodl_pipe.storage.remote_pins import RemotePin, require_same
from flodl_pipe.units import format_count

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ObjectStore

__all__ = ["RemoteClient"]

T = TypeVar("T")

_MARKUP = re.compile(rb"\s*<(!doctype|html|\?xml)", re.IGNORECASE)
_HTTP_REMEDY = "open the address in a browser to see what stands there, and correct source.path"


@final
class RemoteClient:
    """The stores open in one process, one per bucket or server.

    Args:
        policy: Limits and time-outs.

    Attributes:
        pid: The process it belongs to.
    """

    def __init__(self, policy: RemotePolicy) -> None:
        self.pid = os.getpid()
        self._policy = policy
        self._stores: dict[tuple[str, str, str], ObjectStore] = {}
        self._lock = threading.Lock()
        self._patience = Patience(policy)
        self._known: set[tuple[str, str]] = set()

    def store(self, address: RemoteAddress) -> "ObjectStore":
        """Return the store an address lies in, opening it if need be. Nothing is asked over the network.

        Raises:
            SourceError: if ``obstore`` is missing, or the environment does not say how to reach the store.
        """
        key = (address.scheme, address.place, address.query)
        with self._lock:
            if key not in self._stores:
                self._stores[key] = _open_store(address, self._policy)
            return self._stores[key]

    async def head(self, address: RemoteAddress) -> RemotePin:
        """Return what the object is now.

        Raises:
            SourceError: if there is none, or its parts cannot be read one by one.
        """
        return RemotePin.of(address, await self._ask_first(address, {"head": True}))

    async def begin(self, address: RemoteAddress, num_bytes: int) -> tuple[RemotePin, ByteArray]:
        """Return what the object is now, and its first bytes if they came along: as many, fewer, or none.

        One request instead of two, since whoever opens an object looks at its header next; and where a HEAD that is
        refused has no body, this one says why.

        Raises:
            SourceError: as :meth:`head`.
        """
        nothing: ByteArray = np.empty(0, dtype=np.uint8)
        try:
            result = await self._ask_first(address, {"range": (0, num_bytes)})
        except RangeIgnored:
            return await self.head(address), nothing
        except StoreError as failure:
            if failure.status in (400, 401, 403, 404, 429) or failure.status >= 500 or not failure.status:
                raise
            return await self.head(address), nothing  # an empty object has no range
        pin = RemotePin.of(address, result)
        if tuple(result.range) != (0, min(num_bytes, pin.size)):
            return pin, nothing
        try:
            body: ByteArray = np.frombuffer(memoryview(await OPEN.note(result.bytes_async())), dtype=np.uint8)
        except Exception:  # noqa: BLE001 - the next read of this object says what is wrong
            return pin, nothing
        return pin, body if len(body) == min(num_bytes, pin.size) else nothing

    async def read(self, address: RemoteAddress, pin: RemotePin, start: int, stop: int, *, whole: bool) -> ByteArray:
        """Return the bytes ``start .. stop``, uint8, read only.

        Args:
            address: The object.
            pin: What it was.
            start: First byte.
            stop: Byte after the last, greater than ``start``.
            whole: Do not ask for a range but for the whole object, and cut it.

        Raises:
            ChangedError: if the object is not the pinned one any more.
            RangeIgnored: if the server sends all of a large object instead of the range.
            SourceError: if it cannot be read.
        """
        self._known.add((address.scheme, address.place))  # else there were no pin

        async def attempt() -> ByteArray:
            try:
                return await self._read_once(address, pin, start, stop, whole=whole)
            except StoreError as failure:
                if failure.status in (404, 412, 416):
                    await self.require_unchanged(address, pin)  # which says more than the refusal
                raise

        return await self.insist(address, attempt)

    async def insist(self, address: RemoteAddress, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what ``attempt`` does, made again after failures that may pass.

        Args:
            address: The object or folder it asks for.
            attempt: Makes the request once; its failures are those that ``explain`` words.

        Raises:
            StoreError: the last failure.
        """
        place = (address.scheme, address.place)

        async def once() -> T:
            try:
                found = await attempt()
            except StoreError as failure:
                if failure.status:
                    self._known.add(place)
                raise
            self._known.add(place)
            return found

        return await self._patience.insist(once, lambda: place in self._known)

    async def _ask_first(self, address: RemoteAddress, options: Any) -> "GetResult":
        return await self.insist(address, functools.partial(self._ask, address, options, ""))

    async def _read_once(
        self, address: RemoteAddress, pin: RemotePin, start: int, stop: int, *, whole: bool
    ) -> ByteArray:
        what = f"bytes {format_count(start)} .. {format_count(stop)}"
        options: dict[str, object] = {} if whole else {"range": (start, stop)}
        if pin.strong_etag:
            options["if_match"] = pin.etag
        result = await self._ask(address, options, what)
        require_same(address, pin, RemotePin.of(address, result), what)
        expected = (0, pin.size) if whole else (start, stop)
        if tuple(result.range) != expected:
            raise StoreError(f"{address.shown}, {what}: the server answered with bytes {result.range}; copy the data")
        try:
            body = await OPEN.note(result.bytes_async())
        except Exception as error:  # noqa: BLE001 - its text must not be chained: it holds the request
            failure = explain(error, address, what)
        else:
            found: ByteArray = np.frombuffer(memoryview(body), dtype=np.uint8)
            if whole and _MARKUP.match(found[:200].tobytes()):
                raise StoreError(f"{address.shown}: the server sent a web page (a login?) and no data; {_HTTP_REMEDY}")
            if len(found) == expected[1] - expected[0]:
                return found[start:stop] if whole else found
            failure = StoreError(
                f"{address.shown}, {what}: {format_count(len(found))} bytes came instead of "
                f"{format_count(expected[1] - expected[0])}; check the server",
                retryable=True,
            )
        raise failure

    async def _ask(self, address: RemoteAddress, options: Any, what: str) -> "GetResult":
        import obstore  # noqa: PLC0415 - an extra

        store = self.store(address)
        try:
            return await OPEN.note(obstore.get_async(store, address.key, options=options))
        except Exception as error:  # noqa: BLE001 - as above
            ignored = range_ignored(error)
            failure = explain(error, address, what)
        raise RangeIgnored if ignored else failure

    async def require_unchanged(self, address: RemoteAddress, pin: RemotePin) -> None:
        """Compare what the object is now with its pin.

        Raises:
            ChangedError: if it is gone or differs.
            SourceError: if the server does not say.
        """
        try:
            now = await self.head(address)
        except StoreError as failure:
            if failure.status != 404:
                raise
        else:
            require_same(address, pin, now)
            return
        raise ChangedError(f"{address.shown}: deleted or renamed after it was opened ({pin}); restore the object")


def _open_store(address: RemoteAddress, policy: RemotePolicy) -> "ObjectStore":
    try:
        from obstore import store  # noqa: PLC0415 - an extra
    except ImportError:
        missing = True
    else:
        missing = False
    if missing:
        raise SourceError(
            f"{address.shown}: remote data needs the package obstore, which is not installed; "
            "pip install 'flodl-pipe[remote]', or copy the data to this machine"
        )
    plain = address.scheme == "http" or _allow_http(address.scheme)
    options: Any = {
        "timeout": timedelta(seconds=policy.request_timeout_s),
        "connect_timeout": timedelta(seconds=policy.connect_timeout_s),
        "read_timeout": timedelta(seconds=policy.stall_timeout_s),
        **({"allow_http": True} if plain else {}),
    }
    retry: Any = {
        "max_retries": policy.client_retries,
        "retry_timeout": timedelta(seconds=policy.opening_patience_s),
        "backoff": {
            "init_backoff": timedelta(seconds=policy.first_backoff_s),
            "max_backoff": timedelta(seconds=min(1.0, policy.longest_backoff_s)),
            "base": 2,
        },
    }
    try:
        if address.scheme == "s3":
            return store.S3Store(address.place, client_options=options, retry_config=retry)
        if address.scheme == "gs":
            return store.GCSStore(address.place, client_options=options, retry_config=retry)
        if address.scheme == "az":
            return store.AzureStore(address.place, client_options=options, retry_config=retry)
        base = f"{address.scheme}://{address.place}/{f'?{address.query}' if address.query else ''}"
        return store.HTTPStore(base, client_options=options, retry_config=retry)
    except Exception as error:  # noqa: BLE001 - its text may hold what the environment says
        said = scrubbed(str(error))
    raise SourceError(f"{address.shown}: cannot be opened: {said}; {credential_remedy(address.scheme)}")


def _allow_http(scheme: str) -> bool:
    name = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}.get(scheme, "")
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")
