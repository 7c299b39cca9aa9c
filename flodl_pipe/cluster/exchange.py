"""One record from every rank to every rank, over a gloo group, within a deadline; and who it was that did not come.

Each rank sends its record to each other one and receives theirs, pair by pair, in place of one collective operation:
when a collective fails, nobody knows because of whom. A record starts with a byte that is never 0, in a buffer of
zeros, so that after a failure the buffers tell who had come. Short records are one frame; of a longer one the frame
says the length, and the rest follows.

Gloo closes all connections of a group once a wait has timed out. So the first failure is the last, and the group is
ended with it: the others find their connections closed, and do not wait for their own deadline.
"""

import math
import os
import struct
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple, final

import torch
from torch import distributed

from flodl_pipe.errors import ClusterError

__all__ = ["Exchange", "Lost"]

FRAME_BYTES = 256
_HEAD = struct.Struct("<IQ")  # kind, length
_INLINE_BYTES = FRAME_BYTES - _HEAD.size
# A record is in memory once for each rank; nothing that ranks have to tell each other comes near.
MAX_RECORD_BYTES = 64 << 20


@final
class Lost(Exception):  # noqa: N818 - it never reaches a user
    """Ranks that did not come.

    Attributes:
        ranks: Who, ascending.
        is_late: Whether the deadline has passed; else connections to them are closed.
    """

    def __init__(self, ranks: Sequence[int], *, is_late: bool) -> None:
        super().__init__(tuple(ranks))
        self.ranks, self.is_late = tuple(sorted(ranks)), is_late


@final
class Record(NamedTuple):
    """What a rank says.

    Attributes:
        kind: 32 bits, what sort of exchange the rank has come to.
        payload: The bytes.
    """

    kind: int
    payload: bytes


@final
class Exchange:
    """Exchanges over one group, one after the other. All ranks of the group must make the same ones.

    Args:
        group: A gloo group of all ranks. It is kept weakly: torch.distributed holds it until it is destroyed.
        rank: This one.
        world_size: How many there are.
    """

    def __init__(self, group: distributed.ProcessGroup, rank: int, world_size: int) -> None:
        self._group = weakref.ref(group)
        self._peers = [other for other in range(world_size) if other != rank]
        self.rank, self.world_size = rank, world_size
        self._pid = os.getpid()
        self._busy = threading.Lock()
        self._failure: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether the group is still there, and was made by this process, not by one that it was forked from."""
        return self._pid == os.getpid() and self._group() is not None

    def all(self, record: Record, timeout_s: float, what: str) -> list[Record]:
        """Return the record of every rank, by rank.

        Args:
            record: This rank's.
            timeout_s: Seconds within which the others must come.
            what: What is exchanged, for errors.

        Raises:
            Lost: if ranks did not come; every later call is refused.
            ClusterError: if the exchange cannot be made: it has failed before, its group was destroyed, this is a
                forked process, or another thread is in an exchange.
        """
        if len(record.payload) > MAX_RECORD_BYTES:
            raise ClusterError(f"{what}: {len(record.payload):,} bytes; ranks tell each other {MAX_RECORD_BYTES:,}")
        if self._pid != os.getpid():
            raise ClusterError(
                f"{what}: this process was forked from one that talks to other ranks, and has none of its connections; "
                "build the loader in the process that called init_process_group"
            )
        if not self._busy.acquire(blocking=False):
            raise ClusterError(f"{what}: another thread of this process waits for the other ranks; use one thread")
        try:
            return self._all(record, timeout_s, what)
        finally:
            self._busy.release()

    def _all(self, record: Record, timeout_s: float, what: str) -> list[Record]:
        if self._failure is not None:
            raise ClusterError(
                f"{what}: ranks no longer talk to each other, because of an earlier failure: {self._failure}"
            )
        group = self._group()
        if group is None:
            raise ClusterError(
                f"{what}: the process group of this loader was destroyed; build and use loaders between "
                "init_process_group and destroy_process_group"
            )
        deadline = time.monotonic() + timeout_s
        try:
            return self._exchange(group, record, deadline)
        except Lost as lost:
            who = ", ".join(map(str, lost.ranks))
            self._failure = f"{what}: rank {who} {'did not come' if lost.is_late else 'closed its connection'}"
            del group
            self.close()
            raise
        except BaseException as error:  # Ctrl-C: the others are at another place now
            self._failure = f"{what}: {type(error).__name__}"
            del group
            self.close()
            raise

    def close(self) -> None:
        """End the group; the others notice. May be called again."""
        self._failure = self._failure or "it was closed"
        group = self._group() if self._pid == os.getpid() else None
        if group is not None and group is not distributed.group.WORLD:
            distributed.destroy_process_group(group)

    def _exchange(self, group: distributed.ProcessGroup, record: Record, deadline: float) -> list[Record]:
        kind, payload = record
        frame = _HEAD.pack(kind, len(payload)) + payload[:_INLINE_BYTES]
        frames = self._swap(group, frame.ljust(FRAME_BYTES, b"\0"), dict.fromkeys(self._peers, FRAME_BYTES), deadline)
        heads = {peer: _HEAD.unpack_from(theirs) for peer, theirs in frames.items()}
        rests = {peer: length - _INLINE_BYTES for peer, (_, length) in heads.items()}
        longer = {peer: 1 + rest for peer, rest in rests.items() if rest > 0}
        rest = b"\1" + payload[_INLINE_BYTES:] if len(payload) > _INLINE_BYTES else b""
        more = self._swap(group, rest, longer, deadline) if longer or rest else {}
        found = {
            peer: Record(heads[peer][0], (frames[peer][_HEAD.size :] + more.get(peer, b"")[1:])[: heads[peer][1]])
            for peer in self._peers
        }
        found[self.rank] = record
        return [found[rank] for rank in range(self.world_size)]

    def _swap(
        self, group: distributed.ProcessGroup, mine: bytes, sizes: Mapping[int, int], deadline: float
    ) -> dict[int, bytes]:
        """Send ``mine`` to every peer, unless it is empty, and receive so many bytes from those that have ``sizes``."""
        theirs = {peer: torch.zeros(num_bytes, dtype=torch.uint8) for peer, num_bytes in sizes.items()}
        sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if mine else None
        works: list[tuple[int, distributed.Work | None]] = []
        at = self.rank
        try:
            for at, buffer in theirs.items():
                works.append((at, distributed.irecv(buffer, src=at, group=group)))
            for at in self._peers:
                works += [] if sent is None else [(at, distributed.isend(sent, dst=at, group=group))]
            for peer, work in works:
                assert work is not None
                at = peer
                # In whole milliseconds, which gloo counts in, rounded up: a wait that ends before the deadline would
                # take who is late for gone.
                left_ms = math.ceil(max(0.0, deadline - time.monotonic()) * 1e3)
                work.wait(timedelta(milliseconds=left_ms + 1))
        except RuntimeError:
            is_late = time.monotonic() >= deadline
            silent = [peer for peer, buffer in theirs.items() if not int(buffer[0])]
            raise Lost(silent if is_late and silent else [at], is_late=is_late) from None
        return {peer: buffer.numpy().tobytes() for peer, buffer in theirs.items()}
