"""What a run measures of itself: where it stands, how fast it goes now, and how much memory it took at most."""

import resource
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flodl_pipe.memory.probe import resident_set_bytes

__all__ = ["MemoryPeak", "Moment", "Recent", "peak_rss_bytes"]

# Rates shown while a run goes are those of the last seconds: a mean over hours would hide that something changed.
_WINDOW_S = 10.0


@final
@dataclass(frozen=True)
class Moment:
    """Where a run stands.

    Attributes:
        at_s: Seconds since its loop began.
        epoch: Epoch number, counted from 0.
        num_steps: Steps of the whole run, those before a resume included.
        num_samples: Samples since the loop began.
        wait_s: Seconds the loop waited for data since it began.
    """

    at_s: float
    epoch: int
    num_steps: int
    num_samples: int
    wait_s: float


@final
class Recent:
    """Rates over the last seconds of a run.

    Args:
        start: Where the run stood when its loop began.
    """

    def __init__(self, start: Moment) -> None:
        self._moments = deque([start])

    def add(self, moment: Moment) -> None:
        """Note a moment, later than those before it."""
        self._moments.append(moment)
        # Two stay, however old: a slow step is longer than the window.
        while len(self._moments) > 2 and self._moments[1].at_s <= moment.at_s - _WINDOW_S:
            self._moments.popleft()

    @property
    def span_s(self) -> float:
        """Seconds that the figures below are over."""
        return self._moments[-1].at_s - self._moments[0].at_s

    @property
    def samples_per_s(self) -> float:
        """Samples per second."""
        return self._per_s(self._moments[-1].num_samples - self._moments[0].num_samples)

    @property
    def steps_per_s(self) -> float:
        """Steps per second."""
        return self._per_s(self._moments[-1].num_steps - self._moments[0].num_steps)

    @property
    def wait_s(self) -> float:
        """Seconds waited."""
        return self._moments[-1].wait_s - self._moments[0].wait_s

    def _per_s(self, count: float) -> float:
        return count / self.span_s if self.span_s > 0 else 0.0


@final
class MemoryPeak:
    """The most private anonymous memory that was seen: the kernel keeps no such peak, so we look now and then."""

    def __init__(self) -> None:
        self.start_bytes = resident_set_bytes()
        self.most_bytes = self.start_bytes

    def look(self) -> None:
        """Look at the memory as it is now."""
        self.most_bytes = max(self.most_bytes, resident_set_bytes())


def peak_rss_bytes() -> int:
    """Return the most physical memory this process ever had, file pages included, as the kernel counts it."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    # Not asked first: on Linux it also holds the peak of the process that started this one.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
