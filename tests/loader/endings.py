"""Ways for a loader to end in the middle of its work, and a look at what is left of it then.

How long an ending takes is nothing that is asked here: one that waits for what does not come would hang.

White box: multiprocessing's server of forks, whose children reader processes are.
"""

import contextlib
import gc
import os
import signal
import threading
import time
import traceback
from multiprocessing import forkserver
from pathlib import Path

import torch

from flodl_pipe.errors import LoaderError
from tests.loader import inside
from tests.loader.waiting import HANG_S, joined
from tests.support.leftovers import State


class LoopError(Exception):
    """What went wrong in somebody's loop."""


def some(rng, iterator, most=6):
    """Take a few batches; they are dropped at once."""
    for _ in zip(range(rng.randint(1, most)), iterator, strict=False):
        pass


def end_break(loader, rng):
    for batch in loader:
        assert batch.size
        if rng.random() < 0.3:
            break


def end_exception(loader, rng):
    with contextlib.suppress(LoopError):
        for _ in loader:
            if rng.random() < 0.3:
                raise LoopError


def end_interrupt(loader, rng):
    with contextlib.suppress(KeyboardInterrupt):
        for _ in loader:
            if rng.random() < 0.3:
                raise KeyboardInterrupt


def end_close_in_loop(loader, rng):
    with contextlib.suppress(LoaderError):
        for _ in loader:
            if rng.random() < 0.3:
                loader.close()
                loader.close()


def end_close_in_thread(loader, rng):
    """Another thread closes the loader while the loop takes batches, and maybe waits for one."""
    iterator = iter(loader)
    next(iterator)
    began = threading.Event()

    def close():
        began.set()
        loader.close()

    thread = threading.Thread(target=close)
    thread.start()
    began.wait()
    with contextlib.suppress(LoaderError):
        for _ in iterator:
            if rng.random() < 0.2:
                time.sleep(0.001)  # a step, in which it may come to its end or not
    joined(thread)


def end_unused(loader, _):
    iter(loader)


def end_finish(loader, rng):
    for _ in range(rng.randint(1, 2)):
        for _ in loader:
            pass


def end_second_iterator(loader, rng):
    first = iter(loader)
    some(rng, first)
    second = iter(loader)
    some(rng, second)
    with contextlib.suppress(LoaderError, StopIteration):
        next(first)


def end_resume(loader, rng):
    iterator = iter(loader)
    some(rng, iterator)
    loader.load_state_dict(loader.state_dict())
    some(rng, loader)


def end_other_epoch(loader, rng):
    some(rng, loader.epoch(3))
    loader.set_epoch(7)
    some(rng, loader)


def end_kept(loader, rng):
    """Batches outlive their loader, and are what they were."""
    kept = [batch for _, batch in zip(range(rng.randint(1, 5)), loader, strict=False)]
    wanted = [[tensor.clone() for tensor in batch] for batch in kept]
    loader.close()
    for batch, tensors in zip(kept, wanted, strict=True):
        for tensor, other in zip(batch, tensors, strict=True):
            assert (tensor == other).all()


def end_cycle(loader, rng):
    iterator = iter(loader)
    some(rng, iterator)
    cycle = [iterator, loader]
    cycle.append(cycle)


def end_collected_in_thread(loader, rng):
    """Another thread lets the last reference go."""
    held = [iter(loader)]
    some(rng, held[0])
    thread = threading.Thread(target=held.clear)
    thread.start()
    joined(thread)


def end_fork(loader, rng):
    """A child reads afresh and ends, while its parent goes on."""
    iterator = iter(loader)
    some(rng, iterator)
    child = os.fork()
    if not child:  # pragma: no cover - of another process
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(HANG_S))
            torch.set_num_threads(1)  # its own threads did not follow the fork: torch would wait for them
            some(rng, loader)
            loader.close()
            status = 0
        except BaseException:  # noqa: BLE001 - the child must not go on as the test run
            traceback.print_exc()
        finally:
            os._exit(status)
    some(rng, iterator)
    assert os.waitpid(child, 0)[1] == 0


def end_pause(loader, rng):
    iterator = iter(loader)
    some(rng, iterator)
    with loader.pause():
        if rng.random() < 0.5:
            loader.close()
    with contextlib.suppress(LoaderError):
        some(rng, iterator)


def end_pause_in_thread(loader, rng):
    """Another thread closes the loader while background work is held."""
    some(rng, iter(loader))
    iterator = iter(loader)
    next(iterator)
    thread = threading.Thread(target=loader.close)
    with loader.pause():
        thread.start()
        thread.join(0.01)  # it waits for the end of the pause by then, or comes to it later
    joined(thread)


def end_statistics(loader, rng):
    """What a device still computes is asked for after the end."""
    some(rng, loader)
    loader.close()
    assert loader.statistics().num_steps


ENDINGS = {name.removeprefix("end_"): value for name, value in list(globals().items()) if name.startswith("end_")}


def reader_processes():
    """Return the processes that the server of forks has started."""
    server = forkserver._forkserver._forkserver_pid
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == server:
                found.add(int(path.parent.name))
    return found


class Leftovers:
    """What was there before a loader was, to be compared with what is there after it.

    Args:
        folder: Where files might be left.
    """

    def __init__(self, folder):
        gc.collect()
        self._folder = folder
        self._before = State()
        self._processes = reader_processes()

    def now(self):
        """Return in words what is left."""
        found = State().left_since(self._before)
        found += [f"process {pid}" for pid in reader_processes() - self._processes]
        found += [f"file {path.name}" for path in self._folder.iterdir()]
        for shared in inside.shared_devices():
            device = shared.device
            device.memory()  # what it put off is done then
            found += [f"{shared.held_bytes()} bytes said to be held"] if shared.held_bytes() else []
            found += [f"{device.allocated_bytes} device bytes"] if device.allocated_bytes else []
            found += [f"{device.pinned_bytes} page-locked bytes"] if device.pinned_bytes else []
            found += [str(fault) for fault in device.faults]
        return found

    def require_none(self, which):
        """Wait until nothing is left."""
        given_up_s = time.monotonic() + HANG_S
        gc.collect()
        while left := self.now():
            assert time.monotonic() < given_up_s, f"{which} left {left}"
            time.sleep(0.002)
            gc.collect()  # a thread may have let go of a cycle as its last


def end_one(which, kind, ending, make, rng, before):
    """End one loader, and look what is left."""
    loader = make(kind, rng)
    try:
        ENDINGS[ending](loader, rng)
        if rng.random() < 0.4:
            loader.close()
        del loader
    except BaseException as error:
        error.add_note(f"ending {which}")
        raise
    before.require_none(which)


def _leave_alone_what_there_is():
    """Have the garbage that the test run has gathered so far not looked through again after each loader."""
    gc.collect()
    gc.freeze()


def end_each(rng, kinds, endings, make, folder):
    """End a loader in each way once, and one of each kind at least; for the arguments see :func:`end_all`."""
    _leave_alone_what_there_is()
    before, kinds = Leftovers(folder), list(kinds)
    for number in range(max(len(kinds), len(endings))):
        kind, ending = kinds[number % len(kinds)], endings[number % len(endings)]
        end_one(f"{kind}, {ending}", kind, ending, make, rng, before)


def end_all(rng, count, kinds, endings, make, folder):
    """End one loader after the other, each in its own way, and look after each what is left.

    Args:
        rng: Draws kinds and endings.
        count: How many.
        kinds: What ``make`` makes a loader of, with how often.
        endings: Names of endings.
        make: Makes a loader of a kind.
        folder: Where files might be left.
    """
    _leave_alone_what_there_is()
    before = Leftovers(folder)
    for number in range(count):
        (kind,), ending = rng.choices(list(kinds), list(kinds.values())), rng.choice(endings)
        end_one(f"{number}: {kind}, {ending}", kind, ending, make, rng, before)
