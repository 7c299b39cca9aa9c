"""Shutdown from any state leaves nothing behind and does not hang."""

import contextlib
import gc
import os
import random
import signal
import textwrap
import threading
import time
import weakref
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.tokens import TokenShards
from tests.loader.sources import Numbers, ids
from tests.support.programs import Program

pytestmark = pytest.mark.full


def own_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("flodl_pipe")]


def settled(limit_s=2.0):
    """Return whether all of the loader's threads end within the limit."""
    end = time.monotonic() + limit_s
    while own_threads() and time.monotonic() < end:
        time.sleep(0.001)
    return not own_threads()


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "shard.bin"
    np.arange(100_000, dtype="<u2").tofile(path)
    return str(path)


def scenarios():
    def finish(loader):
        for _ in loader:
            pass

    def break_off(loader):
        for _ in loader:
            break

    def fail(loader):
        for _ in loader:
            raise KeyboardInterrupt

    def unused_iterator(loader):
        iter(loader)

    def second_iterator(loader):
        first = iter(loader)
        next(first)
        second = iter(loader)
        next(second)

    def resume(loader):
        next(iter(loader))
        loader.load_state_dict(loader.state_dict())
        next(iter(loader))

    def close_inside(loader):
        for _ in loader:
            loader.close()
            break

    return [finish, break_off, fail, unused_iterator, second_iterator, resume, close_inside]


def test_200_random_endings(shard):
    rng = random.Random(3)
    for _ in range(200):
        scenario = rng.choice(scenarios())
        source = TokenShards.open(shard, seq_len=16, file_format="raw", dtype="uint16")
        options = {"readers": rng.choice([0, 1, 2, 4]), "mode": rng.choice(["streaming", "resident"])}
        loader = Loader(source, batch_size=rng.choice([1, 8, 64]), prefetch=rng.choice(["auto", 1, 3]), **options)
        began = time.monotonic()
        with contextlib.suppress(KeyboardInterrupt):
            scenario(loader)
        if rng.random() < 0.5:
            loader.close()
        del loader
        assert time.monotonic() - began < 2.0
    gc.collect()
    assert settled()


def test_a_loader_nobody_wants_is_collected_with_its_threads():
    loader = Loader(Numbers(10_000), batch_size=2, readers=2)
    iterator = iter(loader)
    next(iterator)
    gone = weakref.ref(loader)
    assert own_threads()
    del loader, iterator
    gc.collect()
    assert gone() is None
    assert settled()


def test_an_iterator_in_a_cycle_is_collected():
    loader = Loader(Numbers(10_000), batch_size=2, readers=2)
    iterator = iter(loader)
    cycle = [iterator]
    cycle.append(cycle)
    del iterator, cycle
    gc.collect()
    assert settled()
    loader.close()


def test_close_while_readers_are_busy():
    with Loader(Numbers(10_000, delay_s=0.05), batch_size=2, readers=3) as loader:
        next(iter(loader))
        began = time.monotonic()
    assert time.monotonic() - began < 1.0


def test_the_iterator_of_the_parent_is_refused_in_a_forked_child_and_a_new_one_works():
    with Loader(Numbers(400), batch_size=4, readers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - the child's coverage is not collected
            outcome = b"?"
            try:
                next(iterator)
            except LoaderError as error:
                outcome = b"R" if "call iter(loader) in the child" in str(error) else b"W"
            outcome += b"N" if len(ids(loader.epoch(0))) == 100 else b"-"
            os.write(writer, outcome)
            os._exit(0)
        os.close(writer)
        assert os.read(reader, 2) == b"RN"
        os.close(reader)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(iterator)) == 99


SCRIPT = """
import sys, time
sys.path.insert(0, {root!r})
from flodl_pipe.loader.loader import Loader
from tests.loader.sources import Numbers
loader = Loader(Numbers(100_000, delay_s={delay_s}), batch_size=2, readers=2, mode={mode!r})
iterator = iter(loader)
next(iterator)
print("ready", flush=True)
{then}
"""


def script(then, *, delay_s=0.0, mode="auto"):
    root = str(Path(__file__).parents[2])
    code = SCRIPT.format(root=root, delay_s=delay_s, mode=mode, then=textwrap.dedent(then))
    return Program(["-c", code], stdout=PIPE, stderr=PIPE, text=True)


@pytest.mark.parametrize(
    ("then", "status"),
    [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError('on purpose')", 1), ("del loader", 0)],
)
def test_the_interpreter_exits_while_readers_are_busy(then, status):
    process = script(then, delay_s=0.01)
    began = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == status
    assert time.monotonic() - began < 30
    assert "Fatal" not in stderr
    assert (stderr == "") == (status != 1)


def test_ctrl_c_in_a_waiting_loop_ends_the_program():
    process = script("for _ in iterator: time.sleep(0.001)", delay_s=0.2, mode="streaming")
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - began < 5
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert "KeyboardInterrupt" in stderr
