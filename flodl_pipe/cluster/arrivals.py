"""Who has come, told by keys in the store through which torch.distributed starts.

Before ranks are connected, the store is all they share: a server of keys and values at MASTER_ADDR:MASTER_PORT, kept by
torchrun's agent, or by rank 0. torchrun may use one store for several attempts, so keys of ranks that have long ended
are there too, with their addresses. :func:`meet` makes a place in the store that is of this attempt alone::

    each rank     asks, under its number, with a word that nobody has used before
    rank 0        answers every word it sees, with one word of its own: the place of this attempt
    each rank     notes in that place that it has come, and waits until all have
"""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple, final

from torch.distributed import (  # type: ignore[attr-defined] # they are public; only type checkers are not told
    PrefixStore,
    Store,
    TCPStore,
)

from flodl_pipe.errors import ClusterError

__all__ = ["Address", "absent_ranks", "forget", "meet", "note", "open_store"]

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_ROOT = "flodl_pipe"
_FIRST_LOOK_S, _LOOK_EVERY_S = 0.002, 0.05


@final
class Address(NamedTuple):
    """Where the store is, and who keeps it.

    Attributes:
        host: Name or address.
        port: TCP port.
        is_agents: Whether torchrun's agent keeps it; else rank 0 does.
    """

    host: str
    port: int
    is_agents: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Address | None":
        """Read MASTER_ADDR and MASTER_PORT; None where they are not set, or no address."""
        host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            return None
        return cls(host, int(port), environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True")


def open_store(address: Address, *, serve: bool, timeout_s: float) -> Store:
    """Connect to the store, and keep it here if asked to.

    Raises:
        RuntimeError: if there is none within the time, or its port is taken.
    """
    return TCPStore(
        address.host,
        address.port,
        None,
        serve,
        timedelta(seconds=timeout_s),
        wait_for_workers=False,
        multi_tenant=True,
    )


def meet(store: Store, rank: int, world_size: int, timeout_s: float, *, began: float) -> Store:
    """Wait for all ranks, and return a part of the store that only these have, with nothing in it of earlier ones.

    Args:
        store: The store of all ranks.
        rank: This rank.
        world_size: How many there are.
        timeout_s: Seconds within which all must come.
        began: ``time.monotonic()`` when this rank began to wait.

    Raises:
        ClusterError: if ranks have not come within the time; they are named.
        RuntimeError: if the store is gone.
    """
    deadline = began + timeout_s
    word = secrets.token_hex(8)
    store.set(_asks(rank), word)
    place = word if rank == 0 else ""
    answered: set[str] = set()
    missing = [0]
    look_s = _FIRST_LOOK_S
    while True:
        if rank == 0:
            _answer(store, world_size, place, answered)
        elif not place and store.check([_answer_to(word)]):
            place = store.get(_answer_to(word)).decode()
        if place:
            note(store, place, rank)
            missing = absent_ranks(store, place, world_size)
            if not missing:
                return PrefixStore(f"{_ROOT}/{place}", store)
        gave_up = bool(place) and store.check([_gave_up(place)])
        if gave_up or time.monotonic() >= deadline:
            if place and not gave_up:
                store.set(_gave_up(place), "1")
            if rank == 0:  # it may keep the store, and the others look there for who is missing
                time.sleep(4 * _LOOK_EVERY_S)
            raise ClusterError(_did_not_come(missing, world_size, timeout_s))
        time.sleep(look_s)
        look_s = min(2 * look_s, _LOOK_EVERY_S)


def _answer(store: Store, world_size: int, place: str, answered: set[str]) -> None:
    """Tell every rank that asks where to meet."""
    for rank in range(1, world_size):
        if store.check([_asks(rank)]) and (word := store.get(_asks(rank)).decode()) not in answered:
            store.set(_answer_to(word), place)
            answered.add(word)


def note(store: Store, place: str, rank: int) -> None:
    """Note that a rank has come."""
    store.set(_came(place, rank), "1")


def forget(store: Store, place: str, rank: int) -> None:
    """Take back what :func:`note` has noted."""
    store.delete_key(_came(place, rank))


def absent_ranks(store: Store, place: str, world_size: int) -> list[int]:
    """Return the ranks that have not come, ascending."""
    if store.check([_came(place, rank) for rank in range(world_size)]):
        return []
    return [rank for rank in range(world_size) if not store.check([_came(place, rank)])]


def _asks(rank: int) -> str:
    return f"{_ROOT}/asks/{rank}"


def _answer_to(word: str) -> str:
    return f"{_ROOT}/answer/{word}"


def _came(place: str, rank: int) -> str:
    return f"{_ROOT}/{place}/came/{rank}"


def _gave_up(place: str) -> str:
    return f"{_ROOT}/{place}/gave_up"


def _did_not_come(missing: Sequence[int], world_size: int, timeout_s: float) -> str:
    few = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    return (
        f"rank {few} of a world of {world_size} did not come within {timeout_s:g} s (cluster.timeout_s); see what "
        "became of it, start as many processes as WORLD_SIZE says, or raise the time"
    )
