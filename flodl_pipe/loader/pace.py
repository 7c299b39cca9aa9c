"""How the loop and its readers share two things that are scarce: processors, and the interpreter.

Reading ahead is free as long as a reader gets a processor and, for a moment between two reads, the interpreter (the
GIL). Two kinds of loop deny it one or the other:

* A loop that needs less time for a step than a reader does is waiting, and its processor is idle. It then *helps*: it
  fills groups itself instead of waiting, beside the readers.
* A loop in pure Python keeps the interpreter. Another thread gets it by force after 5 ms (the switch interval), and not
  even then from a loop that lets go of it for an instant now and again, as the end of every torch tensor does: the
  waiting thread wakes too late each time, and its 5 ms begin anew (seconds without a turn were measured, CPython 3.11).
  So a loop that computes for long in a step *hands over* between two of them while a reader has work: ``sleep(0)``
  wakes the waiting reader and lets it pass; it costs about 2 us where nobody waits.

How much is read together and ahead of the loop is bounded in time where a sample may take long: see
:meth:`Pace.steps_within`.

Nothing of this has any influence on which samples come when.
"""

from typing import final

__all__ = ["Pace"]

_WEIGHT = 0.3


@final
class Pace:
    """Measured times per step, as moving averages. Each method is called by one thread at a time.

    Args:
        num_readers: Reader threads.
    """

    def __init__(self, num_readers: int) -> None:
        self._num_readers = num_readers
        self._loop_step_s: float | None = None
        self._computed_step_s: float | None = None
        self._reader_step_s: float | None = None
        self._quick_step_s: float | None = None
        self.helps = num_readers == 0
        self.hands_over = False

    def loop_computed(self, processor_s: float, num_steps: int) -> None:
        """Note the processor time of the loop's thread meanwhile, where it is known, before :meth:`loop_took`.

        A loop that waits, for a device or for a processor that others are using, does not keep the interpreter.
        """
        self._computed_step_s = _average(self._computed_step_s, processor_s / num_steps)

    def loop_took(self, seconds: float, num_steps: int) -> None:
        """Note how long the loop kept a group, from taking it to asking for the next, and decide how to go on."""
        step_s = self._loop_step_s = _average(self._loop_step_s, seconds / num_steps)
        if self._num_readers and self._reader_step_s is not None:
            self.helps = step_s * self._num_readers < self._reader_step_s
            kept_s = step_s if self._computed_step_s is None else min(step_s, self._computed_step_s)
            self.hands_over = kept_s > self._reader_step_s

    def reader_took(self, processor_s: float, num_steps: int, wall_s: float | None = None) -> None:
        """Note the time that a reader needed for a group: of the processor, and from begin to end."""
        self._reader_step_s = _average(self._reader_step_s, processor_s / num_steps)
        if wall_s is None:
            return
        step_s, quick_s = wall_s / num_steps, self._quick_step_s
        # A reader that others keep from running is not slow by itself: quick steps count at once, slow ones by and by.
        self._quick_step_s = step_s if quick_s is None or step_s < quick_s else _average(quick_s, step_s)

    def steps_within(self, seconds: float) -> int:
        """Return how many steps a reader reads in some time, as far as that is known; at least 1."""
        quick_s = self._quick_step_s
        return 1 if quick_s is None else max(1, int(seconds / max(quick_s, 1e-9)))


def _average(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
