"""What a test leaves behind: grants, threads, descriptors, child processes, shared memory, temporary files, settings.

White box: the ledger and the devices of this process are looked at as they are.
"""

import asyncio
import contextlib
import gc
import importlib.util
import os
import signal
import tempfile
import threading
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import torch

from flodl_pipe.loader import targets
from flodl_pipe.memory.ledger import process_ledger
from tests.support import programs

_SETTLE_S = 10.0  # longest wait for threads and processes that are ending; it takes them milliseconds
_MOMENT_S = 0.25
_DESCRIPTORS = "/proc/self/fd"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM, signal.SIGUSR1)
# What goes with a source that is being read: where files land, and connections to where remote data come from.
_OF_SOURCES = ("/memfd:flodl_pipe_scratch", "socket:")


class State:
    """What there is at some moment. It is made twice for each test, so every member is cheap to make."""

    def __init__(self) -> None:
        self.accounts = process_ledger().accounts()
        self.threads = set(threading.enumerate())
        self.descriptors = _descriptors()
        self.children = _children()
        self.files = {name for name in os.listdir(tempfile.gettempdir()) if not name.startswith(_LASTING_FILES)}
        self.shared = set(_shared_memory())
        self.folder = os.getcwd()
        self.handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self.num_threads = torch.get_num_threads()

    def left_since(self, before: "State", *, sources_may_live: bool = False) -> list[str]:
        """Return in words what there is now and was not before.

        Args:
            before: What there was.
            sources_may_live: Whether sources that others hold, such as a fixture of a wider scope, may have begun to
                be read, and keep what they read with.
        """
        found = [f"{held} bytes granted of {account}" for account, held in self.accounts.items()]
        found += [f"thread {thread.name}" for thread in self.threads - before.threads]
        for number, what in self.descriptors.items():
            if before.descriptors.get(number) != what and not (sources_may_live and what.startswith(_OF_SOURCES)):
                found.append(f"descriptor {number}: {what}")
        found += [f"process {pid}: {what}" for pid, what in self.children.items() if pid not in before.children]
        found += [f"temporary file {name}" for name in self.files - before.files]
        found += [f"shared memory {name}" for name in self.shared - before.shared]
        if self.folder != before.folder:
            found.append(f"working directory {self.folder}, was {before.folder}")
        for number, handler in self.handlers.items():
            if handler != before.handlers[number]:
                found.append(f"handler of {signal.Signals(number).name}: {handler}")
        if self.num_threads != before.num_threads:
            found.append(f"torch has {self.num_threads} threads, had {before.num_threads}")
        return found


def left_since(before: State, *, sources_may_live: bool = False) -> list[str]:
    """Return what is left since then, once what was told to end had the time to; see :meth:`State.left_since`.

    Garbage is collected only where something stays: a cycle may hold it. It takes half a second, so what is about to
    end by itself has a moment first.
    """
    left = State().left_since(before, sources_may_live=sources_may_live)
    now = began = time.monotonic()
    collect_at = now + _MOMENT_S
    while left and now < began + _SETTLE_S:
        if now < collect_at:
            time.sleep(0.005)
        else:
            gc.collect()
            collect_at = time.monotonic() + 2 * (now - began)
        left = State().left_since(before, sources_may_live=sources_may_live)
        now = time.monotonic()
    return left


# What is started once for a whole process when it is first asked for, and never ends: the warm parent of programs,
# multiprocessing's server of forks and its tracker of resources, each with its folder.
_LASTING_FILES = ("pymp-", "warm-")


def start_what_lasts() -> None:
    """Start what cannot be told apart from leftovers later: the client of remote data; and keep bars from doing so."""
    with contextlib.suppress(ImportError):
        import tqdm

        tqdm.tqdm.monitor_interval = 0  # a thread that looks after bars, for ever
    if importlib.util.find_spec("obstore") is None:
        return
    import obstore
    from obstore.store import MemoryStore

    async def ask() -> None:
        await obstore.put_async(MemoryStore(), "name", b"content")

    asyncio.run(ask())


def forget_devices() -> None:
    """Have simulated devices made anew: a process keeps each, with its clock and its peaks, for all of its loaders."""
    targets._shared.clear()


def _descriptors() -> dict[int, str]:
    lasting = {
        forkserver._forkserver._forkserver_alive_fd,
        resource_tracker._resource_tracker._fd,
        programs.parent_descriptor(),
    }
    found = {}
    for name in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):  # the one that lists them is closed by now
            if int(name) not in lasting:
                found[int(name)] = os.readlink(f"{_DESCRIPTORS}/{name}")
    return found


def _children() -> dict[int, str]:
    lasting = {
        forkserver._forkserver._forkserver_pid,
        resource_tracker._resource_tracker._pid,
        programs.parent_pid(),
    }
    found = {}
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            for word in Path(f"/proc/self/task/{task}/children").read_text().split():
                if int(word) not in lasting:
                    found[int(word)] = _command(int(word))
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200] or "ended"
    return "gone"


def _shared_memory() -> list[str]:
    """Return named shared memory that says it is this process's."""
    with contextlib.suppress(OSError):
        return [name for name in os.listdir("/dev/shm") if str(os.getpid()) in name]
    return []
