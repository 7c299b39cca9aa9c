"""Holding background work on a device off, as the capture of a graph needs it."""

import threading

import pytest

from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.loader import Loader
from tests.loader.device_cases import Fields, on_cpu, plain, require_same, run, small_device
from tests.loader.inside import asks_gate, num_in_flight, num_ready
from tests.loader.waiting import HANG_S, joined, own_threads, until

MIB = 1 << 20
BATCH = 16


@pytest.fixture(scope="module")
def wanted():
    with on_cpu(Fields(), batch_size=BATCH) as loader:
        return run(loader, 2)


def loader_on(options, **more):
    return Loader(Fields(), batch_size=BATCH, readers=2, **{"mode": "streaming", **more}, **options)


def others(device):
    """Return what was done on streams that are not the loop's."""
    return [entry for entry in device.timeline() if entry[0] != "consumer"]


def take_one_more(loader, iterator):
    """Take a batch inside of a pause: its place is free, and the transfer thread has something to do, if it may."""
    with asks_gate(loader) as asked:
        batch = next(iterator)
        assert asked.wait(HANG_S), "the transfer thread did not ask"
    return batch


def test_nothing_is_done_on_the_device_in_the_background(wanted):
    with small_device(64 * MIB) as (options, get), loader_on(options, prefetch=3) as loader:
        iterator, found = iter(loader), []
        for _ in range(15):
            until(lambda: num_in_flight(loader) == num_ready(loader) == 3, "batches that are ready")
            with loader.pause():
                before, free = others(get()), get().memory().free_bytes
                batch = take_one_more(loader, iterator)
                assert others(get()) == before
                assert get().memory().free_bytes == free
            found.append(plain(batch))
            del batch
        found += [plain(batch) for batch in iterator]
        require_same(found, wanted[:20])
        assert get().faults == []


def test_a_ready_batch_can_be_taken_and_an_empty_queue_is_an_error_that_loses_none(wanted):
    with small_device(64 * MIB) as (options, get), loader_on(options, prefetch=3) as loader:
        iterator = iter(loader)
        found = [plain(next(iterator))]
        until(lambda: num_in_flight(loader) == 3, "three steps in flight")
        with loader.pause():
            ready = num_ready(loader)
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
        iterator, found = iter(loader), []
        with loader.pause(), loader.pause():
            pass
        inside, asked = threading.Event(), []

        def capture():
            with loader.pause():
                ready = num_ready(loader)
                inside.set()
                until(lambda: len(asked) > ready, "a loop that asks for more than there is")

        thread = threading.Thread(target=capture)
        thread.start()
        assert inside.wait(HANG_S)
        # The loop waits: it is not this thread that would have to go on.
        for number in range(20):
            asked.append(number)
            found.append(plain(next(iterator)))
        require_same(found, wanted[:20])
        joined(thread)
        assert get().faults == []


@pytest.mark.parametrize("end", ["close", "drop", "error"])
def test_a_loop_may_end_inside_of_it(end):
    with small_device(64 * MIB) as (options, get):
        loader = loader_on(options)
        iterator = iter(loader)
        next(iterator)
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
        assert not own_threads()
        assert get().faults == []


def test_a_capture_sees_only_the_loops_own_work(wanted):
    """As a graph is captured: every operation between begin and end must be on the loop's stream, and is replayed."""
    with small_device(64 * MIB) as (options, get), loader_on(options, prefetch=3) as loader:
        device, iterator = get(), iter(loader)
        batch = next(iterator)
        until(lambda: num_in_flight(loader) == num_ready(loader) == 3, "batches that are ready")
        with loader.pause():
            begin = len(device.timeline())
            static = device.compute(device.consumer(), lambda: batch[0] + 1, reads=[batch[0]])
            following = take_one_more(loader, iterator)
            captured = device.timeline()[begin:]
        found = [plain(batch), plain(following), *(plain(batch) for batch in iterator)]
        assert {entry[0] for entry in captured} == {"consumer"}
        assert static.tolist() == [sample + 1 for sample in found[0][0]]
        require_same(found, wanted[:20])
        assert device.faults == []
