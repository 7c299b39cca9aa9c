"""What only an accelerator shows: that copies and work overlap, that waits hold, that memory is kept and given back."""

import gc
import threading
import time

import numpy as np
import pytest
import torch

from flodl_pipe.devices.choose import find_device
from flodl_pipe.errors import DeviceMemoryError, LoaderError
from tests.contract.devices import DeviceContract
from tests.contract.forked import in_forked_child
from tests.gpu.found import find

MIB = 1 << 20


class TestTheContract(DeviceContract):
    def make_device(self):
        return find()[0]


def filled(device, num_bytes, value=7):
    slab = device.host_slab(num_bytes)
    slab[:] = value
    return slab


def shows(what):
    """Return whether something shows beside long work; each time it does not, more of it, lest the host was too slow.

    Args:
        what: Is given the size of the work, of which twice as much is eight times the work, and returns whether it did.
    """
    return any(what(size) for size in (4096, 8192, 16_384))


def long_work(device, stream, rounds=60, size=4096):
    """Enqueue some tens of milliseconds of matrix products on ``stream``, or more."""
    a = torch.randn(size, size, device=device.torch_device)
    device.wait(stream, device.record(device.consumer()))

    def work():
        b = a
        for _ in range(rounds):
            b = torch.mm(a, b).mul_(1e-3)
        return b

    found = device.compute(stream, work, reads=[a])
    device.keep_for(stream, [a])
    return found


def test_bytes_come_back_as_they_went(device):
    stream = device.stream("transfer")
    source = np.random.default_rng(0).integers(0, 256, 3 * MIB + 17, dtype=np.uint8)
    slab = device.host_slab(source.size + 64)
    slab[64:] = source
    rows = device.allocate(source.size, stream)
    assert rows.data_ptr() % 256 == 0
    out = device.host_slab(source.size)
    device.copy_in(stream, slab[64:], rows)
    device.copy_out(stream, rows, out)
    device.synchronize(device.record(stream))
    np.testing.assert_array_equal(out, source)


def test_memory_that_is_ordinary_or_read_only_is_copied_too(device):
    stream = device.stream("transfer")
    for source in (np.arange(256, dtype=np.uint8), np.frombuffer(bytes(range(256)), np.uint8)):
        rows = device.allocate(256, stream)
        device.copy_in(stream, source, rows)
        device.synchronize(device.record(stream))
        assert rows.cpu().tolist() == list(range(256))


def test_a_slab_is_page_locked(streaming_device):
    slab = streaming_device.host_slab(MIB)
    assert torch.from_numpy(slab).is_pinned()
    assert torch.from_numpy(slab[1000:]).is_pinned()


def test_a_copy_returns_before_it_is_done(streaming_device):
    device, stream = streaming_device, streaming_device.stream("transfer")
    slab, rows = filled(device, 64 * MIB), device.allocate(64 * MIB, stream)

    def returned_first(size):
        long_work(device, stream, size=size)
        device.copy_in(stream, slab, rows)
        event = device.record(stream)
        is_first = not event.is_done()
        device.synchronize(event)
        assert event.is_done()
        return is_first

    assert shows(returned_first)


def test_copies_overlap_with_work_of_another_stream(streaming_device):
    device, transfer, other = streaming_device, streaming_device.stream("transfer"), streaming_device.stream("other")
    slab, rows = filled(device, 64 * MIB), device.allocate(64 * MIB, transfer)

    def was_copied_meanwhile(size):
        long_work(device, other, size=size)
        worked = device.record(other)
        device.copy_in(transfer, slab, rows)
        device.synchronize(device.record(transfer))
        found = not worked.is_done()
        device.synchronize(worked)
        return found

    assert shows(was_copied_meanwhile)  # by how much is for overlap.py to say


def test_the_consumer_sees_the_copy_that_it_waits_for(streaming_device):
    device, transfer = streaming_device, streaming_device.stream("transfer")
    slabs = [filled(device, 64 * MIB, value) for value in (1, 2)]
    for step in range(20):
        rows = device.allocate(64 * MIB, transfer)
        device.copy_in(transfer, slabs[step % 2], rows)
        device.wait(device.consumer(), device.record(transfer))
        least, most = torch.aminmax(rows)
        device.keep_for(device.consumer(), [rows])
        assert (least.item(), most.item()) == (1 + step % 2,) * 2


def test_memory_is_not_given_out_again_before_the_stream_it_is_kept_for_is_through(streaming_device):
    device, transfer = streaming_device, streaming_device.stream("transfer")
    rows = device.allocate(64 * MIB, transfer)
    device.copy_in(transfer, filled(device, 64 * MIB, 1), rows)
    device.wait(device.consumer(), device.record(transfer))
    long_work(device, device.consumer())
    seen = rows.to(torch.int32).sum()  # after the long work
    device.keep_for(device.consumer(), [rows])
    del rows
    gc.collect()
    for _ in range(4):
        device.copy_in(transfer, filled(device, 64 * MIB, 9), device.allocate(64 * MIB, transfer))
    assert seen.item() == 64 * MIB


def test_a_slab_that_is_collected_during_its_copy_is_not_given_out_again(streaming_device):
    device, transfer = streaming_device, streaming_device.stream("transfer")
    rows = device.allocate(256 * MIB - 4096, transfer)
    long_work(device, transfer)
    # Not from its first byte on: torch would know the block by that address, through whatever tensor.
    device.copy_in(transfer, filled(device, 256 * MIB, 1)[4096:], rows)
    gc.collect()
    filled(device, 256 * MIB, 9)
    device.synchronize(device.record(transfer))
    assert torch.aminmax(rows)[1].item() == 1


def test_a_thread_that_waits_for_an_event_sleeps(streaming_device):
    device, stream = streaming_device, streaming_device.stream("transfer")
    if device.torch_device.type != "cuda":
        pytest.skip("events of XPU cannot sleep")
    # Time itself is the subject: of the waiting, hardly any is the thread's own. It must be long for that to show.
    long_work(device, stream, rounds=10)
    device.synchronize(device.record(stream))

    def slept(size):
        long_work(device, stream, rounds=300, size=size)
        event = device.record(stream)
        wall, cpu = time.perf_counter(), time.thread_time()
        device.synchronize(event)
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        return cpu < 0.3 * wall

    assert shows(slept)


def test_other_threads_run_on_while_one_waits(streaming_device):
    device, stream = streaming_device, streaming_device.stream("transfer")

    def ran_on(size):
        long_work(device, stream, rounds=300, size=size)
        event = device.record(stream)
        counted = 0
        thread = threading.Thread(target=device.synchronize, args=(event,))
        thread.start()
        while thread.is_alive():
            counted += 1
            time.sleep(0.001)  # the other thread gets to wait
        return counted > 5

    assert shows(ran_on)


def test_free_memory_follows_what_is_allocated_and_freed(device):
    stream = device.stream("transfer")
    before = device.memory()
    rows = device.allocate(256 * MIB, stream)
    during = device.memory()
    del rows
    gc.collect()
    after = device.memory()
    assert before.total_bytes == after.total_bytes
    assert before.free_bytes - during.free_bytes >= 256 * MIB
    assert during.process_bytes - before.process_bytes >= 256 * MIB
    assert after.process_bytes == before.process_bytes
    assert after.process_peak_bytes >= during.process_bytes
    assert after.free_bytes >= before.free_bytes - 32 * MIB  # other programs may live here too


def test_memory_that_is_not_there_is_an_error_and_the_device_goes_on(device):
    stream = device.stream("transfer")
    total = device.memory().total_bytes
    with pytest.raises(DeviceMemoryError, match=r"left|room"):
        device.allocate(2 * total, stream)
    with pytest.raises(DeviceMemoryError, match=r"left|room"):
        device.compute(stream, lambda: torch.empty(2 * total, dtype=torch.uint8, device=device.torch_device), reads=[])
    rows = device.allocate(MIB, stream)
    device.copy_in(stream, filled(device, MIB), rows)
    device.synchronize(device.record(stream))
    assert rows.sum().item() == 7 * MIB


def test_page_locked_memory_goes_back_to_the_system(streaming_device):
    if streaming_device.torch_device.type != "cuda" or not hasattr(torch.cuda, "host_memory_stats"):
        pytest.skip("this version of torch does not tell how much page-locked memory it holds")
    slab = streaming_device.host_slab(100 * MIB)
    held = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    assert held >= streaming_device.slab_bytes(100 * MIB) == 128 * MIB
    del slab
    gc.collect()
    streaming_device.close()
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] <= held - 128 * MIB


def test_a_thread_with_another_current_device_works_on_this_one(streaming_device):
    device = streaming_device
    module = torch.get_device_module(device.torch_device)
    if module.device_count() < 2:
        pytest.skip("one device only")
    found = []

    def work():
        module.set_device((device.torch_device.index + 1) % module.device_count())
        stream = device.stream("transfer")
        rows = device.allocate(MIB, stream)
        device.copy_in(stream, filled(device, MIB), rows)
        device.synchronize(device.record(stream))
        found.append((rows.device, rows.sum().item()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(device.torch_device, 7 * MIB)]


def _choose(name):
    try:
        find_device(name, simulated=lambda: None)
    except LoaderError as error:
        return str(error)
    return "found"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_forked_process_is_told_to_start_otherwise(streaming_device, name):
    if streaming_device.torch_device.type != "cuda":
        pytest.skip("CUDA only")
    streaming_device.allocate(1, streaming_device.consumer())  # this process uses the device
    assert "'spawn' or 'forkserver'" in in_forked_child(_choose, name)
