"""Shutdown from any state leaves nothing behind and does not hang."""

import contextlib
import gc
import os
import random
import signal
import textwrap
import threading
import weakref
from subprocess import PIPE

import numpy as np
import pytest

from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.tokens import TokenShards
from tests.loader.sources import Numbers, ids
from tests.loader.waiting import HANG_S, joined, own_threads, until
from tests.support.programs import Program

FULL = pytest.mark.full


def require_threads_end():
    until(lambda: not own_threads(), "the end of the loader's threads")


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


@pytest.mark.parametrize("count", [21, pytest.param(200, marks=FULL)])
def test_random_endings(shard, count):
    rng = random.Random(3)
    for number in range(count):
        scenario = scenarios()[number % len(scenarios())]
        source = TokenShards.open(shard, seq_len=16, file_format="raw", dtype="uint16")
        options = {"readers": rng.choice([0, 1, 2, 4]), "mode": rng.choice(["streaming", "resident"])}
        loader = Loader(source, batch_size=rng.choice([1, 8, 64]), prefetch=rng.choice(["auto", 1, 3]), **options)
        with contextlib.suppress(KeyboardInterrupt):
            scenario(loader)
        if rng.random() < 0.5:
            loader.close()
        del loader
    gc.collect()
    require_threads_end()


def test_a_loader_nobody_wants_is_collected_with_its_threads():
    loader = Loader(Numbers(10_000), batch_size=2, readers=2)
    iterator = iter(loader)
    next(iterator)
    gone = weakref.ref(loader)
    assert own_threads()
    del loader, iterator
    gc.collect()
    assert gone() is None
    require_threads_end()


def test_an_iterator_in_a_cycle_is_collected():
    loader = Loader(Numbers(10_000), batch_size=2, readers=2)
    iterator = iter(loader)
    cycle = [iterator]
    cycle.append(cycle)
    del iterator, cycle
    gc.collect()
    require_threads_end()
    loader.close()


def test_closing_waits_for_reads_under_way_and_begins_no_other():
    source, may_end = Numbers(10_000), threading.Event()
    read, begun = source.read_into, []

    def waits(indices, rows, out):
        begun.append(indices)
        may_end.wait(HANG_S)
        read(indices, rows, out)

    source.read_into = waits
    with Loader(source, batch_size=2, readers=3, mode="streaming", check_purity=False) as loader:
        iterator = iter(loader)
        until(lambda: len(begun) == 3, "that each reader reads")
        closing = threading.Thread(target=loader.close)
        closing.start()
        with pytest.raises(LoaderError, match="closed"):
            next(iterator)  # as soon as it is being closed
        assert closing.is_alive()
        may_end.set()
        joined(closing)
    assert len(begun) == 3
    assert not own_threads()


def test_the_iterator_of_the_parent_is_refused_in_a_forked_child_and_a_new_one_works():
    with Loader(Numbers(400), batch_size=4, readers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - the child's coverage is not collected
            try:
                with pytest.raises(LoaderError, match=r"call iter\(loader\) in the child"):
                    next(iterator)
                os.write(writer, str(len(ids(loader.epoch(0)))).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as told:
            assert told.read() == "100"
        os.waitpid(child, 0)
        assert len(list(iterator)) == 99


SCRIPT = """
import sys
from flodl_pipe.loader.loader import Loader
from tests.loader.sources import Numbers
loader = Loader(Numbers(100_000, delay_s={delay_s}), batch_size=2, readers=2, mode={mode!r})
iterator = iter(loader)
next(iterator)
print("ready", flush=True)
{then}
"""


def script(then, *, delay_s=0.0, mode="auto"):
    code = SCRIPT.format(delay_s=delay_s, mode=mode, then=textwrap.dedent(then))
    return Program(["-c", code], stdout=PIPE, stderr=PIPE, text=True)


@pytest.mark.parametrize(
    ("then", "status"),
    [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError('on purpose')", 1), ("del loader", 0)],
)
def test_the_interpreter_exits_while_readers_are_busy(then, status):
    with script(then, delay_s=0.01) as process:
        _, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == status
    assert "Fatal" not in stderr
    assert (stderr == "") == (status != 1)


def test_ctrl_c_in_a_waiting_loop_ends_the_program():
    with script("for _ in iterator: pass", delay_s=0.2, mode="streaming") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in stderr
