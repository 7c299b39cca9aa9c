"""Time of tests of remote data: it passes where a request waits to be made again, at once, and nowhere else.

White box: the clock and the sleep of the module that waits are given; and the open requests of this process are looked
at.
"""

import asyncio
import time

from flodl_pipe.storage import remote_patience
from flodl_pipe.storage.remote_exit import OPEN, _collect_dropped

_LIMIT_S = 60.0  # of what takes milliseconds


class Waiting:
    """The time, and the waits that were asked for.

    Attributes:
        now_s: The time.
        waits: Seconds of each wait, in order.
        meanwhile: What happens while somebody waits, if anything; called with the number of waits so far.
    """

    def __init__(self, monkeypatch):
        self.now_s, self.waits, self.meanwhile = 1000.0, [], lambda number: None
        monkeypatch.setattr(remote_patience, "time", self)
        monkeypatch.setattr(remote_patience, "asyncio", self)

    def monotonic(self):
        """Return the time; for the module that waits."""
        return self.now_s

    async def sleep(self, seconds):
        """Let time pass; for the module that waits."""
        self.now_s += seconds
        self.waits.append(seconds)
        self.meanwhile(len(self.waits))
        await asyncio.sleep(0)


def wait_until_let_go():
    """Wait until the client has let go of all requests of this process, and would have said what it has to say."""
    end = time.monotonic() + _LIMIT_S
    while OPEN._is_busy():
        assert time.monotonic() < end
        _collect_dropped()
        time.sleep(0.001)
