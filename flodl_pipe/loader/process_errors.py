"""How an error of a reader process reaches the loop, and what is said of a process that died.

An error is sent as itself where it comes out of a pickle the same; then the loop catches the type that the dataset
raised, as if it had read in its own thread. Otherwise it is a :class:`SourceError` with its type and its text. Either
way the process's own traceback is a note of the error.
"""

import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, Final, NamedTuple, final

from flodl_pipe.errors import FlodlPipeError, LoaderError, SourceError

__all__ = ["SentError", "died_early", "died_reading", "rebuild_error", "send_error"]

_THREAD: Final = "loader.reader_kind=thread"


@final
class SentError(NamedTuple):
    """An error on its way.

    Attributes:
        pickled: The error, where it pickles; None where not.
        kind: Name of its type.
        text: What it says.
        traceback: Its traceback in the process, as Python prints it.
    """

    pickled: bytes | None
    kind: str
    text: str
    traceback: str


def send_error(error: BaseException) -> SentError:
    """Prepare an error to be sent."""
    kind = type(error)
    told = "".join(traceback.format_exception(error)).rstrip()
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return SentError(_pickled(error), name, _text(error), told)


def _pickled(error: BaseException) -> bytes | None:
    """Pickle an error, if what comes out again is the same; types with arguments of their own often do not."""
    try:
        data = bytes(reduction.ForkingPickler.dumps(error))
        again = _loads(data)
        same = type(again) is type(error) and str(again) == str(error)
    except Exception:  # noqa: BLE001 - a user's error may do anything when it is pickled
        return None
    return data if same else None


def rebuild_error(sent: SentError, where: str) -> BaseException:
    """Return the error in the process that gets it.

    Args:
        sent: The error.
        where: Which process sent it, for the note.
    """
    error: object = None
    if sent.pickled is not None:
        try:
            error = _loads(sent.pickled)
        except Exception:  # noqa: BLE001 - it need not be importable here
            error = None
    if not isinstance(error, BaseException):
        error = SourceError(f"{sent.kind}: {sent.text}" if sent.text else sent.kind)
    error.add_note(f"in {where}:\n{sent.traceback}")
    return error


def _loads(data: bytes) -> object:
    loads: Callable[[bytes], Any] = reduction.ForkingPickler.loads
    return loads(data)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's error may do anything
        return "its text cannot be made"


def died_reading(pid: int | None, status: int | None) -> LoaderError:
    """Return the error of a process that ended by itself while it was to read."""
    return LoaderError(f"reader process {pid} died: {_ending(status)}")


def died_early(pid: int | None, status: int | None) -> FlodlPipeError:
    """Return the error of a process that ended before it was ready: the main script has run in it until then."""
    if status is not None and status <= 0:
        return died_reading(pid, status)
    return LoaderError(
        f"reader process {pid} ended with status {status} before it was ready; what it printed on standard error says "
        "why. A process that is started anew imports the main script "
        f"({getattr(sys.modules.get('__main__'), '__file__', 'none')}) first: whatever that runs at its top level must "
        f"stand below `if __name__ == '__main__':`, or every process would start over. Else take {_THREAD}, or "
        "loader.reader_start=fork"
    )


def _ending(status: int | None) -> str:
    if status is None:
        return f"the system does not say how; {_THREAD} reads in threads"
    if status >= 0:
        return (
            f"it ended with status {status}, while nobody had told it to; os._exit does that, in the dataset or "
            f"what it calls. {_THREAD} or loader.readers=0 shows where"
        )
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if -status == signal.SIGKILL:
        remedy = (
            "someone killed it, mostly the system for want of memory (dmesg says so): fewer loader.readers, smaller "
            "samples, or a larger limit"
        )
    elif -status == signal.SIGTERM:
        remedy = "someone asked it to end; start the run again"
    else:
        remedy = (
            f"native code that the dataset calls has crashed; loader.readers=0 and python -X faulthandler show where, "
            f"and {_THREAD} would have ended the whole program"
        )
    return f"{name}; {remedy}"
