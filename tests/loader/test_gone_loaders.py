"""What loaders that nobody can reach any more were granted does not make the budget of a later one smaller."""

import gc

import pytest

from flodl_pipe import Loader
from flodl_pipe.loader import host_budget
from tests.loader.device_cases import Fields, small_device, small_host

MIB = 1 << 20


def build(**options):
    """Return a loader of 4 MiB of samples, more than the host that is described here has room for."""
    return Loader(Fields(1000), **{"batch_size": 8, "prefetch": 2, "readers": 1, "device": "cpu", **options})


@pytest.fixture
def _no_garbage_collector():
    """Have it look only when it is told to; whether it would have by itself is chance."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def leave_in_a_cycle(loader):
    cycle = [loader]
    cycle.append(cycle)


@pytest.mark.usefixtures("_no_garbage_collector")
def test_a_cache_is_as_large_after_a_loader_that_is_gone_as_without_one():
    with small_host(6 * MIB):
        with build() as alone:
            wanted = dict(alone.granted())
        leave_in_a_cycle(build())
        with build() as loader:
            assert dict(loader.granted()) == wanted
        with build(), build() as second:  # one that is there counts
            assert dict(second.granted())["RAM cache"] < wanted["RAM cache"] / 2


@pytest.mark.usefixtures("_no_garbage_collector")
def test_a_pool_is_as_large_after_a_loader_that_is_gone_as_without_one():
    with small_device(2 * MIB) as (device, _):

        def pool(loader):
            for _ in loader.epoch(0):
                pass
            return dict(loader.granted())["sample pool"]

        # Without a thread that uploads, what the device was seen to have in use at most is always the same.
        device |= {"mode": "streaming", "batch_size": 32, "readers": 0}
        with build(**device) as alone:
            wanted = pool(alone)
        gone = build(**device)
        pool(gone)
        leave_in_a_cycle(gone)
        del gone
        with build(**device) as loader:
            assert pool(loader) == wanted


def test_where_all_has_room_nobody_looks_for_garbage(monkeypatch):
    """It would cost more than building the loader."""
    monkeypatch.setattr(host_budget.gc, "collect", lambda *_: pytest.fail("garbage was collected"))
    with build(), build(), build():
        pass
