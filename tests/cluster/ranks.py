"""Real processes as the ranks of a run: started with torchrun's environment, bounded in time, heard when they fail.

::

    def meet(scale):                                  # a function of a module, run on every rank
        total = torch.tensor([float(scale * dist.get_rank())])
        dist.all_reduce(total)
        return total.item()

    assert results(meet, 3, 10) == [30.0, 30.0, 30.0]

Each is a program of its own, forked from the warm parent (:mod:`tests.support.programs`), and ends as any Python
program does, so its exit status is that of a real run; but where only results are asked for, it ends with them: to take
down an interpreter that has torch in it takes longer than most of what is tested. None begins before all have imported
what they run, so that a deadline between ranks is not about how long a machine takes to import. Nothing is left behind:
each is a session, which is killed when the time is over, after every thread's stack was printed.
"""

import contextlib
import faulthandler
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.programs import ROOT, Program
from tests.support.programs import environment as inherited

PATIENT_S = 300.0  # a deadline between ranks that is not to pass: a rank that waits for one in vain is ended before
_LIMIT_S = 120.0  # of starting, and then of running: it is there for what hangs


@dataclass(frozen=True)
class Rank:
    """How one rank ended.

    Attributes:
        rank: Its number.
        status: Exit status; -9 for one that was killed by signal 9.
        result: What the function returned; None of a script, or if it did not return.
        error: Type and message of what the function raised, or the end of the group after it, when others had gone.
        said: What it wrote to stdout and stderr.
    """

    rank: int
    status: int
    result: Any
    error: str | None
    said: str


def results(what: Callable[..., Any], num_ranks: int, *arguments: Any, **options: Any) -> list[Any]:
    """Run a function on every rank and return what each returned; none may raise. See :func:`run_ranks`."""
    ended = run_ranks(what, num_ranks, *arguments, finalize=False, **options)
    assert all(rank.status == 0 and rank.error is None for rank in ended), told(ended)
    return [rank.result for rank in ended]


def run_ranks(
    what: Callable[..., Any] | Path,
    num_ranks: int,
    *arguments: Any,
    timeout_s: float = _LIMIT_S,
    hosts: Sequence[str] | None = None,
    absent: Sequence[int] = (),
    environment: Mapping[str, str] | Sequence[Mapping[str, str]] = {},
    init: bool = True,
    agent_store: bool = False,
    finalize: bool = True,
) -> list[Rank]:
    """Run a function, or a script, on every rank, and return how each ended, by rank.

    Args:
        what: A function of a module (not a lambda, not a nested one), or the path of a script.
        num_ranks: World size.
        *arguments: For the function, picklable; for a script, its arguments.
        timeout_s: When all of them are killed, and the test fails with what they have said.
        hosts: Name of the host of each rank (FLODL_PIPE_HOST), with local ranks counted for each; None: all on one
            host that has no name of its own.
        absent: Ranks that are counted in the world and never start.
        environment: Further variables: of all ranks, or of each.
        init: Whether the function runs within an initialised gloo group. A script does that itself.
        agent_store: Whether the store is kept by the parent, as torchrun does, not by rank 0.
        finalize: Whether the interpreter ends as it does after any program; else it is gone after the function.
    """
    names = list(hosts or [""] * num_ranks)
    each = [environment] * num_ranks if isinstance(environment, Mapping) else list(environment)
    with tempfile.TemporaryDirectory(prefix="ranks") as folder, _port() as port:
        environments = {
            rank: {
                "RANK": str(rank),
                "WORLD_SIZE": str(num_ranks),
                "LOCAL_RANK": str(names[:rank].count(host)),
                "LOCAL_WORLD_SIZE": str(names.count(host)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                **({"TORCHELASTIC_USE_AGENT_STORE": "True"} if agent_store else {}),
                **({"FLODL_PIPE_HOST": host} if host else {}),
                **each[rank],
            }
            for rank, host in enumerate(names)
            if rank not in absent
        }
        if isinstance(what, Path):
            words = ["-X", "faulthandler", str(what), *map(str, arguments)]
        else:
            words = [
                "-m",
                "tests.cluster.ranks",
                folder,
                what.__module__,
                what.__qualname__,
                str(int(init)),
                str(int(finalize)),
            ]
            Path(folder, "arguments").write_bytes(pickle.dumps(arguments))
        with contextlib.ExitStack() as ending:
            if agent_store:
                ending.enter_context(_store(folder, port))
            return _watch(Path(folder), words, environments, timeout_s)


def told(ended: Sequence[Rank]) -> str:
    """Return how ranks ended and what they said, for a test that fails."""
    return "\n".join(f"--- rank {rank.rank}: status {rank.status}, error {rank.error}\n{rank.said}" for rank in ended)


def in_a_fork(call: Callable[[], str]) -> str:
    """Return what a forked child of this process gets from a call; a child that fails says nothing."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writes, call().encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


@contextlib.contextmanager
def _port() -> Iterator[int]:
    """Keep a free port of this host: bound, so that nobody else is given it, and open for one who listens."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextlib.contextmanager
def _store(folder: str, port: int) -> Iterator[None]:
    """Keep a store in a process of its own, as torchrun does."""
    words = ["-c", STORE, str(port)]
    with Path(folder, "store").open("wb") as said:
        keeper = Program(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True)
    with keeper:
        try:
            assert keeper.stdout.readline() == "kept\n", Path(folder, "store").read_text()
            yield
        finally:
            keeper.kill()


STORE = """
import sys, torch.distributed
store = torch.distributed.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("kept", flush=True)
sys.stdin.read()
"""


def _watch(
    folder: Path, words: Sequence[str], environments: Mapping[int, Mapping[str, str]], timeout_s: float
) -> list[Rank]:
    started: dict[int, Program] = {}
    try:
        for rank, own in environments.items():
            with (folder / f"{rank}.said").open("wb") as said:
                started[rank] = Program(
                    words,
                    cwd=ROOT,
                    env=inherited(**own),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )
        in_time = words[0] != "-m" or _begin(folder, started)
        deadline = time.monotonic() + timeout_s
        try:
            for process in started.values():
                process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            in_time = False
            _show_stacks(folder, started)
    finally:
        for process in started.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    ended = [_ended(folder, rank, process.returncode) for rank, process in started.items()]
    if not in_time:
        raise AssertionError(f"ranks did not end within {timeout_s:g} s\n{told(ended)}")
    return ended


def _begin(folder: Path, started: Mapping[int, Program]) -> bool:
    """Let all ranks go when each has imported what it runs; return whether they were all there to go."""
    deadline = time.monotonic() + _LIMIT_S
    while not all((folder / f"{rank}.there").exists() for rank in started):
        if time.monotonic() > deadline or any(process.poll() is not None for process in started.values()):
            return False
        time.sleep(0.002)
    (folder / "go").touch()
    return True


def _show_stacks(folder: Path, started: Mapping[int, Program]) -> None:
    """Have those that still run print the stack of each thread."""
    for process in started.values():
        if process.poll() is None:
            os.kill(process.pid, signal.SIGABRT)
    for process in started.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30.0)


def _ended(folder: Path, rank: int, status: int) -> Rank:
    file = folder / f"{rank}.result"
    result, error = pickle.loads(file.read_bytes()) if file.exists() else (None, None)
    return Rank(rank, status, result, error, (folder / f"{rank}.said").read_text(errors="replace"))


def _be_rank(folder: Path, module: str, name: str, *, init: bool, finalize: bool) -> None:
    """Call the function, note what comes of it, and end as a program would, or at once."""
    faulthandler.enable()
    sys.stdout.reconfigure(line_buffering=True)
    rank = os.environ["RANK"]
    call: Callable[..., Any] = getattr(importlib.import_module(module), name)
    arguments = pickle.loads((folder / "arguments").read_bytes())
    (folder / f"{rank}.there").touch()
    while not (folder / "go").exists():
        time.sleep(0.002)
    result, error, status = None, None, 0
    try:
        with _group() if init else contextlib.nullcontext():
            result = call(*arguments)
    except BaseException as caught:  # noqa: BLE001 - it is told, and the rank ends with it
        error = f"{type(caught).__name__}: {caught}"
        traceback.print_exc()
        status = caught.code if isinstance(caught, SystemExit) else 1
    (folder / f"{rank}.result").write_bytes(pickle.dumps((result, error)))
    if not finalize:
        sys.stdout.flush()
        os._exit(1 if error else 0)
    _wait_for_gloo()
    sys.exit(status)


@contextlib.contextmanager
def _group() -> Iterator[None]:
    from datetime import timedelta

    import torch.distributed

    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=PATIENT_S))
    try:
        yield
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def _wait_for_gloo() -> None:
    """Wait for threads of gloo to end, which abort a program that ends first; those of a group somebody keeps stay."""
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline and any("gloo" in name for name in _thread_names()):
        time.sleep(0.002)


def _thread_names() -> Iterator[str]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            yield (task / "comm").read_text()


if __name__ == "__main__":
    _be_rank(Path(sys.argv[1]), sys.argv[2], sys.argv[3], init=sys.argv[4] == "1", finalize=sys.argv[5] == "1")
