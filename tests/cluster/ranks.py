"""Real processes as the ranks of a run: started with torchrun's environment, bounded in time, heard when they fail.

::

    def meet(scale):                                  # a function of a module, run on every rank
        total = torch.tensor([float(scale * dist.get_rank())])
        dist.all_reduce(total)
        return total.item()

    assert results(meet, 3, 10) == [30.0, 30.0, 30.0]

One process of its own imports torch and the module of the function, then forks the ranks; each ends as any Python
program does, so its exit status is that of a real run. Three ranks cost about as much as one import of torch. A script,
given as a path, is started anew on each rank. Nothing is left behind: all of them are one session, which is killed when
the time is over, after every thread's stack was printed.
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

ROOT = Path(__file__).resolve().parents[2]
# What a surrounding torchrun, or the user, may have set, and would reach the ranks.
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
FOREIGN += ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "FLODL_PIPE_HOST", "FLODL_PIPE_GPU", "FLODL_PIPE_DATA")


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
    """Run a function on every rank and return what each returned; all must end with status 0. See :func:`run_ranks`."""
    ended = run_ranks(what, num_ranks, *arguments, **options)
    assert all(rank.status == 0 and rank.error is None for rank in ended), told(ended)
    return [rank.result for rank in ended]


def run_ranks(
    what: Callable[..., Any] | Path,
    num_ranks: int,
    *arguments: Any,
    timeout_s: float = 60.0,
    hosts: Sequence[str] | None = None,
    absent: Sequence[int] = (),
    environment: Mapping[str, str] | Sequence[Mapping[str, str]] = {},
    init: bool = True,
    agent_store: bool = False,
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
    """
    names = list(hosts or [""] * num_ranks)
    each = [environment] * num_ranks if isinstance(environment, Mapping) else list(environment)
    with tempfile.TemporaryDirectory(prefix="ranks") as folder, _port() as port:
        environments = [
            {
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
        ]
        task = {
            "what": str(what) if isinstance(what, Path) else (what.__module__, what.__qualname__),
            "arguments": pickle.dumps(arguments),
            "environments": environments,
            "absent": set(absent),
            "init": init,
            "agent_store": ("127.0.0.1", port) if agent_store else None,
        }
        (Path(folder) / "task").write_bytes(pickle.dumps(task))
        return _watch(folder, num_ranks, set(absent), timeout_s)


def told(ended: Sequence[Rank]) -> str:
    """Return how ranks ended and what they said, for a test that fails."""
    return "\n".join(f"--- rank {rank.rank}: status {rank.status}, error {rank.error}\n{rank.said}" for rank in ended)


@contextlib.contextmanager
def _port() -> Iterator[int]:
    """Keep a free port of this host: bound, so that nobody else is given it, and open for one who listens."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def _watch(folder: str, num_ranks: int, absent: set[int], timeout_s: float) -> list[Rank]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    paths = os.pathsep.join(filter(None, [str(ROOT), clean.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "tests.cluster.ranks", folder]
    with Path(folder, "parent").open("wb") as said:
        parent = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**clean, "PYTHONPATH": paths},
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        status: int | None = parent.wait(timeout_s)
    except subprocess.TimeoutExpired:
        status = None
        for place in range(num_ranks):  # each prints the stacks of its threads
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(Path(folder, f"{place}.pid").read_text()), signal.SIGABRT)
        time.sleep(1.0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
    ended = [_ended(folder, rank) for rank in range(num_ranks) if rank not in absent]
    if status != 0:
        why = f"ranks did not end within {timeout_s:g} s" if status is None else f"ranks were not started: {status}"
        raise AssertionError(f"{why}\n{Path(folder, 'parent').read_text()}\n{told(ended)}")
    return ended


def _ended(folder: str, rank: int) -> Rank:
    def read(name: str, default: bytes) -> bytes:
        file = Path(folder, f"{rank}.{name}")
        return file.read_bytes() if file.exists() else default

    result, error = pickle.loads(read("result", pickle.dumps((None, None))))
    status = int(read("status", b"-1000"))  # one that was still running
    return Rank(rank, status, result, error, read("said", b"").decode(errors="replace"))


def _start_all(folder: Path) -> None:
    """Be the parent: start every rank, keep the store if asked to, and note how each ends."""
    task = pickle.loads((folder / "task").read_bytes())
    call: Callable[..., Any] | None = None
    if not isinstance(task["what"], str):
        module, name = task["what"]
        import torch.distributed

        call = getattr(importlib.import_module(module), name)
    arguments = pickle.loads(task["arguments"])
    started = {}
    for rank, environment in enumerate(task["environments"]):
        if rank in task["absent"]:
            continue
        pid = os.fork()
        if pid == 0:
            _become(folder, rank, environment)
            if call is None:
                os.execv(sys.executable, [sys.executable, "-X", "faulthandler", task["what"], *map(str, arguments)])
            _run(folder, rank, call, arguments, init=task["init"])
            return
        (folder / f"{rank}.pid").write_text(str(pid))
        started[pid] = rank
    store = None
    if task["agent_store"]:  # only now: a store has threads, which a fork would not have
        import torch.distributed

        host, port = task["agent_store"]
        store = torch.distributed.TCPStore(host, port, is_master=True, wait_for_workers=False)
    while started:
        pid, status = os.wait()
        if pid in started:
            (folder / f"{started.pop(pid)}.status").write_text(str(os.waitstatus_to_exitcode(status)))
    del store


def _become(folder: Path, rank: int, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    said = os.open(folder / f"{rank}.said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.close(said)
    sys.stdout.reconfigure(line_buffering=True)
    faulthandler.enable()


def _run(folder: Path, rank: int, call: Callable[..., Any], arguments: Sequence[Any], *, init: bool) -> None:
    """Call the function, note what comes of it, and end as a program would."""
    result, error = None, None
    try:
        with _group() if init else contextlib.nullcontext():
            result = call(*arguments)
    except BaseException as caught:  # noqa: BLE001 - it is told, and the rank ends with it
        error = f"{type(caught).__name__}: {caught}"
        traceback.print_exc()
        sys.exit(caught.code if isinstance(caught, SystemExit) else 1)
    finally:
        (folder / f"{rank}.result").write_bytes(pickle.dumps((result, error)))


@contextlib.contextmanager
def _group() -> Iterator[None]:
    from datetime import timedelta

    import torch.distributed

    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=30))
    try:
        yield
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()
        time.sleep(0.3)  # threads of gloo that still end abort a program at its exit


if __name__ == "__main__":
    _start_all(Path(sys.argv[1]))
