"""Ctrl-C and SIGTERM, between two steps.

An exception in the middle of taking a batch could leave the cursor and the digest a step apart. So the first signal
only sets a flag, which the loop looks at after each step. A second one acts at once: Ctrl-C is the usual
``KeyboardInterrupt``, and SIGTERM, with which schedulers end a job, leaves with the status of a process it killed.
"""

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self, final

__all__ = ["Interrupt"]

# A pretended computation is cut short within this time.
_LOOK_EVERY_S = 0.05
# What a signal does where nobody changed it. Where somebody did, it stays theirs.
_USUAL: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@final
class Interrupt:
    """A context manager that holds both signals back.

    It changes nothing outside the main thread, nor for a signal that is ignored or has another handler already.

    Attributes:
        asked: The signal that came, None before.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._installed: list[signal.Signals] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, usual in _USUAL.items():
                if signal.getsignal(number) is usual:
                    signal.signal(number, self._note)
                    self._installed.append(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._installed:
            signal.signal(number, _USUAL[number])
        self._installed.clear()

    def sleep(self, seconds: float) -> None:
        """Sleep, but not on after a signal."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0 and self.asked is None:
            time.sleep(min(left, _LOOK_EVERY_S))

    def leave(self) -> None:
        """End the program as the signal that came asks; without one, do nothing.

        Raises:
            KeyboardInterrupt: after Ctrl-C.
            SystemExit: with status 143 after SIGTERM.
        """
        if self.asked is not None:
            _leave(self.asked)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.asked is not None:
            _leave(signal.Signals(number))
        self.asked = signal.Signals(number)


def _leave(number: signal.Signals) -> None:
    if number is signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
