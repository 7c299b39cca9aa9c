"""Starting a reader process, by one of Python's three ways, and what can be wrong with that.

``forkserver`` (the default) forks from a server of its own that has torch and this package in memory and no other
thread, so it is quick and safe. ``spawn`` starts Python anew, which takes seconds. ``fork`` copies this process as it
is: nothing is pickled, but threads are not copied, and a lock that one of them holds stays locked in the copy.
"""

import contextlib
import logging
import multiprocessing
import signal
import sys
from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal

from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.process_child import Setup, read_for_parent

__all__ = ["ReaderStart", "require_startable", "start_process"]

ReaderStart = Literal["forkserver", "spawn", "fork"]
"""How a reader process starts."""

_log = logging.getLogger("flodl_pipe")

# What a process needs to read most datasets; the server imports it once, and every process has it from there.
_PRELOADED = ["torch", "numpy", "flodl_pipe.loader.process_child", "flodl_pipe.sources.any_source"]


def require_startable(start: ReaderStart) -> None:
    """Check that processes can be started here, and get ready for it.

    Raises:
        LoaderError: if they cannot.
    """
    if start not in multiprocessing.get_all_start_methods():
        raise LoaderError(
            f"reader_start={start} does not exist on {sys.platform}; take one of "
            f"{', '.join(multiprocessing.get_all_start_methods())}"
        )
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if start != "fork" and file is not None and getattr(main, "__spec__", None) is None and not Path(file).exists():
        raise LoaderError(
            f"the main script is {file}, typed into an interpreter or gone since, and a process that is started anew "
            f"({start}) imports the main script's module first; keep it in a file, or take loader.reader_kind=thread, "
            "or loader.reader_start=fork"
        )
    process = multiprocessing.current_process()
    if process.daemon:
        raise LoaderError(
            f"{process.name} is a process that may not start others (a worker of torch's DataLoader, or of a pool); "
            "take loader.reader_kind=thread there, or build the loader in the main process"
        )
    if start == "forkserver":
        multiprocessing.set_forkserver_preload(_PRELOADED)  # of no effect when the server runs already
    elif start == "fork":
        _log.warning(
            "loader.reader_start=fork copies this process without its threads: a lock that one of them holds stays "
            "locked in the copy, and reading may hang; forkserver is safe, for a dataset that pickles"
        )


def start_process(
    start: ReaderStart, setup: Setup, number: int
) -> tuple[multiprocessing.process.BaseProcess, connection.Connection]:
    """Start a reader process.

    Args:
        start: How.
        setup: What it is to read.
        number: Its number, for its name.

    Returns:
        The process, and the pipe that it takes requests from and sends answers to.

    Raises:
        LoaderError: if the system refuses, or this process is one that is being started itself.
    """
    context: Any = multiprocessing.get_context(start)
    ours, theirs = context.Pipe()
    try:
        process = context.Process(
            target=read_for_parent, args=(setup, theirs), name=f"flodl_pipe-reader-{number}", daemon=True
        )
        with _without_interrupt(start):
            process.start()
    except RuntimeError as error:
        ours.close()
        raise LoaderError(
            "this process is a reader process that is just starting, and begins to start others: it imports the main "
            "script, which builds a loader at its top level. Put what runs there below `if __name__ == '__main__':`; "
            "or take loader.reader_kind=thread"
        ) from error
    except OSError as error:
        ours.close()
        raise LoaderError(
            f"the system refuses to start reader process {number + 1} ({error}); lower loader.readers, or lift the "
            "limits on processes and open files (ulimit -u, ulimit -n)"
        ) from error
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


@contextlib.contextmanager
def _without_interrupt(start: ReaderStart) -> Iterator[None]:
    """Let a spawned Python start with Ctrl-C held back, which it ignores as soon as it can.

    A server of forks would hand that on to every process that it ever starts, the user's too.
    """
    if start != "spawn" or sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
