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
def outside_of_the_loop(*, without_graph: bool = False) -> Iterator[None]:
    """Run a block as a fresh thread would. Costs 3 us where the loop has no modes of its own.

    Args:
        without_graph: Whether to keep no graph in it, which a fresh thread would.
    """
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    autocast = [kind for kind in _KINDS if torch.is_autocast_enabled(kind)]
    elsewhere = torch.get_default_device().type != "cpu"
    if grad and not (without_graph or inference or autocast or elsewhere):
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.set_grad_enabled(not without_graph))
        for kind in autocast:
            stack.enter_context(torch.autocast(kind, enabled=False))
        if elsewhere:
            stack.enter_context(torch.device("cpu"))
        yield


def _kinds() -> tuple[str, ...]:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ("cpu",) if found is None else ("cpu", found.type)


_KINDS = _kinds()
