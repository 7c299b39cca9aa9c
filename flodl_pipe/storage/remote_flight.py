"""Many requests in flight at once, from one thread, with one deadline for all of them.

The client's calls are asynchronous and run on its own threads; they report to an event loop. The loop lives for one
call, in the caller's thread, so that a reader thread, a main thread and a notebook cell (whose thread already runs a
loop) are all served alike, and nothing is left behind.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from types import FrameType
from typing import final

from flodl_pipe.errors import SourceError
from flodl_pipe.storage.remote_exit import OPEN

__all__ = ["Ended", "Flights", "Overdue", "fly"]

_process: int | None = None


@final
class Overdue(Exception):  # noqa: N818 - worded by whoever knows what was asked for
    """The deadline passed."""


@final
class Ended(Exception):  # noqa: N818 - as above
    """Another thread ended the flight."""


@final
class Flights:
    """Flights that are under way, for another thread to end. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[asyncio.Task[None], asyncio.AbstractEventLoop] = {}

    def begin(self, task: "asyncio.Task[None]", loop: asyncio.AbstractEventLoop) -> None:
        """Note that a flight begins."""
        with self._lock:
            self._under_way[task] = loop

    def done(self, task: "asyncio.Task[None]") -> bool:
        """Note that a flight is over; return whether it was left to end by itself."""
        with self._lock:
            return self._under_way.pop(task, None) is not None

    def end(self) -> None:
        """End all that are under way."""
        with self._lock:
            for task, loop in self._under_way.items():
                loop.call_soon_threadsafe(task.cancel)
            self._under_way.clear()


def fly(
    jobs: Iterable[Callable[[], Awaitable[None]]],
    *,
    in_flight: int,
    deadline_s: float,
    flights: Flights | None = None,
) -> None:
    """Run jobs, at most ``in_flight`` of them at any time, in the order given; return when all are done.

    The first error ends the others.

    Args:
        jobs: What to run.
        in_flight: Most at a time.
        deadline_s: Seconds for all of them.
        flights: Where the flight is listed, so that another thread can end it.

    Raises:
        Overdue: if they are not done after ``deadline_s`` seconds.
        Ended: if another thread ended them.
        SourceError: in a process forked from one that has used the client, and when the interpreter is about to exit.
    """
    _require_own_process()
    with _outside_other_loops(), _interruptible() as loops, contextlib.closing(asyncio.new_event_loop()) as loop:
        loops.append(loop)
        _fly(loop, _run(iter(jobs), in_flight, deadline_s), flights or Flights())


def _fly(loop: asyncio.AbstractEventLoop, flight: Coroutine[None, None, None], listed: Flights) -> None:
    task = loop.create_task(flight)
    try:
        OPEN.begin(task, loop)
        listed.begin(task, loop)
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            if listed.done(task):
                raise SourceError("remote data was not read to the end: the interpreter is about to exit") from None
            raise Ended from None
    finally:
        _end(loop)
        listed.done(task)
        OPEN.done(task)


@contextlib.contextmanager
def _interruptible() -> Iterator[list[asyncio.AbstractEventLoop]]:
    """Let Ctrl-C cancel the flight of the loop that is put into the list, and raise it after.

    Raised wherever the thread happens to be, it may be lost, or break off a flight's clean-up: exceptions in a callback
    for a freed task, of which a flight has many, are printed and ignored.
    """
    loops: list[asyncio.AbstractEventLoop] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield loops
        return
    pressed = False

    def cancel(loop: asyncio.AbstractEventLoop) -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()

    def press(_number: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        for loop in loops:
            if not loop.is_closed():
                loop.call_soon_threadsafe(cancel, loop)

    signal.signal(signal.SIGINT, press)
    try:
        yield loops
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            raise KeyboardInterrupt from None


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what still runs, and see it end: a request that is left behind would report to a loop that is closed."""
    while running := asyncio.all_tasks(loop):
        for task in running:
            task.cancel()
        with contextlib.suppress(BaseException):  # a second Ctrl-C, which would leave them
            loop.run_until_complete(asyncio.wait(running))


async def _run(jobs: Iterator[Callable[[], Awaitable[None]]], in_flight: int, deadline_s: float) -> None:
    async def work() -> None:
        for job in jobs:
            await job()

    workers = [asyncio.ensure_future(work()) for _ in range(in_flight)]
    try:
        done, late = await asyncio.wait(workers, timeout=deadline_s, return_when=asyncio.FIRST_EXCEPTION)
        for worker in done:
            worker.result()
        if late:
            raise Overdue
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def _require_own_process() -> None:
    """Refuse a forked child: the client's threads did not follow it there, and a request would wait for ever."""
    global _process  # noqa: PLW0603 - the client's threads are as global as this
    if _process is None:
        _process = os.getpid()
    if _process != os.getpid():
        raise SourceError(
            f"process {os.getpid()} was forked from process {_process} after that had opened remote data, and cannot "
            "read any: the threads of the client do not follow a fork. Start processes by 'spawn' or 'forkserver' "
            "(multiprocessing.get_context('spawn')), or open remote data only in the children"
        )


@contextlib.contextmanager
def _outside_other_loops() -> Iterator[None]:
    """Let a loop run in a thread that already runs one, as a notebook's does; that one waits, as for any other call."""
    outer = asyncio._get_running_loop()  # noqa: SLF001 - documented for those who extend asyncio, like the others here
    if outer is None:
        yield
        return
    task = asyncio.current_task(outer)
    if task is not None:
        asyncio._leave_task(outer, task)  # noqa: SLF001
    asyncio._set_running_loop(None)  # noqa: SLF001
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)  # noqa: SLF001
        if task is not None:
            asyncio._enter_task(outer, task)  # noqa: SLF001
