"""The ranks of a run as they talk to each other: small things, in words, within a deadline.

Everything that ranks agree on goes through here: members, facts, shares, the outcome of what each has done. It is
made of exchanges (see ``cluster.exchange``) over a gloo group of its own, so that it neither needs a GPU nor stands in
the way of what the training loop exchanges. Texts are JSON; nothing that comes from another process is run. What ranks
tell each other without meeting goes through a :class:`flodl_pipe.cluster.bulletin.Bulletin`.
"""

import contextlib
import itertools
import json
import logging
import secrets
import struct
import weakref
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, final
from zlib import crc32

from torch import distributed
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined] # public; only type checkers are not told

from flodl_pipe.cluster.arrivals import Address, absent_ranks, forget, note, open_store
from flodl_pipe.cluster.bulletin import Bulletin, open_board
from flodl_pipe.cluster.exchange import Exchange, Lost, Record
from flodl_pipe.errors import ClusterError

__all__ = ["Member", "World"]

_log = logging.getLogger("flodl_pipe")

_FLOATS, _PLACE, _VALUE = 0, 2, 1  # of a value also what it is about
_FIRST_MEETING = "the first meeting of the ranks"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STORE_ANSWERS_WITHIN_S = 5.0


@final
class Member(NamedTuple):
    """A rank's place, which stays when torchrun deals global ranks anew.

    Attributes:
        host: Name of its host.
        local_rank: Its number among the ranks of that host.
    """

    host: str
    local_rank: int


@final
class World:
    """The ranks of a run. Made by :meth:`join`; one thread at a time talks.

    Args:
        exchange: What carries the words.
        members: The ranks' places, by global rank.
        timeout_s: Seconds within which the others must come to an exchange.
        word: A word that all of them know, and nobody else, earlier ones of the same run among them.

    Attributes:
        rank: This rank.
        world_size: How many there are.
        members: The ranks' places, by global rank.
        timeout_s: Seconds within which the others must come to an exchange.
    """

    def __init__(self, exchange: Exchange, members: Sequence[Member], timeout_s: float, word: str) -> None:
        self._exchange = exchange
        self._word = word
        self._board: Store | None = None
        self._num_bulletins = 0
        self.rank, self.world_size = exchange.rank, exchange.world_size
        self.members = tuple(members)
        self.timeout_s = timeout_s

    @classmethod
    def join(cls, host: str, local_rank: int | None, timeout_s: float) -> "World":
        """Find the other ranks; all must do so. A process that has joined them gets the same world again.

        Args:
            host: Name of this host.
            local_rank: This process among those of its host; None: as ranks of the host are ordered.
            timeout_s: Seconds within which the others must come, now and later.

        Raises:
            ClusterError: if torch.distributed is not initialised, if ranks do not come, or if two say that they are
                the same.
        """
        default = distributed.group.WORLD if distributed.is_available() and distributed.is_initialized() else None
        if default is None:
            raise ClusterError(
                "torch.distributed is not initialised in this process; call torch.distributed.init_process_group() "
                "before the ranks join"
            )
        known = _joined.get(default)
        if known is not None:
            known.require_same(host, local_rank, timeout_s)
            return known
        world = _meet(host, local_rank, timeout_s)
        _joined[default] = world
        return world

    def gather(self, value: Any, what: str, *, detail: str = "") -> list[Any]:
        """Return what every rank says, by rank. All ranks must call this, with a value of their own.

        Args:
            value: Anything that JSON holds.
            what: What the ranks meet for; the same on all.
            detail: What else errors say of it, which may differ.

        Raises:
            ClusterError: if ranks do not come in time, or have gone, and every later call is refused then; or if some
                have come for something else. They are named.
            TypeError, ValueError: if JSON does not hold the value.
        """
        kind = crc32(what.encode()) | _VALUE
        return [json.loads(payload) for payload in self._all(kind, json.dumps(value).encode(), what + detail)]

    def gather_floats(self, values: Sequence[float], what: str) -> list[tuple[float, ...]]:
        """Return the numbers of every rank, by rank, bit by bit as they were; like :meth:`gather`, and cheaper."""
        payloads = self._all(_FLOATS, struct.pack(f"<{len(values)}d", *values), what)
        return [struct.unpack(f"<{len(payload) // 8}d", payload) for payload in payloads]

    def bulletin(self, what: str) -> Bulletin:
        """Return a new place where ranks tell each other something without meeting.

        All ranks make theirs in the same order: the first of each is one, the second another. Nobody waits for that.

        Args:
            what: What it is about, in words.
        """
        if self._board is None:
            self._board = open_board(self._word)
        self._num_bulletins += 1
        place = None if self._board is None else PrefixStore(str(self._num_bulletins), self._board)
        return Bulletin(place, what)

    def name(self, rank: int) -> str:
        """Return how a rank is called: ``host/local_rank``."""
        member = self.members[rank]
        return f"{member.host}/{member.local_rank}"

    def names(self, ranks: Sequence[int]) -> str:
        """Return how ranks are called, at most eight of them and how many more."""
        few = ", ".join(map(self.name, ranks[:8]))
        return f"{few} and {len(ranks) - 8} more" if len(ranks) > 8 else few

    @property
    def co_hosted(self) -> tuple[int, ...]:
        """Ranks of this host, in order of local rank; this one among them."""
        host = self.members[self.rank].host
        ranks = [rank for rank, member in enumerate(self.members) if member.host == host]
        return tuple(sorted(ranks, key=lambda rank: self.members[rank].local_rank))

    def require_same(self, host: str, local_rank: int | None, timeout_s: float) -> None:
        """Refuse another place for a rank that has one; say so if a deadline comes too late.

        Raises:
            ClusterError: if the place is another.
        """
        mine = self.members[self.rank]
        if host != mine.host or local_rank not in (None, mine.local_rank):
            raise ClusterError(
                f"this process has joined the other ranks as {self.name(self.rank)}, and now says that it is "
                f"{host}/{local_rank}; the name of a host stays while its processes run"
            )
        if timeout_s != self.timeout_s:
            _log.warning(
                "cluster.timeout_s=%g has no effect: this process has joined the other ranks with %g s",
                *(timeout_s, self.timeout_s),
            )

    def close(self) -> None:
        """End this way to talk; the process group of the training loop stays. May be called again."""
        self._exchange.close()
        default = distributed.group.WORLD
        if default is not None and _joined.get(default) is self:
            del _joined[default]

    def _all(self, kind: int, payload: bytes, what: str) -> list[bytes]:
        """Exchange, and see to it that all ranks are at an exchange of this kind."""
        try:
            records = self._exchange.all(Record(kind, payload), self.timeout_s, what)
            if any(record.kind != kind for record in records):
                places = self._exchange.all(Record(_PLACE, what.encode()), self.timeout_s, what)
                told = "; ".join(f"{self.name(rank)}: {place.payload.decode()}" for rank, place in enumerate(places))
                raise ClusterError(f"ranks wait for each other at different places; all must do the same: {told}")
        except Lost as lost:
            raise ClusterError(_missing(self.names(lost.ranks), lost, what, self.timeout_s)) from None
        return [record.payload for record in records]


_numbered = itertools.count()
# By default group, for as long as torch.distributed has it.
_joined: "weakref.WeakKeyDictionary[distributed.ProcessGroup, World]" = weakref.WeakKeyDictionary()


def _meet(host: str, local_rank: int | None, timeout_s: float) -> World:
    """Make the group, and let all ranks say where they are."""
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    exchange = Exchange(_new_group(rank, world_size, timeout_s), rank, world_size)
    said = json.dumps([host, local_rank, _boot_id(), secrets.token_hex(8)]).encode()
    try:
        records = exchange.all(Record(_VALUE, said), timeout_s, _FIRST_MEETING)
    except Lost as lost:
        raise ClusterError(_missing(_numbers(lost.ranks), lost, _FIRST_MEETING, timeout_s)) from None
    places = [json.loads(record.payload) for record in records]
    members = _members([(place[0], place[1]) for place in places])
    twice = [member for member, count in Counter(members).items() if count > 1]
    if twice:
        exchange.close()
        ranks = [rank for rank, member in enumerate(members) if member == twice[0]]
        raise ClusterError(
            f"{_numbers(ranks)} all say that they are {twice[0].host}/{twice[0].local_rank}; give each host a name of "
            "its own (FLODL_PIPE_HOST), and each process of a host its LOCAL_RANK, as torchrun does"
        )
    if rank == 0:
        _warn_of_one_machine([(place[0], place[2]) for place in places])
    return World(exchange, members, timeout_s, word=places[0][3])


def _new_group(rank: int, world_size: int, timeout_s: float) -> distributed.ProcessGroup:
    """Make a gloo group of all ranks. Who has come to this is noted in the store, where there is one, for errors."""
    place = f"joining {next(_numbered)}"
    store = None
    if (address := Address.from_environment()) is not None:
        try:
            store = open_store(address, serve=False, timeout_s=min(timeout_s, _STORE_ANSWERS_WITHIN_S))
            note(store, place, rank)
        except RuntimeError:  # the ranks have found each other in another way
            store = None
    try:
        group: distributed.ProcessGroup | None = distributed.new_group(
            backend="gloo", timeout=timedelta(seconds=timeout_s)
        )
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0][:300]
        missing: list[int] = []
        if store is not None:
            with contextlib.suppress(RuntimeError):
                missing = absent_ranks(store, place, world_size)
        who = _numbers(missing) if missing else "some ranks"
        raise ClusterError(
            f"{who} of a world of {world_size} did not come to {_FIRST_MEETING} within {timeout_s:g} s "
            f"(cluster.timeout_s): all ranks must build their loader, and do so at the same place; {reason}"
        ) from error
    assert group is not None
    if store is not None:
        with contextlib.suppress(RuntimeError):
            forget(store, place, rank)
    return group


def _members(places: Sequence[tuple[str, int | None]]) -> list[Member]:
    """Give ranks that do not know their number on their host the one that they have in order of global rank."""
    seen: Counter[str] = Counter()
    members = []
    for host, local_rank in places:
        members.append(Member(host, seen[host] if local_rank is None else local_rank))
        seen[host] += 1
    return members


def _warn_of_one_machine(hosts: Sequence[tuple[str, str]]) -> None:
    """Say once that hosts of different names are one machine: each of them would plan with all of its memory."""
    names: dict[str, dict[str, None]] = {}
    for host, boot_id in hosts:
        names.setdefault(boot_id, {})[host] = None
    for boot_id, several in names.items():
        if boot_id and len(several) > 1:
            _log.warning(
                "hosts %s are one machine (they have the same boot id), so its memory is counted %d times; give its "
                "ranks one FLODL_PIPE_HOST, or lower loader.ram_max_usage",
                *(", ".join(several), len(several)),
            )


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return ""


def _numbers(ranks: Sequence[int]) -> str:
    few = ", ".join(map(str, ranks[:8]))
    return f"rank {few} and {len(ranks) - 8} more" if len(ranks) > 8 else f"rank {few}"


def _missing(who: str, lost: Lost, what: str, timeout_s: float) -> str:
    if lost.is_late:
        return (
            f"{who} did not come to {what} within {timeout_s:g} s (cluster.timeout_s); see what became of it, or raise "
            "the time if it is only slow"
        )
    return f"{who} closed its connection before {what}: it has ended, or given up; see what it says"
