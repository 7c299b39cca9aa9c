"""No thread of the client may be in Python when the interpreter goes down.

A thread of the client library hands each answer over: it takes the interpreter's lock, sets the future's result, wakes
the event loop, and leaves. The loop may run on before that thread has the lock back, and so may the whole program, to
its end. CPython before 3.14 ends a thread that asks for the lock once finalisation has begun by unwinding its stack,
which Rust code answers by aborting the process: exit status 134 after a run in which all was well.

The library has no call to wait for its threads. But they hold references to the future of a request, and drop the last
one after everything else they do with Python in its behalf, without giving the lock up in between. So a request is open
until its future is freed, whatever became of it (answered, failed, cancelled), and an exit hook ends the flights that
other threads are still in, lets no new ones begin, and waits until no request is open.
"""

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import Awaitable
from typing import TypeVar, final

from flodl_pipe.errors import SourceError

__all__ = ["OPEN", "OpenRequests"]

T = TypeVar("T")

_PATIENCE_S = 10.0
"""Longest wait at exit. Requests that were cancelled are let go of within milliseconds."""

_PRUNE_FROM = 1024


@final
class OpenRequests:
    """The flights of this process that are under way, and the requests that the client holds. Thread-safe."""

    def __init__(self) -> None:
        self._pid = 0
        self._lock = threading.Lock()
        self._closing = False
        self._flights: dict[asyncio.Task[None], asyncio.AbstractEventLoop] = {}
        # By loop, because a loop must outlive the requests that report to it: freeing one runs Python code. Without
        # callbacks, for the same reason.
        self._requests: dict[asyncio.AbstractEventLoop, list[weakref.ref[Awaitable[object]]]] = {}

    def begin(self, task: "asyncio.Task[None]", loop: asyncio.AbstractEventLoop) -> None:
        """Note that a flight begins.

        Raises:
            SourceError: if the interpreter is about to exit.
        """
        with self._lock:
            if self._closing:
                raise SourceError("remote data cannot be read any more: the interpreter is about to exit")
            self._pid = os.getpid()
            self._flights[task] = loop
            self._requests[loop] = []

    def note(self, future: Awaitable[T]) -> Awaitable[T]:
        """Note a request that was just made, in a flight; returns it. Nothing else should keep it once it is done."""
        mine = self._requests[asyncio.get_running_loop()]
        mine.append(weakref.ref(future))
        if len(mine) >= _PRUNE_FROM:  # a flight may be of any number of requests, of which few are open at a time
            mine[:] = _alive(mine)
        return future

    def done(self, task: "asyncio.Task[None]") -> None:
        """Note that a flight is over."""
        with self._lock:
            self._flights.pop(task, None)
            self._prune()

    def close(self) -> None:
        """End all flights, let none begin, and wait until the client has let go of every request."""
        if os.getpid() != self._pid:
            return  # nothing was read, or this is a fork, where the threads of the client are not
        with self._lock:
            self._closing = True
            for task, loop in self._flights.items():
                loop.call_soon_threadsafe(task.cancel)
        until_s = time.monotonic() + _PATIENCE_S
        while self._is_busy() and time.monotonic() < until_s:
            _collect_dropped()
            time.sleep(0.001)

    def _is_busy(self) -> bool:
        with self._lock:
            self._prune()
            return bool(self._flights or self._requests)

    def _prune(self) -> None:
        flying = set(self._flights.values())
        for loop in [loop for loop in self._requests if loop not in flying]:
            left = _alive(self._requests[loop])
            if left:
                self._requests[loop] = left
            else:
                del self._requests[loop]


def _alive(requests: "list[weakref.ref[Awaitable[object]]]") -> "list[weakref.ref[Awaitable[object]]]":
    return [one for one in requests if one() is not None]


def _collect_dropped() -> None:
    """Have references freed that the client's threads dropped without the lock: any call into the library does it."""
    from obstore.store import MemoryStore  # noqa: PLC0415 - an extra, and there if a request was made

    MemoryStore()


OPEN = OpenRequests()
"""Those of this process."""

atexit.register(OPEN.close)
