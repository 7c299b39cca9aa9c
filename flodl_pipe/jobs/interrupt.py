"""Ctrl-C, between two steps.

An exception in the middle of taking a batch could leave the cursor and the digest a step apart. So the first Ctrl-C
only sets a flag, which the loop looks at after each step; a second one is the usual ``KeyboardInterrupt``, at once.
"""

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Self, final

__all__ = ["Interrupt"]

# A pretended computation is cut short within this time.
_LOOK_EVERY_S = 0.05


@final
class Interrupt:
    """A context manager that holds Ctrl-C back; outside the main thread, or where it is ignored, it changes nothing."""

    def __init__(self) -> None:
        self.asked = False
        self._installed = False

    def __enter__(self) -> Self:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def sleep(self, seconds: float) -> None:
        """Sleep, but not on after Ctrl-C."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0 and not self.asked:
            time.sleep(min(left, _LOOK_EVERY_S))

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            signal.default_int_handler(number, frame)
        self.asked = True
