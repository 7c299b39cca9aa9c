"""The command line's outermost layer: run, and turn what went wrong into words and an exit status.

====== ==============================================================================
status when
====== ==============================================================================
0      done
1      another program's exception, shown with its traceback; or a check that found a difference
2      an error of ours: config, data, memory, cluster; ``flodl_pipe: ...`` without traceback
130    interrupted
141    standard output was closed by its reader (``flodl-pipe job=schema | head``); nothing is printed
====== ==============================================================================

``HYDRA_FULL_ERROR=1`` shows the traceback of our errors too.
"""

import os
import select
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from flodl_pipe.cli.dispatch import run_job
from flodl_pipe.config.arguments import torchrun_rank
from flodl_pipe.config.compose import run_hydra
from flodl_pipe.errors import FlodlPipeError
from flodl_pipe.reports.failure import say_failure, was_said

__all__ = ["main"]

# Longer than torchrun takes to stop the other ranks once one has failed.
_LET_RANK_0_SPEAK_S = 2.0
# As the shell reports a program that the signal has ended: 128 + 13.
_SIGPIPE = 141


def _stand_in_for_closed_streams() -> None:
    """Give a process that was started without standard output or error (``>&-``) ones that go nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open to the end


def _reader_left() -> bool:
    """Return whether nobody reads standard output any more. A broken pipe alone does not say: a job may have others."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # no file of the system's, as when output is captured
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program.

    Args:
        argv: Command line without the program's name; None: the process's own.

    Raises:
        SystemExit: with a status other than 0, and after ``--help`` and the like.
    """
    _stand_in_for_closed_streams()
    full = os.environ.get("HYDRA_FULL_ERROR") == "1"
    try:
        run_hydra(list(sys.argv[1:] if argv is None else argv), run_job)
        sys.stdout.flush()
    except FlodlPipeError as error:
        # Before ranks know each other every one meets the same error. The first to exit has torchrun stop the rest, so
        # the others wait for the one that prints; a rank that is still alive then has an error of its own.
        if not was_said(error) and torchrun_rank() is not None and os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(_LET_RANK_0_SPEAK_S)
        if full:
            traceback.print_exception(error)
        say_failure(error)
        raise SystemExit(2) from None
    except BrokenPipeError:
        if not _reader_left():
            raise
        # Python flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(_SIGPIPE) from None
    except KeyboardInterrupt:
        if not torchrun_rank():  # all ranks are interrupted together; one says so
            sys.stderr.write("flodl_pipe: interrupted\n")
        raise SystemExit(130) from None
    except Exception as error:
        if was_said(error):
            raise SystemExit(1) from None
        raise
