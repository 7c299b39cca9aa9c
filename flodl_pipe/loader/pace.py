"""Pace: how fast the loop takes batches, and what follows for the readers.

Two measurements, both as moving averages per step: the loop's own time between taking groups, and the processor time a
reader needs. From them:

* **Help.** A loop that needs less time for a step than a reader does is waiting, and its processor is idle. It then
  fills groups itself instead of waiting, which makes two cores read for a loop that does nothing else.
* **Portion.** A loop in pure Python holds the interpreter; a reader gets it about every 5 ms (the interpreter's switch
  interval), some four times per group. If a group lasts the loop as long as that, the reader keeps ahead; so a loop
  with steps of 0.3 to 10 ms gets groups that last 40 ms, as far as the ring allows. A faster loop gets small groups,
  which stay in the processor's cache; a slower one needs no large ones.

Neither has any influence on which samples come when.
"""

from typing import final

from flodl_pipe.loader.plan import EnginePlan

__all__ = ["Pace"]

_WEIGHT = 0.3
_QUICK_STEP_S = 300e-6
_GROUP_LASTS_S = 0.04


@final
class Pace:
    """Moving averages of loop and reader; each is written by one thread at a time.

    Args:
        plan: Sizes of groups and ring.
    """

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._loop_step_s: float | None = None
        self._fill_step_s: float | None = None

    def loop_took(self, seconds: float, num_steps: int) -> None:
        """Note how long the loop kept a group of ``num_steps``, without waiting."""
        self._loop_step_s = _average(self._loop_step_s, seconds / num_steps)

    def fill_took(self, processor_s: float, num_steps: int) -> None:
        """Note the processor time that filling a group took."""
        self._fill_step_s = _average(self._fill_step_s, processor_s / num_steps)

    @property
    def loop_should_help(self) -> bool:
        """Whether the loop is faster than its readers."""
        loop, fill = self._loop_step_s, self._fill_step_s
        return loop is not None and fill is not None and loop * max(1, self._plan.num_readers) < fill

    def portion(self) -> tuple[int, int]:
        """Return (steps of a group, steps in flight)."""
        plan, loop = self._plan, self._loop_step_s
        if loop is None or loop < _QUICK_STEP_S:
            return plan.group_steps, plan.quick_depth
        wanted = int(_GROUP_LASTS_S / loop) + 1
        return max(plan.group_steps, min(wanted, plan.max_group_steps)), plan.depth


def _average(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
