"""What more readers would gain a loop that waits for a user's dataset, and how to have them: measured once, told once.

A dataset is read by one thread at a time until somebody says that it is thread-safe. Whether a second thread would help
depends on what reading does with the interpreter: decoding, inflating and waiting let go of it, Python keeps it. So
while the first samples are read again, a thread in pure Python runs beside: it gets the interpreter, or it does not.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import final

from flodl_pipe.units import format_duration

__all__ = ["Advice"]

_log = logging.getLogger("flodl_pipe")

# Of a thread beside one that keeps the interpreter: nothing within a turn of 5 ms, half the time in the long run.
_FREE = 0.7
# A second thread is dearer than samples that take less.
_DEAR_S = 100e-6
# A loop that waits for less has no need of advice.
_WORTH_S, _WORTH_SHARE = 5.0, 0.3


@final
class Advice:
    """Watches the first samples, and tells a loop that waits what it would gain.

    Args:
        owner: The dataset's type, for words.
        num_cpus: Processors there are.

    Attributes:
        sample_s: What a sample takes, in seconds; None until samples were watched.
        is_free: Whether reading lets go of the interpreter.
    """

    def __init__(self, owner: str, num_cpus: int) -> None:
        self._owner, self._num_cpus = owner, num_cpus
        self.sample_s: float | None = None
        self.is_free = False
        self._is_told = False

    @contextlib.contextmanager
    def watching(self, num_samples: int, sample_s: float) -> Iterator[None]:
        """Watch a read of some samples, if they take so long that it matters."""
        if sample_s < _DEAR_S:
            yield
            return
        done, beside_s = threading.Event(), 0.0

        def run() -> None:
            nonlocal beside_s
            began_s = time.thread_time()
            while not done.is_set():
                pass
            beside_s = time.thread_time() - began_s

        beside = threading.Thread(target=run, name="flodl_pipe-advice", daemon=True)
        beside.start()
        began_s = time.perf_counter()
        try:
            yield
        finally:
            took_s = time.perf_counter() - began_s
            done.set()
            beside.join()
        self.measured(took_s / num_samples, beside_s / took_s)

    def measured(self, sample_s: float, share: float) -> None:
        """Note what a sample takes, and which share of that time a thread beside had the interpreter."""
        self.sample_s, self.is_free = sample_s, share > _FREE

    def tell(self, wait_s: float, run_s: float) -> None:
        """Tell once, if the loop has waited for so much of its time that it is worth it.

        Args:
            wait_s: What it waited so far.
            run_s: How long it has run.
        """
        if self._is_told or self.sample_s is None or wait_s < max(_WORTH_S, _WORTH_SHARE * run_s):
            return
        self._is_told = True
        part, each = f"{wait_s / run_s:.0%}", format_duration(self.sample_s)
        waits = f"the loop waits {part} of its time for {self._owner}, {each} a sample"
        processes = f"reader_kind='process', readers={self._num_cpus}"
        if self.is_free:
            _log.warning(
                "%s. Reading lets go of the interpreter, so that %d threads could do up to %d times as much: if it may "
                "be read by several at once, say thread_safe=True, readers=%d (loader.readers and source.thread_safe "
                "in a recipe); if not, take processes, %s",
                *(waits, self._num_cpus, self._num_cpus, self._num_cpus, processes),
            )
        else:
            _log.warning(
                "%s. Reading keeps the interpreter, so that threads would gain nothing; processes could do up to %d "
                "times as much: %s (loader.* in a recipe)",
                *(waits, self._num_cpus, processes),
            )
