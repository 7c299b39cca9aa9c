"""Who reads: the readers ahead of the loop, the loop along with them, or the loop alone.

Reading ahead is free as long as the readers get a processor and, for a moment between two reads, the interpreter. Two
kinds of loop deny them one or the other:

* A loop that needs less time for a step than a reader does is waiting, and its processor is idle. It then *helps*: it
  fills groups itself instead of waiting, beside the readers.
* A loop in pure Python keeps the interpreter. A thread gets it by force after 5 ms (the interpreter's switch interval),
  and not even then from a loop that lets go of it for an instant now and again, as the end of every torch tensor does:
  the waiting thread wakes too late each time, and its 5 ms begin anew (seconds without a turn were measured, CPython
  3.11). Then the loop waits for every group, for longer than reading it would have taken. It goes on *alone*: the
  readers rest, and the loop reads what it needs.

Both are decided by measured times per step, in moving averages. Reading alone is given up when it takes longer than
waiting did, as it does where a read waits for a disk; and it is put to the test now and again, because loops change.
None of this has any influence on which samples come when.
"""

from typing import final

__all__ = ["Pace"]

_WEIGHT = 0.3
# Groups read alone before the readers get another chance, and groups of that chance.
_ALONE_GROUPS = 256
_CHANCE_GROUPS = 4


@final
class Pace:
    """Moving averages, and what follows from them. Each method is called by one thread at a time.

    Args:
        num_readers: Reader threads.
    """

    def __init__(self, num_readers: int) -> None:
        self._num_readers = num_readers
        self._loop_step_s: float | None = None
        self._reader_step_s: float | None = None
        self._alone_step_s: float | None = None
        self._wait_step_s: float | None = None
        self._groups_left = _CHANCE_GROUPS
        self.alone = num_readers == 0

    def loop_took(self, seconds: float, num_steps: int) -> None:
        """Note how long the loop kept a group, from taking it to asking for the next."""
        self._loop_step_s = _average(self._loop_step_s, seconds / num_steps)

    def reader_took(self, processor_s: float, num_steps: int) -> None:
        """Note the processor time that a reader needed for a group."""
        self._reader_step_s = _average(self._reader_step_s, processor_s / num_steps)

    def loop_waited(self, seconds: float, num_steps: int) -> None:
        """Note how long the loop waited for a group, or read it alone, and decide how to go on."""
        if not self._num_readers:
            return
        self._groups_left -= 1
        if self.alone:
            self._alone_step_s = _average(self._alone_step_s, seconds / num_steps)
            dearer = self._wait_step_s is not None and self._alone_step_s > self._wait_step_s
            if dearer or self._groups_left <= 0:
                self.alone, self._groups_left, self._wait_step_s = False, _CHANCE_GROUPS, None
            return
        self._wait_step_s = _average(self._wait_step_s, seconds / num_steps)
        price = self._reader_step_s if self._alone_step_s is None else self._alone_step_s
        if self._groups_left <= 0 and not self.helps and price is not None and self._wait_step_s > price:
            self.alone, self._groups_left = True, _ALONE_GROUPS

    @property
    def helps(self) -> bool:
        """Whether the loop is faster than its readers."""
        loop, reader = self._loop_step_s, self._reader_step_s
        return loop is not None and reader is not None and loop * max(1, self._num_readers) < reader


def _average(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
