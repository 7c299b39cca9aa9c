"""Waiting for what has to happen."""

import threading
import time

HANG_S = 60.0
"""When what is waited for will not come any more."""


def until(condition, what):
    """Wait until a condition holds.

    Args:
        condition: Called again and again.
        what: What has not happened when it never does.
    """
    given_up_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < given_up_s, f"{what} did not happen"
        time.sleep(0.001)


def joined(thread):
    """Wait for the end of a thread."""
    thread.join(HANG_S)
    assert not thread.is_alive(), f"{thread} did not end"


def own_threads():
    """Return the threads of loaders."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("flodl_pipe")]
