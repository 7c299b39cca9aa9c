"""Out of memory on a device: what is given up, in which order, said aloud, while the stream stays what it was."""

import contextlib
import logging

import pytest

from flodl_pipe.errors import DeviceMemoryError
from flodl_pipe.loader.loader import Loader
from tests.loader.device_cases import Fields, on_cpu, plain, require_same, run, small_device
from tests.loader.inside import pool_of

MIB = 1 << 20
BATCH = 16
FULL = pytest.mark.full


@pytest.fixture(scope="module")
def wanted():
    with on_cpu(Fields(), batch_size=BATCH) as loader:
        return run(loader, 4)


@pytest.fixture(autouse=True)
def _said(caplog):
    caplog.set_level(logging.WARNING, logger="flodl_pipe")


@pytest.mark.parametrize("readers", [0, 2])
@pytest.mark.parametrize("skip", [0, 3, *(pytest.param(skip, marks=FULL) for skip in (1, 2, 4, 5, 7, 11))])
def test_a_fault_halves_the_depth_and_changes_no_byte(wanted, caplog, skip, readers):
    with (
        small_device(64 * MIB) as (options, get),
        Loader(Fields(), batch_size=BATCH, mode="streaming", readers=readers, **options) as loader,
    ):
        found = run(loader, 1)
        depth = loader.prefetch_depth
        get().fail_next(1, skip=skip)
        found += [plain(batch) for batch in loader.epoch(1)]
        get().fail_next(0)
        found += run_epochs(loader, 2, 4)
        require_same(found, wanted)
        said = [line for line in caplog.messages if "no memory left" in line]
        assert len(said) <= 1  # a slab that is refused is not asked for again, in silence
        if said:
            assert f"{depth // 2} instead of {depth} steps" in said[0]
            assert loader.prefetch_depth == depth // 2
        assert get().faults == []


def test_depth_then_pool_then_the_latch_then_the_error_at_its_step(wanted, caplog):
    with (
        small_device(64 * MIB) as (options, get),
        Loader(Fields(), batch_size=BATCH, mode="streaming", readers=2, prefetch=8, **options) as loader,
    ):
        require_same(run(loader, 1), wanted[:20])
        iterator = iter(loader)
        found = [plain(next(iterator)) for _ in range(3)]
        get().fail_next(1_000_000)
        with pytest.raises(DeviceMemoryError, match="nothing more that it could give up"):
            for batch in iterator:
                found.append(plain(batch))  # noqa: PERF401 - what came before the error is kept
        assert 3 <= len(found) <= 3 + 8
        require_same(found, wanted[20 : 20 + len(found)])
        words = [message for message in caplog.messages if "no memory left" in message]
        depths = [line.split(": ")[1].split(" ")[0] for line in words if "instead of" in line]
        assert depths == ["4", "2", "1"]
        assert any("the sample pool shrinks" in line for line in words)
        assert "stays off" in words[-1]
        with pytest.raises(StopIteration):
            next(iterator)
        # A state of the step before it goes on from there.
        get().fail_next(0)
        loader.load_state_dict(loader.state_dict())
        require_same([plain(batch) for batch in loader], wanted[20 + len(found) : 40])
        assert pool_of(loader).num_rows == 0
        loader.set_prefetch_depth(4)  # asked for anew, the pool may hold samples again
        require_same(run_epochs(loader, 2, 3), wanted[40:60])
        assert pool_of(loader).num_rows > 0
        assert get().faults == []


def run_epochs(loader, first, last):
    return [plain(batch) for epoch in range(first, last) for batch in loader.epoch(epoch)]


def rest_of(iterator, loader):
    yield from iterator
    yield from loader.epoch(3)


def shrunk(caplog):
    return any("the sample pool shrinks" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("mode", "readers"),
    [
        ("streaming", 2),
        ("auto", 0),
        pytest.param("streaming", 0, marks=FULL),
        pytest.param("auto", 2, marks=FULL),
    ],
)
def test_a_real_shortage_makes_the_pool_give_way_and_changes_no_byte(wanted, caplog, mode, readers):
    total = 8 * MIB
    with (
        small_device(total) as (options, get),
        Loader(Fields(), batch_size=BATCH, mode=mode, readers=readers, **options) as loader,
    ):
        device, found = get(), run(loader, 2)
        rows = pool_of(loader).num_rows
        assert rows > 300
        iterator = loader.epoch(2)
        found += [plain(next(iterator)) for _ in range(2)]
        model = []  # it grows at every step, until it has what the pool gave up
        for batch in rest_of(iterator, loader):
            found.append(plain(batch))
            free = device.memory().free_bytes
            if free > 70_000 and not shrunk(caplog):  # room for one batch, and not for the work on it
                with contextlib.suppress(DeviceMemoryError):  # a reader was faster
                    model.append(device.take(free - 70_000))
        require_same(found, wanted)
        assert shrunk(caplog)
        assert pool_of(loader).num_rows < rows
        assert not loader.is_resident
        model.clear()
        assert device.faults == []
