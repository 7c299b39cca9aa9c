"""Remote objects as blobs: rows and ranges by as few requests as make sense, many of them in flight together.

::

    (object, offset) per row --> ranges --> GETs in flight --> rows of ``out``
                                 near rows  64 at a time       copied as each arrives
                                 joined     one deadline

All requests of one call are in flight together, so that a call of hundreds of rows costs a few round trips and not
hundreds. Each answer is compared with the object's pin before its bytes are used.
"""

import functools
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import BoolArray, ByteArray, IndexArray
from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.storage.bounds import require_range_inside, require_rows_inside
from flodl_pipe.storage.remote_address import RemoteAddress
from flodl_pipe.storage.remote_client import RemoteClient
from flodl_pipe.storage.remote_errors import RangeIgnored
from flodl_pipe.storage.remote_flight import Ended, Flights, Overdue, fly
from flodl_pipe.storage.remote_patience import RemotePolicy
from flodl_pipe.storage.remote_pins import RemotePin
from flodl_pipe.storage.remote_ranges import RowRange, coalesce
from flodl_pipe.units import format_bytes, format_count, format_duration

__all__ = ["RemoteBlobs"]

_logger = logging.getLogger("flodl_pipe")

_HEAD_BYTES = 16 << 10
"""First bytes of an object that come along when it is opened: what a source looks at to tell its format."""

_MAX_HEADS = 2048
"""Most objects whose heads are kept: 32 MiB. Of more, only identities are asked for."""

_WHAT = "the object of"

Job = Callable[[], Awaitable[None]]


@final
class RemoteBlobs:
    """Remote objects, in the order given; see :class:`flodl_pipe.storage.protocol.Blobs` for what it promises.

    Making one asks for the first 16 KiB of every object, many at once, and takes its size and identity from the answer.
    Those bytes are kept until rows are read, so that looking at the headers of many objects costs no further round
    trip. Threads may share one object. A pickled copy holds addresses and pins, no credentials, and opens its own
    connections. In a process forked after the first request, reading is an error that says so.

    Args:
        addresses: Address of each object.
        policy: Limits and time-outs.

    Raises:
        SourceError: if an address is wrong, ``obstore`` is missing, or an object cannot be reached or read in parts.
    """

    def __init__(self, addresses: Sequence[str], *, policy: RemotePolicy | None = None) -> None:
        self._addresses = tuple(map(RemoteAddress.parse, addresses))
        self._names = tuple(address.shown for address in self._addresses)
        self._policy = policy or RemotePolicy()
        self._client: RemoteClient | None = None
        self._heads: dict[int, ByteArray] = {}
        self._flights = Flights()
        self._pins = tuple(self._open())
        self._sizes: IndexArray = np.array([pin.size for pin in self._pins], dtype=np.int64)
        self._whole: BoolArray = np.zeros(len(self._pins), dtype=np.bool_)
        unpinned = [name for name, pin in zip(self._names, self._pins, strict=True) if pin.size_only]
        if unpinned:
            _logger.warning(
                "%s (%d of %d objects): the server gives neither ETag nor Last-Modified, so only a change of size will "
                "be noticed",
                *(unpinned[0], len(unpinned), len(self._names)),
            )

    @property
    def names(self) -> Sequence[str]:
        """Address of each object, without the values of a query."""
        return self._names

    @property
    def sizes(self) -> IndexArray:
        """Bytes of each object when the list was made, int64, shape ``(num_blobs,)``."""
        return self._sizes

    def read_rows(
        self, blobs: IndexArray, offsets: IndexArray, row_bytes: int, rows: IndexArray, out: ByteArray
    ) -> None:
        """Read rows of equal size into rows of ``out``; see :meth:`flodl_pipe.storage.protocol.Blobs.read_rows`."""
        if not len(rows):
            return
        self._heads = {}
        require_rows_inside(self._names, self._sizes, blobs, offsets, row_bytes, _WHAT)
        if out.shape[1:] != (row_bytes,) or not out.flags.c_contiguous or not 0 <= rows.min() <= rows.max() < len(out):
            raise ValueError(
                f"out must be C-contiguous, of shape (B, {row_bytes}) with B above every row, got {out.shape} and rows "
                f"{rows.min()} .. {rows.max()}"
            )
        if row_bytes > self._policy.range_bytes:
            self._fly_parts(
                (blob, offset, out[row])
                for blob, offset, row in zip(blobs.tolist(), offsets.tolist(), rows.tolist(), strict=True)
            )
            return

        def jobs() -> tuple[list[Job], int]:
            ranges = coalesce(
                blobs,
                offsets,
                row_bytes,
                rows,
                gap_bytes=self._policy.gap_bytes,
                range_bytes=self._policy.range_bytes,
                whole=self._whole,
                sizes=self._sizes,
            )
            longest = max(one.stop - one.start for one in ranges)
            found: list[Job] = [functools.partial(self._fetch_rows, one, out) for one in ranges]
            return found, longest

        self._fly_again_whole(jobs)

    def read_range(self, blob: int, offset: int, out: ByteArray) -> None:
        """Fill ``out`` with the bytes from ``offset`` on; see :meth:`flodl_pipe.storage.protocol.Blobs.read_range`."""
        require_range_inside(self._names, self._sizes, blob, offset, len(out), _WHAT)
        head = self._heads.get(blob)
        if head is not None and offset + len(out) <= len(head):
            out[:] = head[offset : offset + len(out)]
            return
        self._fly_parts([(blob, offset, out)])

    def buffer(self, num_bytes: int) -> ByteArray:
        """Return bytes to read rows to; see :meth:`flodl_pipe.storage.protocol.Blobs.buffer`."""
        return np.empty(num_bytes, dtype=np.uint8)

    def check_unchanged(self) -> None:
        """Ask for the head of every object again, many at once, and compare it with its pin.

        Raises:
            ChangedError: naming the first object that differs.
            SourceError: if one cannot be reached.
        """
        client, wrong = self._open_client(), dict[int, ChangedError]()

        async def check(blob: int) -> None:
            try:
                await client.require_unchanged(self._addresses[blob], self._pins[blob])
            except ChangedError as error:
                wrong[blob] = error

        self._fly([functools.partial(check, blob) for blob in range(len(self._pins))], 1, "the heads of the objects")
        if wrong:
            raise wrong[min(wrong)]

    def close(self) -> None:
        """Let go of the connections of this process; the next read opens new ones.

        Reads that other threads are waiting for end with an error.
        """
        self._flights.end()
        self._client = None
        self._heads = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_client": None, "_heads": {}, "_flights": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _flights=Flights())

    def __repr__(self) -> str:
        return f"RemoteBlobs({', '.join(self._names[:3])}{', ...' if len(self._names) > 3 else ''})"

    def _open_client(self) -> RemoteClient:
        client = self._client
        if client is None or client.pid != os.getpid():
            client = self._client = RemoteClient(self._policy)
        return client

    def _open(self) -> list[RemotePin]:
        client, pins, wrong = self._open_client(), dict[int, RemotePin](), dict[int, SourceError]()
        for address in self._addresses:
            client.store(address)  # so that what the environment lacks is said before anything is asked
        num_bytes = _HEAD_BYTES if len(self._addresses) <= _MAX_HEADS else 1

        async def begin(blob: int) -> None:
            if wrong:
                return
            try:
                pins[blob], self._heads[blob] = await client.begin(self._addresses[blob], num_bytes)
            except SourceError as error:
                wrong[blob] = error

        blobs = range(len(self._addresses))
        self._fly([functools.partial(begin, blob) for blob in blobs], num_bytes, "the heads of the objects")
        if wrong:  # the first in the order of the list, however the answers came in
            raise wrong[min(wrong)]
        return [pins[blob] for blob in blobs]

    def _fly_parts(self, wanted: Iterable[tuple[int, int, ByteArray]]) -> None:
        """Fill arrays with runs of bytes, each cut into parts that travel side by side."""
        parts = [
            (blob, offset + done, out[done : done + self._policy.range_bytes])
            for blob, offset, out in wanted
            for done in range(0, len(out), self._policy.range_bytes)
        ]
        if not parts:
            return

        def jobs() -> tuple[list[Job], int]:
            whole = [int(self._sizes[blob]) for blob, _, _ in parts if self._whole[blob]]
            found: list[Job] = [functools.partial(self._fetch_part, *part) for part in parts]
            return found, max([len(out) for _, _, out in parts] + whole)

        self._fly_again_whole(jobs)

    def _fly_again_whole(self, jobs: Callable[[], tuple[list[Job], int]]) -> None:
        """Run jobs; where a server turns out to ignore ranges, plan and run them again with its objects whole."""
        while True:
            known = int(self._whole.sum())
            try:
                self._fly(*jobs(), "the rows")
            except RangeIgnored:
                if int(self._whole.sum()) == known:
                    raise
            else:
                return

    def _fly(self, jobs: Sequence[Job], longest: int, what: str) -> None:
        policy = self._policy
        in_flight = max(1, min(policy.in_flight, len(jobs), policy.flight_bytes // max(longest, 1)))
        late = False
        try:
            fly(jobs, in_flight=in_flight, deadline_s=policy.deadline_s, flights=self._flights)
        except Overdue:
            late = True
        except Ended:
            raise SourceError(f"{self._names[0]}: closed while it was read") from None
        if late:
            raise SourceError(
                f"{self._names[0]} (object 1 of {len(self._names)}): {what} did not come within the deadline of "
                f"{format_duration(policy.deadline_s)}, for {format_count(len(jobs))} requests; check the server and "
                "the network"
            )

    async def _fetch_rows(self, one: RowRange, out: ByteArray) -> None:
        one.scatter(await self._fetch(one.blob, one.start, one.stop), out)

    async def _fetch_part(self, blob: int, offset: int, out: ByteArray) -> None:
        out[:] = await self._fetch(blob, offset, offset + len(out))

    async def _fetch(self, blob: int, start: int, stop: int) -> ByteArray:
        address, pin, whole = self._addresses[blob], self._pins[blob], bool(self._whole[blob])
        try:
            return await self._open_client().read(address, pin, start, stop, whole=whole)
        except RangeIgnored:
            self._take_whole(blob)
            raise

    def _take_whole(self, blob: int) -> None:
        size, limit = self._pins[blob].size, self._policy.whole_bytes
        if size > limit:
            raise SourceError(
                f"{self._names[blob]}: the server ignores ranges and sends all of its {format_bytes(size)} for every "
                f"part asked for, and objects of more than {format_bytes(limit)} are not read that way; copy the data "
                "to this machine, or serve it with Range support"
            ) from None
        if not self._whole.any():
            _logger.warning(
                "%s: the server ignores ranges, so whole objects are fetched for every read, which is slow; "
                "serve them with Range support, or copy the data to this machine",
                self._names[blob],
            )
        self._whole[blob] = True
