"""Keeping the training loop's torch modes away from reading.

A batch is made by a reader or by the loop's own thread, whoever has the time. Torch's modes belong to a thread: under
the loop's autocast, inference mode or default device, what a dataset or a transform of the user's own computes would
depend on who did it.
"""

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["outside_of_the_loop"]


@contextlib.contextmanager
def outside_of_the_loop() -> Iterator[None]:
    """Run a block as a fresh thread would, and without a graph."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.no_grad())
        for kind in ("cpu", *_accelerators()):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


def _accelerators() -> tuple[str, ...]:
    found = torch.accelerator.current_accelerator()
    return () if found is None else (found.type,)
