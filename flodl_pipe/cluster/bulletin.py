"""What ranks tell each other without meeting: entries in the store through which torch.distributed has started.

Who has something to say writes it, at any time and from any thread; who wants to know looks. Nobody waits for another
rank. An entry is made in two calls, and found by asking how many numbers are taken::

    post    add("taken", 1) -> 7    set("7", text)
    read    add("taken", 0) -> 7    get what is there of those that are not known yet

Where ranks post and read then, at least one of two who do so at once has found the other's entry: numbers are taken,
and entries set, before anything is read. While there is nothing new, a look is one round trip: 40 us on one machine
(2 cores, torch 2.13). A number whose entry is not there yet, or never will be, costs one more.

The store is that of the default process group, over a connection of our own, so that nobody waits for what else is
waited for in it. It ends with the group, or with rank 0 where that one keeps it: then each rank goes on alone.
"""

import contextlib
import logging
import os
import threading
import weakref
from typing import final

from torch import distributed
from torch.distributed import (  # type: ignore[attr-defined] # they are public; only type checkers are not told
    PrefixStore,
    Store,
)
from torch.distributed.distributed_c10d import _get_default_store

__all__ = ["Bulletin", "open_board"]

_log = logging.getLogger("flodl_pipe")

_TAKEN = "taken"


def open_board(word: str) -> Store | None:
    """Return a part of the default group's store, over a connection of its own where it can be had; None: gone.

    Args:
        word: Names the part; of these ranks and this start alone, since the store may have served earlier ones.
    """
    try:
        store = _get_default_store()
    except ValueError:
        return None
    with contextlib.suppress(AttributeError, RuntimeError):  # an older torch, or a store that cannot be had twice
        store = store.clone()  # type: ignore[attr-defined] # only type checkers are not told
    return PrefixStore(f"flodl_pipe/{word}", store)


@final
class Bulletin:
    """Texts of all ranks, in the order in which they were posted, but for those that are there late. Thread-safe.

    Args:
        store: Where they are kept; its keys are this bulletin's alone. None: there is none any more.
        what: What it is about, in words, for the warning that it has ended.
    """

    def __init__(self, store: Store | None, what: str) -> None:
        self._store = store
        self._what = what
        self._group = _default_group()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._ended = False
        self._known: list[str] = []
        self._num_taken = 0
        self._awaited: list[int] = []

    @property
    def is_open(self) -> bool:
        """Whether other ranks can be heard: the store is there, and this is no forked child, which has no rank."""
        group = None if self._group is None else self._group()
        is_there = group is not None and distributed.group.WORLD is group and self._store is not None
        return is_there and not self._ended and os.getpid() == self._process

    def post(self, text: str) -> None:
        """Tell all ranks something. Where that cannot be, it is said once, as a warning, and nothing is done."""
        if not self.is_open or self._store is None:
            if os.getpid() == self._process:
                self._end("the process group has ended")
            return
        try:
            number = self._store.add(_TAKEN, 1)
            self._store.set(str(number), text)
        except RuntimeError as error:
            self._end(_reason(error))

    def read(self, after: int = 0) -> list[str]:
        """Return what all ranks have posted so far, this one among them, or what is known of it when that has ended.

        Args:
            after: How many to leave out: those that were returned before. Order and number of the others stay.
        """
        if self.is_open and self._store is not None:
            with self._lock:
                try:
                    self._look(self._store)
                except RuntimeError as error:
                    self._end(_reason(error))
        return self._known[after:]

    def _look(self, store: Store) -> None:
        taken = store.add(_TAKEN, 0)
        self._awaited += range(self._num_taken + 1, taken + 1)
        self._num_taken = taken
        there = [number for number in self._awaited if store.check([str(number)])]
        texts = [store.get(str(number)).decode() for number in there]
        self._awaited = [number for number in self._awaited if number not in there]
        self._known += texts

    def _end(self, why: str) -> None:
        if not self._ended:
            self._ended = True
            _log.warning("%s are no longer shared with the other ranks, each goes on alone: %s", self._what, why)


def _default_group() -> "weakref.ref[distributed.ProcessGroup] | None":
    group = distributed.group.WORLD
    return None if group is None else weakref.ref(group)


def _reason(error: RuntimeError) -> str:
    return str(error).strip().partition("\n")[0][:300]
