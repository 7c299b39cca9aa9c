"""What a pass left out, read when nobody waits: a last batch that was dropped, of a set that is kept as it is read."""

import logging
import threading
from collections.abc import Callable
from typing import final

from flodl_pipe.loader.at_exit import is_own_thread, join_readers
from flodl_pipe.sources.door import Demand, demanded_by

__all__ = ["Rest"]

_log = logging.getLogger("flodl_pipe")


@final
class Rest:
    """Reads in a thread of its own, between two passes."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._demand = Demand()

    def start(self, read: Callable[[], None]) -> None:
        """Begin to read, unless it was ended.

        Args:
            read: Reads; what it raises shows again where the loop asks for the same samples.
        """
        self.settle()
        if not self._demand.is_ended:
            self._thread = threading.Thread(target=self._run, args=(read,), name="flodl_pipe-rest", daemon=True)
            self._thread.start()

    def settle(self) -> None:
        """Wait until what was begun has been read: at most the samples of a batch."""
        thread = self._thread
        if thread is not None and not is_own_thread():
            thread.join()
            self._thread = None

    def end(self) -> None:
        """Read no more; return when the thread has ended, after the sample in hand."""
        self._demand.end()
        thread = self._thread
        if thread is not None and not is_own_thread():
            join_readers([thread], lambda: None)
            self._thread = None

    def _run(self, read: Callable[[], None]) -> None:
        try:
            with demanded_by(self._demand):
                read()
        except Exception as error:  # noqa: BLE001 - the reader that meets it again raises it in the loop
            if not self._demand.is_ended:
                _log.info("what the pass left out is not read ahead: %s", error)
