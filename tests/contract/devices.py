"""What every device must hold, as a battery of tests. Run it on a device of your own::

    from tests.contract.devices import DeviceContract

    class TestMyDevice(DeviceContract):
        def make_device(self):
            ...  # return the device

Only the port is used, and every program declares and waits for all that it must, so a device that checks finds nothing.
"""

import gc
import queue
import threading
from typing import Any

import numpy as np
import pytest
import torch

from flodl_pipe.devices.protocol import Device, Stream
from flodl_pipe.errors import DeviceMemoryError

SIZES = (1, 3, 511, 512, 513, 4096, 100_003, 2**20)
SLACK_BYTES = 32 * 2**20


def pattern(size: int, seed: int) -> Any:
    """Return bytes that differ from place to place and from seed to seed."""
    return np.random.default_rng((seed, size)).integers(0, 256, size, np.uint8)


def slab_of(device: Device, data: Any) -> Any:
    """Return host memory that copies can be made from."""
    slab = device.host_slab(len(data))
    device.host_writes(slab)
    slab[:] = data
    return slab


def upload(device: Device, stream: Stream, data: Any) -> tuple[Any, torch.Tensor]:
    """Return a slab and the device memory that it is being copied to; the slab is to be kept until that is done."""
    slab, tensor = slab_of(device, data), device.allocate(len(data), stream)
    device.copy_in(stream, slab, tensor)
    return slab, tensor


def fetch(device: Device, stream: Stream, tensor: torch.Tensor) -> Any:
    """Return the bytes of a tensor as they are after a stream's work so far."""
    slab = device.host_slab(tensor.numel() * tensor.element_size())
    device.copy_out(stream, tensor.reshape(-1), slab)
    device.synchronize(device.record(stream))
    device.host_reads(slab)
    return slab.copy()


class DeviceContract:
    """Subclass it under a name that begins with ``Test`` and define the method below."""

    num_steps = 200

    def make_device(self) -> Device:
        raise NotImplementedError

    def check(self, device: Device) -> None:
        """Look at a device at the end of a test."""

    @pytest.fixture
    def device(self):
        device = self.make_device()
        yield device
        self.check(device)
        device.close()

    @pytest.fixture
    def transfer(self, device):
        return device.stream("transfer")

    # Memory

    def test_a_device_says_what_it_is(self, device):
        memory = device.memory()
        assert 0 < memory.free_bytes <= memory.total_bytes
        assert memory.used_bytes == memory.total_bytes - memory.free_bytes
        assert isinstance(device.torch_device, torch.device)
        assert device.name
        assert device.stream("some").name == "some"

    @pytest.mark.parametrize("size", SIZES)
    def test_memory_is_aligned_bytes_on_the_device(self, device, transfer, size):
        tensors = [device.allocate(size, transfer) for _ in range(3)]
        for tensor in tensors:
            assert (tensor.dtype, tuple(tensor.shape)) == (torch.uint8, (size,))
            assert tensor.device.type == device.torch_device.type
            assert tensor.data_ptr() % 256 == 0
        assert len({tensor.data_ptr() for tensor in tensors}) == 3

    def test_no_memory_at_all_is_fine(self, device, transfer):
        assert len(device.allocate(0, transfer)) == 0
        assert len(device.host_slab(0)) == 0

    def test_memory_comes_back_when_the_last_view_of_it_is_gone(self, device, transfer):
        size = min(64 * 2**20, device.memory().free_bytes // 4)
        slack = min(SLACK_BYTES, size // 2)
        before = device.memory().free_bytes
        tensor = device.allocate(size, transfer)
        view = tensor[10:20].view(2, 5)
        assert device.memory().free_bytes <= before - size + slack
        del tensor
        assert device.memory().free_bytes <= before - size + slack
        del view
        if device.memory().free_bytes < before - slack:
            gc.collect()  # a cycle may hold it
        assert device.memory().free_bytes >= before - slack
        device.empty_cache()
        assert device.memory().free_bytes >= before - slack

    def test_memory_that_is_not_there_is_refused_and_what_is_there_is_not(self, device, transfer):
        total = device.memory().total_bytes
        with pytest.raises(DeviceMemoryError):
            device.allocate(2 * total, transfer)
        data = pattern(4096, 0)
        _slab, tensor = upload(device, transfer, data)
        np.testing.assert_array_equal(fetch(device, transfer, tensor), data)

    def test_emptying_the_cache_leaves_what_is_in_use(self, device, transfer):
        data = pattern(4096, 0)
        _slab, tensor = upload(device, transfer, data)
        other = device.allocate(4096, transfer)
        del other
        device.empty_cache()
        np.testing.assert_array_equal(fetch(device, transfer, tensor), data)

    def test_memory_is_no_inference_tensor(self, device, transfer):
        with torch.inference_mode():
            tensor = device.allocate(16, transfer)
        assert not tensor.is_inference()

    @pytest.mark.parametrize("size", [0, *SIZES])
    def test_a_slab_is_host_memory_of_the_size_asked_for(self, device, size):
        slab = device.host_slab(size)
        assert (slab.dtype, slab.shape) == (np.uint8, (size,))
        assert slab.flags.writeable
        assert slab.flags.c_contiguous
        assert device.slab_bytes(size) >= size

    # Copies

    @pytest.mark.parametrize("size", SIZES)
    def test_copies_arrive_and_come_back(self, device, transfer, size):
        data = pattern(size, 1)
        _slab, tensor = upload(device, transfer, data)
        np.testing.assert_array_equal(fetch(device, transfer, tensor), data)

    def test_parts_are_copied(self, device, transfer):
        data = pattern(1000, 2)
        slab, tensor = slab_of(device, data), device.allocate(1000, transfer)
        for begin, end in ((0, 1), (1, 300), (300, 301), (301, 1000)):
            device.copy_in(transfer, slab[begin:end], tensor[begin:end])
        np.testing.assert_array_equal(fetch(device, transfer, tensor), data)
        np.testing.assert_array_equal(fetch(device, transfer, tensor[17:991]), data[17:991])

    def test_other_dtypes_are_copied_by_their_bytes(self, device, transfer):
        data = pattern(4000, 3)
        slab, tensor = slab_of(device, data), device.allocate(4000, transfer).view(torch.int32)
        device.copy_in(transfer, slab, tensor)
        np.testing.assert_array_equal(fetch(device, transfer, tensor), data)
        np.testing.assert_array_equal(fetch(device, transfer, tensor[1:3]), data[4:12])

    def test_a_slab_can_be_written_again_after_its_copy(self, device, transfer):
        slab, tensors = device.host_slab(100_000), []
        for seed in range(10):
            device.host_writes(slab)
            slab[:] = pattern(len(slab), seed)
            tensors.append(device.allocate(len(slab), transfer))
            device.copy_in(transfer, slab, tensors[-1])
            device.synchronize(device.record(transfer))
        for seed, tensor in enumerate(tensors):
            np.testing.assert_array_equal(fetch(device, transfer, tensor), pattern(len(slab), seed))

    # Order

    def test_a_stream_works_in_order(self, device, transfer):
        first, second = pattern(4096, 4), pattern(4096, 5)
        slab, tensor = upload(device, transfer, first)
        kept = device.allocate(4096, transfer)
        device.enqueue(transfer, lambda: kept.copy_(tensor), reads=[tensor], writes=[kept])
        other = slab_of(device, second)
        device.copy_in(transfer, other, tensor)
        np.testing.assert_array_equal(fetch(device, transfer, kept), first)
        np.testing.assert_array_equal(fetch(device, transfer, tensor), second)
        device.host_writes(slab)

    def test_a_stream_waits_for_another(self, device, transfer):
        data, other = pattern(2**20, 6), device.stream("other")
        _slab, tensor = upload(device, transfer, data)
        device.wait(other, device.record(transfer))
        out = device.allocate(len(data), other)
        device.enqueue(other, lambda: torch.bitwise_not(tensor, out=out), reads=[tensor], writes=[out])
        np.testing.assert_array_equal(fetch(device, other, out), ~data)
        # And back again: the first may write what the second has read.
        device.wait(transfer, device.record(other))
        inverse = slab_of(device, ~data)
        device.copy_in(transfer, inverse, tensor)
        np.testing.assert_array_equal(fetch(device, transfer, tensor), ~data)

    def test_the_consumer_waits_for_a_transfer(self, device, transfer):
        data = pattern(2**20, 7)
        _slab, tensor = upload(device, transfer, data)
        device.keep_for(device.consumer(), [tensor])
        device.wait(device.consumer(), device.record(transfer))
        device.use(device.consumer(), [tensor])
        # What a training loop does: torch calls that nobody tells of.
        total = int(tensor.to(torch.int64).sum())
        assert total == int(data.astype(np.int64).sum())

    def test_an_event_of_an_idle_stream_is_done(self, device, transfer):
        event = device.record(transfer)
        device.synchronize(event)
        assert event.is_done()
        device.wait(device.consumer(), event)

    def test_an_event_is_done_when_it_was_waited_for(self, device, transfer):
        _slab, _tensor = upload(device, transfer, pattern(2**20, 8))
        event = device.record(transfer)
        device.synchronize(event)
        assert event.is_done()

    # Work

    def test_work_makes_tensors(self, device, transfer):
        data = pattern(6000, 9)
        _slab, tensor = upload(device, transfer, data)
        picks = slab_of(device, np.array([5, 0, 5, 9], np.int64).view(np.uint8))
        indices = device.allocate(len(picks), transfer).view(torch.int64)
        device.copy_in(transfer, picks, indices)
        rows, (wide, view) = device.compute(
            transfer,
            lambda: (
                {"rows": tensor.view(10, 600).index_select(0, indices)},
                (tensor.to(torch.int64), tensor[1:3]),
            ),
            reads=[tensor, indices],
        )
        np.testing.assert_array_equal(
            fetch(device, transfer, rows["rows"]).reshape(4, 600), data.reshape(10, 600)[[5, 0, 5, 9]]
        )
        np.testing.assert_array_equal(fetch(device, transfer, wide).view(np.int64), data)
        np.testing.assert_array_equal(fetch(device, transfer, view), data[1:3])

    def test_what_work_makes_can_be_worked_on(self, device, transfer):
        data = pattern(600, 10)
        _slab, tensor = upload(device, transfer, data)
        made = tensor
        for _ in range(5):
            made = device.compute(transfer, lambda made=made: made + 1, reads=[made])
        device.keep_for(device.consumer(), [made])
        device.wait(device.consumer(), device.record(transfer))
        device.use(device.consumer(), [made])
        np.testing.assert_array_equal(made.cpu().numpy(), data + np.uint8(5))

    def test_the_consumer_can_be_worked_on(self, device):
        stream, data = device.consumer(), pattern(600, 11)
        _slab, tensor = upload(device, stream, data)
        made = device.compute(stream, lambda: tensor.view(6, 100).flip(0), reads=[tensor])
        np.testing.assert_array_equal(made.cpu().numpy(), data.reshape(6, 100)[::-1])

    def test_what_work_raises_reaches_who_asked_for_it(self, device, transfer):
        def work():
            raise ZeroDivisionError("work")

        with pytest.raises(ZeroDivisionError):
            device.compute(transfer, work, reads=[])
        data = pattern(600, 12)
        _slab, tensor = upload(device, transfer, data)
        np.testing.assert_array_equal(fetch(device, transfer, tensor), data)

    # Reuse

    def test_memory_is_used_again_only_when_the_consumer_is_through_with_it(self, device, transfer):
        consumer = device.consumer()
        result = torch.zeros(100_000, dtype=torch.int64, device=device.torch_device)
        slabs = []
        for seed in range(20):
            slab, tensor = upload(device, transfer, pattern(100_000, seed))
            slabs.append(slab)
            device.keep_for(consumer, [tensor])
            device.wait(consumer, device.record(transfer))
            device.use(consumer, [tensor])
            for _ in range(5):
                result += tensor
        expected = 5 * sum(pattern(100_000, seed).astype(np.int64) for seed in range(20))
        np.testing.assert_array_equal(result.cpu().numpy(), expected)

    def test_memory_that_one_stream_frees_it_gets_again(self, device, transfer):
        expected = np.zeros(50_000, np.uint8)
        total = device.allocate(50_000, transfer)
        device.enqueue(transfer, total.zero_, reads=[], writes=[total])
        slabs = []
        for seed in range(20):
            slab, tensor = upload(device, transfer, pattern(50_000, seed))
            slabs.append(slab)
            device.enqueue(transfer, lambda tensor=tensor: total.add_(tensor), reads=[tensor, total], writes=[total])
            del tensor
            expected += pattern(50_000, seed)
        np.testing.assert_array_equal(fetch(device, transfer, total), expected)

    # Threads

    def test_a_thread_hands_batches_to_the_loop(self, device, transfer):
        random = np.random.default_rng(0)
        sizes = [int(size) for size in random.integers(1, 100_000, self.num_steps)]
        handed: queue.Queue[Any] = queue.Queue(maxsize=3)
        largest = max(sizes)
        pool = device.allocate(largest, transfer)
        ring = [(device.host_slab(largest), []) for _ in range(3)]
        device.enqueue(transfer, lambda: pool.fill_(1), reads=[], writes=[pool])
        stop = threading.Event()

        def put(item: Any) -> None:
            while not stop.is_set():
                try:
                    handed.put(item, timeout=0.1)
                except queue.Full:
                    continue
                return

        def run() -> None:
            try:
                for step, size in enumerate(sizes):
                    slab, events = ring[step % len(ring)]
                    while events:
                        device.synchronize(events.pop())
                    device.host_writes(slab)
                    slab[:size] = pattern(size, step)
                    rows = device.allocate(size, transfer)
                    device.copy_in(transfer, slab[:size], rows)
                    one = pool[:size]
                    batch = device.compute(transfer, lambda rows=rows, one=one: rows + one, reads=[rows, one])
                    device.keep_for(device.consumer(), [batch])
                    events.append(device.record(transfer))
                    put((batch, events[-1]))
            except BaseException as error:
                put(error)
                raise

        thread = threading.Thread(target=run)
        thread.start()
        try:
            for step, size in enumerate(sizes):
                item = handed.get(timeout=60)
                if isinstance(item, BaseException):
                    raise item
                batch, event = item
                device.wait(device.consumer(), event)
                device.use(device.consumer(), [batch])
                batch -= 1
                np.testing.assert_array_equal(batch.cpu().numpy(), pattern(size, step))
                del item, batch
        finally:
            stop.set()
            thread.join()

    # End

    def test_tensors_outlive_the_device(self, device, transfer):
        data = pattern(4096, 13)
        _slab, tensor = upload(device, transfer, data)
        device.wait(device.consumer(), device.record(transfer))
        device.use(device.consumer(), [tensor])
        device.close()
        np.testing.assert_array_equal(tensor.cpu().numpy(), data)

    def test_a_device_can_be_closed_with_work_under_way(self, device, transfer):
        for seed in range(5):
            upload(device, transfer, pattern(2**20, seed))
        device.close()
