"""The accelerator that is tested."""

import functools
import os

from flodl_pipe.devices.choose import KINDS, find_device


@functools.cache
def find():
    """Return the accelerator that FLODL_TEST_DEVICE names, or this machine's; or None, and why there is none."""
    device = find_device(os.environ.get("FLODL_TEST_DEVICE", "auto"), simulated=lambda: None)
    if device is None:
        return None, "no accelerator: " + "; ".join(kind.why_none() for kind in KINDS if not kind.count())
    return device, ""
