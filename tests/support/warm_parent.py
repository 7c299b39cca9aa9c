"""A Python that has imported what programs of tests need, and forks one for each that is asked for.

A program that imports torch, Hydra and this package takes a second or two to begin; one that is forked from a process
that has done so takes hundredths. It is a real process with its own exit: the interpreter ends as it does after any
program, so threads, files and handlers at exit are those of the program alone. What it does not have is a start of its
own: tests of what is imported, of ``-O`` or of variables that an interpreter reads when it starts take a real one.

``python -m tests.support.warm_parent DESCRIPTOR`` serves a socket that listens. Each connection asks for one program::

    client -> parent   a length, JSON (argv, cwd, env, new_session), and three descriptors: stdin, stdout, stderr
    parent -> client   the program's process id
    parent -> client   its exit status, as `subprocess` counts it

A client that goes away first takes its program with it. The parent ends with its standard input, which whoever started
it holds open.

White box: a module is run as ``python -m`` does it.
"""

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

NUMBER = struct.Struct("=q")
_PATHS = sys.path[1:]  # where packages are; the first place is this module's
IMPORTED = (
    "tests.support.last_words",
    *("numpy", "torch", "torch.distributed", "torch.utils.data", "hydra", "pydantic", "rich"),
    *("flodl_pipe.cli.main", "flodl_pipe.loader.loader", "flodl_pipe.pipeline", "flodl_pipe.jobs.run"),
    *("flodl_pipe.jobs.plan", "flodl_pipe.loader.attach"),
)


def main(listening: int) -> Callable[[], None]:
    """Serve until standard input ends; in each forked child, return what it has to run."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what was imported is not looked through, and so not copied, in any child
    with socket.socket(fileno=listening) as server, selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        running: dict[int, tuple[int, socket.socket]] = {}  # process id -> what tells of its end, who asked for it
        while True:
            for key, _ in selector.select():
                if key.fileobj is server:
                    line, _ = server.accept()
                    begun = _begin(line)
                    if callable(begun):
                        # The child: nothing of the parent's stays open but what it runs with.
                        for ending, other in running.values():
                            os.close(ending)
                            other.close()
                        return begun
                    if begun is not None:
                        ending = os.pidfd_open(begun)
                        running[begun] = (ending, line)
                        selector.register(ending, selectors.EVENT_READ, begun)
                        selector.register(line, selectors.EVENT_READ, begun)
                elif key.fileobj == 0:
                    for pid in running:
                        os.kill(pid, signal.SIGKILL)
                    return lambda: None
                elif key.data in running:
                    ending, line = running.pop(key.data)
                    if key.fd != ending:  # not the program has ended: the client has gone away
                        os.kill(key.data, signal.SIGKILL)
                    selector.unregister(ending)
                    selector.unregister(line)
                    os.close(ending)
                    _, status = os.waitpid(key.data, 0)
                    with line:
                        _say(line, os.waitstatus_to_exitcode(status))


def _begin(line: socket.socket) -> int | Callable[[], None] | None:
    """Fork a program; return its process id, or in the child what it runs, or None where nobody asks any more."""
    message, descriptors, _, _ = socket.recv_fds(line, NUMBER.size, 3)
    if len(message) < NUMBER.size:
        line.close()
        return None
    size, wanted = NUMBER.unpack(message)[0], b""
    while len(wanted) < size:
        wanted += line.recv(size - len(wanted))
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        _say(line, pid)
        return pid
    line.close()
    return _Program(descriptors, **json.loads(wanted)).run


def _say(line: socket.socket, number: int) -> None:
    try:
        line.sendall(NUMBER.pack(number))
    except OSError:
        return  # who asked has gone away


class _Program:
    """What is run in a forked child, as a Python that starts would."""

    def __init__(
        self, descriptors: Sequence[int], argv: Sequence[str], cwd: str, env: Mapping[str, str], new_session: bool
    ) -> None:
        self._argv = list(argv)
        # A signal to a program's group is for it alone, not for the parent and all its other programs.
        os.setsid() if new_session else os.setpgid(0, 0)
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for place, descriptor in enumerate(descriptors):
            os.dup2(descriptor, place)
            os.close(descriptor)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None  # what it is was found out in the parent
        self._open_streams()

    def _open_streams(self) -> None:
        unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open to the end
        for place, name in ((1, "stdout"), (2, "stderr")):
            stream = open(  # noqa: SIM115 - likewise
                place, "w", encoding="utf-8", errors="backslashreplace" if place == 2 else "strict", closefd=False
            )
            stream.reconfigure(line_buffering=place == 2 or stream.isatty(), write_through=unbuffered)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    def run(self) -> None:
        """Run it; it ends with the interpreter."""
        argv, first = self._argv, ""
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        while argv[0] in ("-u", "-X", "-B"):
            argv = argv[2:] if argv[0] == "-X" else argv[1:]
        if argv[0] == "-m":
            first = os.getcwd()
        elif argv[0] != "-c":
            first = os.path.dirname(os.path.realpath(argv[0]))
        sys.path[:] = [first, *paths, *_PATHS]
        sys.argv[:] = argv if argv[0] != "-m" else argv[1:]
        module = types.ModuleType("__main__")
        # The old one stays known to somebody: what runs here is in it.
        module.__dict__["__builtins__"], sys.modules["the warm parent"] = __builtins__, sys.modules["__main__"]
        sys.modules["__main__"] = module
        if argv[0] == "-c":
            sys.argv[:] = ["-c", *argv[2:]]
            exec(compile(argv[1], "<string>", "exec"), module.__dict__)
        elif argv[0] == "-m":
            runpy._run_module_as_main(argv[1])
        else:
            module.__file__ = argv[0]
            with open(argv[0], "rb") as file:
                code: Any = compile(file.read(), argv[0], "exec")
            exec(code, module.__dict__)


if __name__ == "__main__":
    main(int(sys.argv[1]))()
