"""What a forked child finds, heard in its parent; for the batteries beside this one."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_LIMIT_S = 60.0  # only a child that hangs meets it


def in_forked_child(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a child that is forked now; it must end well afterwards."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(sender, call, arguments))
    child.start()
    sender.close()  # the child's is the last one now, so its end is heard
    try:
        assert receiver.poll(_LIMIT_S), "the forked child hangs"
        result = receiver.recv()
        child.join(_LIMIT_S)
        assert child.exitcode == 0, f"the forked child ended with status {child.exitcode}"
    except EOFError:
        child.join(_LIMIT_S)
        raise AssertionError(f"the forked child ended with status {child.exitcode}, without a result") from None
    finally:
        child.kill()
        child.join()
        child.close()
        receiver.close()
    return result


def _send(sender: Connection, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    sender.send(call(*arguments))
