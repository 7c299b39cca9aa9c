"""Who may work on a device now: background work, one piece at a time, or whoever holds it off.

A lock would do for that, but for one thing: who holds work off may also end it, for example by leaving a loop inside
``with loader.pause()``. So whoever waits here is woken by the end of its pass too.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import final

from flodl_pipe.errors import LoaderError

__all__ = ["Gate"]


@final
class Gate:
    """Lets background work pass, or holds it. Thread-safe."""

    def __init__(self) -> None:
        # Reentrant: collecting garbage inside a method may finalise a pass, which wakes.
        self._changed = threading.Condition(threading.RLock())
        self._pausing: list[int] = []
        self._working: int | None = None
        self._depth = 0

    @contextlib.contextmanager
    def work(self, is_stopped: Callable[[], bool]) -> Iterator[bool]:
        """Do a piece of work on the device, as soon as nobody holds it off.

        Args:
            is_stopped: Whether there is nothing to wait for any more.

        Yields:
            Whether to do it; False when it was stopped meanwhile.

        Raises:
            LoaderError: if this very thread holds it off.
        """
        own = threading.get_ident()
        with self._changed:
            while not is_stopped() and (self._pausing or self._working not in (None, own)):
                self.require_running()
                self._changed.wait()
            goes_on = not is_stopped()
            if goes_on:
                self._working = own
                self._depth += 1
        try:
            yield goes_on
        finally:
            if goes_on:
                with self._changed:
                    self._depth -= 1
                    if not self._depth:
                        self._working = None
                        self._changed.notify_all()

    @contextlib.contextmanager
    def pause(self, *, forbids_own: bool = True) -> Iterator[None]:
        """Hold work off; what is at it finishes first.

        Args:
            forbids_own: Whether work of this thread is an error meanwhile.
        """
        own = threading.get_ident()
        mark = own if forbids_own else -1
        with self._changed:
            self._pausing.append(mark)
        try:  # Ctrl-C may come while it waits
            with self._changed:
                while self._working not in (None, own):
                    self._changed.wait()
            yield
        finally:
            with self._changed:
                self._pausing.remove(mark)
                self._changed.notify_all()

    def wake(self) -> None:
        """Let those who wait look whether they were stopped."""
        with self._changed:
            self._changed.notify_all()

    def require_running(self) -> None:
        """Refuse to wait for what this thread itself holds off.

        Raises:
            LoaderError: if this thread is inside :meth:`pause`.
        """
        if threading.get_ident() in self._pausing:
            raise LoaderError(
                "next() inside loader.pause() has no batch ready, and none can come: nothing is transferred until the "
                "with block ends; take the batch before it"
            )
