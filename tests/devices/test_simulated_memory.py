"""Simulated memory: sizes, reuse, running out, and faults that tests ask for.

White box: which block a tensor is of and how many slabs are remembered is looked at; clocks of threads are set.
"""

import gc
import threading

import numpy as np
import pytest
import torch

from flodl_pipe.devices.simulated import SimulatedDevice
from flodl_pipe.devices.simulated_memory import POISON
from flodl_pipe.errors import DeviceMemoryError, LoaderError, StagingError

BLOCK = 512


@pytest.fixture
def device():
    return SimulatedDevice(10 * BLOCK)


@pytest.fixture
def transfer(device):
    return device.stream("transfer")


def test_sizes_are_counted_in_blocks_of_512_bytes(device, transfer):
    tensors = [device.allocate(size, transfer) for size in (1, 512, 513)]
    assert device.allocated_bytes == device.peak_bytes == 4 * BLOCK
    assert device.memory().free_bytes == 6 * BLOCK
    assert device.memory().total_bytes == 10 * BLOCK
    assert not device.memory().is_shared
    del tensors
    assert device.allocated_bytes == 0
    assert device.kept_bytes == 4 * BLOCK
    assert device.memory().free_bytes == 10 * BLOCK
    assert device.peak_bytes == 4 * BLOCK
    device.empty_cache()
    assert device.kept_bytes == 0


def test_host_memory_is_counted_while_anything_sees_it(device):
    view = memoryview(device.host_slab(100)[10:])
    slabs = [device.host_slab(1) for _ in range(200)]
    assert device.pinned_bytes == 300
    del slabs
    assert device.pinned_bytes == 100
    for _ in range(200):
        device.host_slab(1)
    assert len(device._slabs._slabs) < 100
    del view
    assert device.pinned_bytes == 0


def test_memory_of_work_that_nobody_waits_for_is_free_again(device, transfer):
    for _ in range(3):
        tensor = device.allocate(BLOCK, transfer)
        device.enqueue(transfer, lambda tensor=tensor: tensor.zero_(), reads=[], writes=[tensor])
    del tensor
    assert device.memory().free_bytes == 10 * BLOCK
    assert device.allocated_bytes == 0


def test_a_block_lives_as_long_as_anything_that_sees_it(device, transfer):
    tensor = device.allocate(100, transfer)
    array = tensor[3:].view(97, 1).numpy()
    storage = tensor.untyped_storage()
    del tensor
    assert device.allocated_bytes == BLOCK
    del storage
    assert device.allocated_bytes == BLOCK
    del array
    assert device.allocated_bytes == 0


def test_device_memory_is_known_by_any_way_that_it_comes(device, transfer):
    blocks = [device.allocate(BLOCK, transfer) for _ in range(4)]
    device.synchronize(device.record(transfer))
    for block in blocks:
        middle = torch.from_numpy(block.numpy()[100:])
        assert device._core.block(middle) is device._core.block(block)
        device.copy_in(transfer, device.host_slab(12), torch.from_dlpack(middle[400:]))
    with pytest.raises(LoaderError, match="is host memory"):
        device.keep_for(transfer, [torch.zeros(3)])


def test_a_block_that_is_let_go_is_handed_out_again_at_once_to_its_stream(device, transfer):
    tensor = device.allocate(100, transfer)
    address = tensor.data_ptr()
    del tensor
    other = device.allocate(100, device.stream("other"))
    assert other.data_ptr() != address
    again = device.allocate(100, transfer)
    assert again.data_ptr() == address


def test_new_memory_and_new_slabs_hold_rubbish(device, transfer):
    tensor = device.allocate(100, transfer)
    assert tensor.eq(POISON).all()
    assert (device.host_slab(100) == POISON).all()
    tensor.fill_(1)
    del tensor
    assert device.allocate(100, transfer).eq(POISON).all()


def test_work_that_was_put_off_comes_before_the_rubbish_of_the_next_owner(device, transfer):
    slab, host = device.host_slab(BLOCK), np.zeros(BLOCK, np.uint8)
    slab[:] = 3
    tensor = device.allocate(BLOCK, transfer)
    device.copy_in(transfer, slab, tensor)
    device.synchronize(device.record(transfer))
    device.copy_out(transfer, tensor, host)
    address = tensor.data_ptr()
    del tensor
    again = device.allocate(BLOCK, transfer)
    assert again.data_ptr() == address
    device.synchronize(device.record(transfer))
    assert (host == 3).all()
    assert again.eq(POISON).all()


def test_running_out_names_the_numbers_and_the_knobs(device, transfer):
    kept = device.allocate(6 * BLOCK, transfer)
    with pytest.raises(
        DeviceMemoryError, match=r"simulated has no 2\.50 KiB left: of 5\.00 KiB, 3\.00 KiB are"
    ) as error:
        device.allocate(5 * BLOCK, transfer)
    assert "loader.vram_max_usage" in str(error.value)
    assert device.allocate(4 * BLOCK, transfer).data_ptr() != kept.data_ptr()


def test_memory_that_is_kept_for_others_is_given_up_before_memory_runs_out(device, transfer):
    for size in (1, 2, 3):
        device.allocate(size * BLOCK, transfer)
    assert device.kept_bytes == 6 * BLOCK
    tensor = device.allocate(10 * BLOCK, transfer)
    assert device.kept_bytes == 0
    del tensor
    assert device.take(10 * BLOCK) is not None


def test_memory_that_waits_for_put_off_work_is_found_before_memory_runs_out(device, transfer):
    other, host = device.stream("other"), np.zeros(10 * BLOCK, np.uint8)
    tensor = device.allocate(10 * BLOCK, transfer)
    device.wait(other, device.record(transfer))
    device.copy_out(other, tensor, host)
    device.keep_for(other, [tensor])
    del tensor
    again = device.allocate(10 * BLOCK, transfer)
    device.enqueue(transfer, lambda: again.fill_(1), reads=[], writes=[again])
    assert device.faults == []
    assert (host == POISON).all()


def test_no_more_is_kept_than_is_in_use():
    device = SimulatedDevice(2**40)
    transfer = device.stream("transfer")
    for step in range(500):
        device.allocate(2**20 + step * BLOCK, transfer)
        assert device.kept_bytes <= 66 * 2**20


def test_memory_that_comes_back_late_is_not_replaced_for_ever():
    device = SimulatedDevice(2**40)
    transfer, consumer = device.stream("transfer"), device.consumer()
    addresses = set()
    for step in range(100):
        device.clock._local.time_s = step * 1.0  # the transfer's thread
        tensor = device.allocate(BLOCK, transfer)
        addresses.add(tensor.data_ptr())
        device.keep_for(consumer, [tensor])
        ready = device.record(transfer)
        device.clock._local.time_s = step * 10.0 + 1000  # the loop's, far behind
        device.wait(consumer, ready)
        device.use(consumer, [tensor])
        del tensor
    assert len(addresses) <= 20


def test_others_take_memory_and_give_it_back(device, transfer):
    model = device.take(7 * BLOCK)
    assert device.memory().free_bytes == 3 * BLOCK
    assert device.allocated_bytes == 0
    with pytest.raises(DeviceMemoryError):
        device.allocate(4 * BLOCK, transfer)
    with pytest.raises(DeviceMemoryError):
        device.take(4 * BLOCK)
    del model
    assert device.memory().free_bytes == 10 * BLOCK
    device.allocate(4 * BLOCK, transfer)


def test_results_of_work_take_memory(device, transfer):
    tensor = device.allocate(2 * BLOCK, transfer)
    pair = device.compute(transfer, lambda: (tensor + 1, tensor[1:], torch.ones(3)), reads=[tensor])
    assert device.allocated_bytes == 5 * BLOCK
    with pytest.raises(DeviceMemoryError):
        device.compute(transfer, lambda: tensor.to(torch.int64), reads=[tensor])
    del pair
    assert device.allocated_bytes == 2 * BLOCK


def test_results_that_share_memory_share_it_still(device, transfer):
    def work():
        whole = torch.arange(12, dtype=torch.float32).view(3, 4)
        return whole, whole.T, whole[1:, ::2], whole.sum(), "as it is"

    whole, turned, part, total, rest = device.compute(transfer, work, reads=[])
    device.wait(device.consumer(), device.record(transfer))
    assert device.allocated_bytes == 2 * BLOCK
    assert (whole.tolist(), rest) == ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], "as it is")
    assert turned.tolist() == whole.T.tolist()
    assert part.tolist() == [[4, 6], [8, 10]]
    assert total.item() == 66
    whole[1, 0] = 50
    assert turned[0, 1] == part[0, 0] == 50


def test_work_that_was_put_off_knows_nothing_of_who_needs_it(device, transfer):
    tensor = device.allocate(BLOCK, transfer)
    modes = []

    def work():
        modes.append((torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()))
        tensor.copy_(torch.zeros(BLOCK))

    device.enqueue(transfer, work, reads=[], writes=[tensor])
    event = device.record(transfer)
    assert modes == []
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        device.wait(device.consumer(), event)
    assert modes == [(False, False, False)]
    assert tensor.eq(0).all()


def test_results_are_no_inference_tensors(device, transfer):
    with torch.inference_mode():
        made = device.compute(transfer, lambda: torch.ones(3), reads=[])
    assert not made.is_inference()


def test_allocations_fail_when_asked_to(device, transfer):
    device.fail_next(2, skip=1)
    device.allocate(1, transfer)
    for _ in range(2):
        with pytest.raises(DeviceMemoryError):
            device.allocate(1, transfer)
    device.allocate(1, transfer)


def test_copies_fail_when_asked_to(device, transfer):
    slab, tensor = device.host_slab(8), device.allocate(8, transfer)
    device.fail_next(kind="copy", skip=1)
    device.copy_in(transfer, slab, tensor)
    with pytest.raises(StagingError, match="copy_in of 8 bytes on simulated failed"):
        device.copy_in(transfer, slab, tensor)
    device.copy_in(transfer, slab, tensor)
    assert (device.num_copies_in, device.bytes_in) == (2, 16)


def test_work_that_fails_later_fails_who_needs_it_once(device, transfer):
    tensor = device.allocate(8, transfer)

    def work():
        raise ZeroDivisionError("work")

    device.enqueue(transfer, work, reads=[], writes=[tensor])
    device.enqueue(transfer, lambda: tensor.fill_(1), reads=[], writes=[tensor])
    event = device.record(transfer)
    with pytest.raises(ZeroDivisionError):
        device.synchronize(event)
    device.synchronize(event)
    assert tensor.eq(1).all()


@pytest.mark.parametrize(
    ("cut_host", "cut_device", "message"),
    [
        (lambda slab: slab[:7], lambda tensor: tensor, "7 bytes on the host, 8 on the device"),
        (lambda slab: slab[::2], lambda tensor: tensor[:4], "1-D and contiguous"),
        (lambda slab: slab, lambda tensor: tensor.view(2, 4), "1-D and contiguous"),
        (lambda slab: slab, lambda tensor: torch.zeros(8, dtype=torch.uint8), "is host memory"),
    ],
)
def test_copies_of_what_cannot_be_copied_are_refused(device, transfer, cut_host, cut_device, message):
    slab, tensor = device.host_slab(8), device.allocate(8, transfer)
    with pytest.raises(LoaderError, match=message):
        device.copy_in(transfer, cut_host(slab), cut_device(tensor))


def test_memory_let_go_by_the_collector_in_any_thread_comes_back(transfer, device):
    class Node:
        pass

    def run():
        node = Node()
        node.self, node.tensor = node, device.allocate(BLOCK, transfer)

    threads = [threading.Thread(target=run) for _ in range(4)]
    gc.disable()  # so that they stay among the youngest, which are soon looked through
    try:
        for thread in threads:
            thread.start()
            thread.join()
        assert device.memory().free_bytes == 6 * BLOCK
        gc.collect(0)
    finally:
        gc.enable()
    assert device.memory().free_bytes == 10 * BLOCK


def test_closing_gives_everything_back(device, transfer):
    slab, tensor = device.host_slab(BLOCK), device.allocate(BLOCK, transfer)
    slab[:] = 5
    device.copy_in(transfer, slab, tensor)
    device.allocate(BLOCK, transfer)
    device.close()
    assert tensor.eq(5).all()
    assert device.kept_bytes == 0
    device.close()
