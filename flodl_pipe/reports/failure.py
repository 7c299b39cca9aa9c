"""What ended a program, said once on standard error."""

import sys
import traceback

from flodl_pipe.errors import FlodlPipeError

__all__ = ["say_failure", "was_said"]

_SAID = "_flodl_pipe_said"


def say_failure(error: Exception, *, silently: bool = False) -> None:
    """Say what ended the program: an error of ours in words, another's with its traceback; each is said once.

    Args:
        error: What it was.
        silently: Whether somebody else has said it: nothing is written, and it counts as said.
    """
    if was_said(error):
        return
    setattr(error, _SAID, True)
    if silently:
        return
    if isinstance(error, FlodlPipeError):
        sys.stderr.write(f"flodl_pipe: {error}\n")
    else:
        traceback.print_exception(error)
    sys.stderr.flush()


def was_said(error: Exception) -> bool:
    """Return whether an error was said already."""
    return getattr(error, _SAID, False)
