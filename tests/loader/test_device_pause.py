"""Holding background work on a device off, as the capture of a graph needs it."""

import threading
import time

import pytest

from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.loader import Loader
from tests.loader.device_cases import Fields, on_cpu, plain, require_same, run, small_device

MIB = 1 << 20
BATCH = 16


@pytest.fixture(scope="module")
def wanted():
    with on_cpu(Fields(), batch_size=BATCH) as loader:
        return run(loader, 2)


def loader_on(options, **more):
    return Loader(Fields(), batch_size=BATCH, readers=2, **{"mode": "streaming", **more}, **options)


def wait_until(condition):
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "nothing came"
        time.sleep(0.001)


def others(device):
    """Return what was done on streams that are not the loop's."""
    return [entry for entry in device.timeline() if entry[0] != "consumer"]


def test_nothing_is_done_on_the_device_in_the_background(wanted):
    with small_device(64 * MIB) as (options, get), loader_on(options) as loader:
        iterator, found = iter(loader), []
        for place in range(20):
            with loader.pause():
                before, free = others(get()), get().memory().free_bytes
                time.sleep(0.01)
                assert others(get()) == before
                assert get().memory().free_bytes == free
            found.append(plain(next(iterator)))
            del place
        require_same(found, wanted[:20])
        assert get().faults == []


def test_a_ready_batch_can_be_taken_and_an_empty_queue_is_an_error_that_loses_none(wanted):
    with small_device(64 * MIB) as (options, get), loader_on(options, prefetch=3) as loader:
        iterator = iter(loader)
        found = [plain(next(iterator))]
        wait_until(lambda: loader._engine.side.flight.num_steps == 3)
        with loader.pause():
            ready = len(loader._engine._reading._ready)
            assert ready >= 2
            found += [plain(next(iterator)) for _ in range(ready)]
            with pytest.raises(LoaderError, match=r"next\(\) inside loader.pause\(\) has no batch ready"):
                next(iterator)
            with pytest.raises(LoaderError, match="take the batch before it"):
                next(iterator)
        found += [plain(batch) for batch in iterator]
        require_same(found, wanted[:20])
        assert get().faults == []


@pytest.mark.parametrize("how", [{"mode": "resident"}, {"readers": 0}])
def test_a_loader_that_works_in_the_loop_itself_refuses_too(wanted, how):
    with (
        small_device(64 * MIB) as (options, get),
        Loader(Fields(), batch_size=BATCH, **how, drop_last=False, **options) as loader,
    ):
        for _ in loader:
            pass
        iterator = iter(loader)
        next(iterator)
        with loader.pause(), pytest.raises(LoaderError, match=r"inside loader\.pause"):
            next(iterator)
        assert len(list(iterator)) == 20
        assert get().faults == []


def test_pauses_nest_and_another_thread_may_hold_them(wanted):
    with small_device(64 * MIB) as (options, get), loader_on(options, prefetch=2) as loader:
        iterator = iter(loader)
        with loader.pause(), loader.pause():
            pass
        inside, leave = threading.Event(), threading.Event()

        def capture():
            with loader.pause():
                inside.set()
                leave.wait(10)

        thread = threading.Thread(target=capture)
        thread.start()
        inside.wait(10)
        threading.Timer(0.05, leave.set).start()
        # The loop waits: it is not this thread that would have to go on.
        require_same([plain(batch) for batch in iterator], wanted[:20])
        thread.join()
        assert get().faults == []


@pytest.mark.parametrize("end", ["close", "drop", "error"])
def test_a_loop_may_end_inside_of_it(end):
    with small_device(64 * MIB) as (options, get):
        loader = loader_on(options)
        iterator = iter(loader)
        next(iterator)
        began = time.monotonic()
        try:
            with loader.pause():
                if end == "close":
                    loader.close()
                elif end == "drop":
                    del iterator
                else:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        loader.close()
        assert time.monotonic() - began < 2
        assert not [thread for thread in threading.enumerate() if thread.name == "flodl_pipe-transfer"]
        assert get().faults == []


def test_a_capture_sees_only_the_loops_own_work(wanted):
    """As a graph is captured: every operation between begin and end must be on the loop's stream, and is replayed."""
    with small_device(64 * MIB) as (options, get), loader_on(options) as loader:
        device, found, captured = get(), [], None
        for batch in loader:
            found.append(plain(batch))
            if captured is None:
                with loader.pause():
                    begin = len(device.timeline())
                    static = device.compute(device.consumer(), lambda: batch[0] + 1, reads=[batch[0]])  # noqa: B023
                    time.sleep(0.02)
                    captured = device.timeline()[begin:]
        assert {entry[0] for entry in captured} == {"consumer"}
        assert static.tolist() == [sample + 1 for sample in found[0][0]]
        require_same(found, wanted[:20])
        assert device.faults == []
