"""Programs of tests: Pythons that begin at once, forked from a warm parent, and otherwise like those of `subprocess`.

::

    done = run(["-m", "flodl_pipe", "+recipe=mnist"], cwd=folder)          # a CompletedProcess
    with Program(["script.py"], stdout=PIPE, text=True) as process: ...     # a Popen

The first that is asked for in a test run starts the parent, which takes as long as importing torch.
"""

import atexit
import contextlib
import json
import os
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from subprocess import PIPE, CompletedProcess, TimeoutExpired
from typing import Any

from tests.support.warm_parent import NUMBER

ROOT = Path(__file__).resolve().parents[2]
# What a surrounding run, or the user, may have set, and would reach a program.
OUTSIDE = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "TORCH_DISABLE_SHARE")
OUTSIDE += ("FLODL_PIPE_", "HYDRA_FULL_ERROR", "COLUMNS")
KEPT = ("FLODL_PIPE_CACHE",)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of this process, without what would make another run of a program, and with more.

    Programs find the tests as modules: PYTHONPATH is this checkout.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(OUTSIDE) or name.startswith(KEPT)
    }
    return {**inherited, "PYTHONPATH": str(ROOT), **more}


class Program(subprocess.Popen[Any]):
    """A program that is forked from the warm parent; to its starter a child like any other.

    Args:
        words: What would follow the name of the interpreter: ``-m MODULE``, ``-c CODE`` or a script, and its arguments.
        options: As for :class:`subprocess.Popen`; without ``env`` it has :func:`environment`. What an interpreter
            reads when it starts (``-O``, ``PYTHONHASHSEED``) has no effect.
    """

    _line: socket.socket

    def __init__(self, words: Sequence[str | Path], **options: Any) -> None:
        options.setdefault("env", environment())
        super().__init__([sys.executable, *map(str, words)], **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):  # type: ignore[no-untyped-def]
        """Ask the parent for a child; the descriptors are in pairs: one for the program, one for us."""
        assert preexec_fn is None
        assert not pass_fds
        # startupinfo, creationflags, shell, three pairs of descriptors, restore_signals, gid, gids, uid, umask, session
        given, new_session = rest[3:9], rest[14]
        theirs = [given[0], given[3], given[5]]
        wanted = {
            "argv": args[1:],
            "cwd": os.path.abspath(os.fspath(cwd or ".")),
            "env": {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()},
            "new_session": bool(new_session),
        }
        self._line = _ask(wanted, [place if place != -1 else number for number, place in enumerate(theirs)])
        self.pid = NUMBER.unpack(_exactly(self._line, NUMBER.size))[0]
        self._child_created = True
        self._close_pipe_fds(*given)

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        """End it with the block: a test that fails does not wait for a program that goes on."""
        if kind is not None:
            self.kill()
        super().__exit__(kind, *more)

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        status = self._ended(timeout)
        if status is None:
            raise TimeoutExpired(self.args, timeout or 0.0)
        return status

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._line], [], [], timeout_s)[0]:
            with self._line:
                self.returncode = NUMBER.unpack(_exactly(self._line, NUMBER.size))[0]
        return self.returncode


def run(
    words: Sequence[str | Path], *, timeout: float = 60.0, check: bool = False, **options: Any
) -> CompletedProcess[str]:
    """Run a program to its end; what it says is text, apart unless ``stderr=STDOUT``. See :class:`Program`.

    Raises:
        TimeoutExpired: if it has not ended by then; it is killed.
    """
    options = {"stdin": subprocess.DEVNULL, "stdout": PIPE, "stderr": PIPE, "text": True, **options}
    with Program(words, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except TimeoutExpired:
            process.kill()
            process.wait()
            raise
    done = CompletedProcess(process.args, process.returncode, out, err)
    if check:
        assert done.returncode == 0, done
    return done


def launching(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a launcher, torchrun or ``job=launch``, whose ranks are forked from the parent too.

    Args:
        folder: For temporary files: torchrun leaves a folder for logs behind each time.
        **more: Further variables.
    """
    python = str(Path(_parent()[1]).with_name("python"))
    return environment(PYTHON_EXEC=python, TMPDIR=str(folder), **more)


def parent_pid() -> int | None:
    """Return the process id of the warm parent; None while there is none."""
    return _parent()[0].pid if _parent.cache_info().currsize else None


def parent_descriptor() -> int | None:
    """Return the descriptor that the warm parent ends with; None while there is none."""
    return _parent()[0].stdin.fileno() if _parent.cache_info().currsize else None


@cache
def _parent() -> tuple[subprocess.Popen[bytes], str]:
    folder = tempfile.mkdtemp(prefix="warm-")
    place = str(Path(folder, "line"))
    launched = Path(folder, "python")
    asking = shlex.quote(str(Path(__file__).with_name("ask_parent.py")))
    launched.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {asking} {shlex.quote(place)} "$@"\n')
    launched.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(place)
        server.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.warm_parent", str(server.fileno())],
            cwd=ROOT,
            env={**environment(OMP_NUM_THREADS="1"), "PYTHONPATH": ""},
            stdin=PIPE,
            pass_fds=(server.fileno(),),
            start_new_session=True,  # Ctrl-C of a terminal is not for it
        )

    atexit.register(end_parent)
    return process, place


def end_parent() -> None:
    """End the warm parent, with all that still runs below it; another is started if a program is asked for again."""
    if not _parent.cache_info().currsize:
        return
    process, place = _parent()
    _parent.cache_clear()
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.wait()
    shutil.rmtree(Path(place).parent, ignore_errors=True)


def _ask(wanted: Mapping[str, Any], descriptors: Sequence[int]) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(_parent()[1])
    text = json.dumps(wanted).encode()
    socket.send_fds(line, [NUMBER.pack(len(text))], descriptors)
    line.sendall(text)
    return line


def _exactly(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = line.recv(size - len(found))
        assert part, "the warm parent of programs has ended"
        found += part
    return found
