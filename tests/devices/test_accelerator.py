"""What is asked of torch, of a made-up module: see tests/gpu for what only an accelerator shows."""

import threading
import weakref

import numpy as np
import pytest
import torch

from flodl_pipe.devices import accelerator as module_under_test
from flodl_pipe.devices.accelerator import AcceleratorDevice
from flodl_pipe.devices.mps import MpsDevice
from flodl_pipe.errors import DeviceMemoryError, StagingError
from tests.devices.fake_torch import FakeTorch


def pinned(num_bytes):
    return torch.empty(num_bytes, dtype=torch.uint8)


def device_of(fake, empty_pinned=pinned):
    return AcceleratorDevice(torch.device("cpu"), fake, empty_pinned=empty_pinned)


@pytest.fixture
def fake():
    return FakeTorch()


@pytest.fixture
def device(fake):
    return device_of(fake)


def test_free_memory_is_the_drivers_and_what_our_allocator_does_not_use(fake, device):
    assert device.memory().free_bytes == device.memory().total_bytes == 1 << 20
    fake.others, fake.reserved, fake.allocated = 1000, 5000, 3000
    assert device.memory().free_bytes == (1 << 20) - 1000 - 3000
    assert device.memory().used_bytes == 4000
    device.empty_cache()
    assert device.memory().used_bytes == 4000  # what the allocator gave back is the driver's now


def test_what_this_process_has_and_had_at_most_is_what_its_tensors_take(fake, device):
    fake.others = 1000
    for fake.reserved, fake.allocated in ((9000, 8000), (9000, 3000)):
        memory = device.memory()
    assert (memory.process_bytes, memory.process_peak_bytes) == (3000, 8000)
    assert FakeTorch().memory_stats(None) == {}  # as torch's, before the first tensor
    assert device_of(FakeTorch()).memory().process_peak_bytes == 0


def test_free_memory_of_a_driver_that_does_not_tell_is_what_this_process_left(fake):
    fake = FakeTorch(driver_tells=False, others=1000)
    fake.reserved, fake.allocated = 5000, 3000
    assert device_of(fake).memory().free_bytes == (1 << 20) - 3000


def test_other_errors_of_the_driver_are_not_taken_for_silence(fake, device, monkeypatch):
    def mem_get_info(_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(fake, "mem_get_info", mem_get_info)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        device.memory()


def test_memory_that_torch_was_told_to_leave_alone_is_not_free(fake, device, monkeypatch):
    monkeypatch.setattr(fake, "get_per_process_memory_fraction", lambda device: 0.5, raising=False)
    assert device.memory().free_bytes == 1 << 19
    fake.reserved = fake.allocated = 3000
    assert device.memory().free_bytes == (1 << 19) - 3000
    fake.others = (1 << 20) - 5000
    assert device.memory().free_bytes == 2000


def test_memory_allocated_in_inference_mode_can_be_trained_on_outside(device):
    with torch.inference_mode():
        tensor = device.allocate(16, device.stream("transfer"))
    assert not tensor.is_inference()


@pytest.mark.parametrize(
    ("properties", "shared"),
    [({}, False), ({"is_integrated": 0}, False), ({"is_integrated": 1}, True), ({"is_integrated_gpu": True}, True)],
)
def test_a_device_that_says_it_is_integrated_shares_the_hosts_memory(properties, shared):
    assert device_of(FakeTorch(**properties)).memory().is_shared is shared


def test_a_slab_is_charged_as_the_power_of_two_it_takes(device):
    sizes = [0, 1, 2, 3, 4096, 4097, (1 << 20) + 1]
    assert [device.slab_bytes(size) for size in sizes] == [0, 1, 2, 4, 4096, 8192, 1 << 21]


def test_a_slab_holds_its_page_locked_memory_as_long_as_any_view_of_it_lives(fake):
    class Memory(bytearray):
        __slots__ = ("__weakref__",)

    made = []

    def empty_pinned(num_bytes):
        memory = Memory(num_bytes)
        made.append(weakref.ref(memory))
        return torch.frombuffer(memory, dtype=torch.uint8)

    view = device_of(fake, empty_pinned).host_slab(100)[10:20]
    assert made[0]() is not None
    view[:] = 7
    assert made[0]()[9:21] == b"\0" + b"\7" * 10 + b"\0"
    del view
    assert made[0]() is None


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: out of memory\nmore"), MemoryError("no")])
def test_page_locked_memory_that_is_refused_is_an_error_with_the_size_it_takes(fake, error):
    def empty_pinned(num_bytes):
        raise error

    with pytest.raises(StagingError, match=r"4\.00 KiB of page-locked.*cpu were refused.*ulimit -l"):
        device_of(fake, empty_pinned).host_slab(3000)


def test_work_is_done_on_the_stream_it_was_given_and_the_threads_own_is_left_alone(fake, device):
    stream = device.stream("transfer")
    seen = []
    device.enqueue(stream, lambda: seen.append(fake.current_stream()), reads=[], writes=[])
    assert device.compute(stream, lambda: seen.append(fake.current_stream()) or 7, reads=[]) == 7
    assert seen == [stream.torch_stream] * 2
    assert fake.current_stream() is fake.default


def test_the_consumer_is_the_calling_threads_current_stream(fake, device):
    other = FakeTorch().Stream("cpu")
    found = []

    def loop():
        with fake.stream(other):
            found.append(device.consumer().torch_stream)

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    assert found == [other]
    assert device.consumer().torch_stream is fake.default


def test_memory_is_allocated_for_the_stream_it_is_used_on(fake, device, monkeypatch):
    seen = []
    real = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: seen.append(fake.current_stream()) or real(*a, **k))
    stream = device.stream("transfer")
    tensor = device.allocate(512, stream)
    assert (tensor.dtype, tuple(tensor.shape)) == (torch.uint8, (512,))
    assert seen == [stream.torch_stream]


class TestCopies:
    @pytest.fixture
    def copies(self, fake, monkeypatch):
        """Note each copy's stream, whether it may be asynchronous, and the owner of its host memory."""
        seen = []
        real = torch.Tensor.copy_

        def copy_(target, source, non_blocking=False):
            seen.append((fake.current_stream(), non_blocking, source, target))
            return real(target, source, non_blocking)

        monkeypatch.setattr(torch.Tensor, "copy_", copy_)
        return seen

    def test_go_both_ways_and_are_enqueued_on_their_stream(self, device, copies):
        stream = device.stream("transfer")
        slab = device.host_slab(64)
        slab[:] = np.arange(64)
        rows = device.allocate(16, stream)
        device.copy_in(stream, slab[8:24], rows)
        assert rows.tolist() == list(range(8, 24))
        device.copy_out(stream, rows, slab[:16])
        assert slab[:16].tolist() == list(range(8, 24))
        assert [(seen[0], seen[1]) for seen in copies] == [(stream.torch_stream, True)] * 2

    def test_are_made_through_the_tensor_that_owns_the_page_locked_memory(self, device, copies):
        # torch's allocator then sees the copy, and keeps the memory of a slab that is collected during it.
        slab = device.host_slab(64)
        rows = device.allocate(16, device.stream("transfer"))
        device.copy_in(device.stream("transfer"), slab[8:40][8:24], rows)
        source = copies[0][2]
        assert source.untyped_storage().data_ptr() == slab.base.data_ptr()
        assert source.untyped_storage().nbytes() == 64
        assert source.storage_offset() == 16

    def test_work_from_memory_that_is_not_page_locked_and_from_read_only_memory(self, device):
        stream = device.stream("transfer")
        rows = device.allocate(4, stream)
        device.copy_in(stream, np.array([1, 2, 3, 4], np.uint8), rows)
        assert rows.tolist() == [1, 2, 3, 4]
        device.copy_in(stream, np.frombuffer(b"\x05\x06\x07\x08", np.uint8), rows)
        assert rows.tolist() == [5, 6, 7, 8]

    def test_reach_tensors_of_any_type(self, device):
        rows = torch.zeros(2, dtype=torch.int32)
        device.copy_in(device.stream("transfer"), np.array([1, 0, 0, 0, 2, 0, 0, 0], np.uint8), rows)
        assert rows.tolist() == [1, 2]

    def test_of_unequal_sizes_are_refused_although_torch_would_repeat_the_one_byte(self, device):
        with pytest.raises(AssertionError, match="copy of"):
            device.copy_in(device.stream("transfer"), np.zeros(1, np.uint8), torch.empty(4, dtype=torch.uint8))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"),
    ],
)
def test_device_memory_that_ran_out_is_an_error_with_figures_and_remedies(fake, device, error):
    fake.reserved = fake.allocated = 1 << 19

    def work():
        raise error

    match = r"cpu has no room for .*512 KiB of 1\.00 MiB.*loader\.prefetch.*activation_reserve.*vram_pool=false"
    with pytest.raises(DeviceMemoryError, match=match):
        device.compute(device.stream("transfer"), work, reads=[])
    with pytest.raises(DeviceMemoryError, match=match):
        device.enqueue(device.stream("transfer"), work, reads=[], writes=[])


def test_an_error_about_device_memory_holds_no_tensor_of_the_work_that_failed(device):
    made = []

    def work():
        tensor = torch.zeros(10)
        made.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(DeviceMemoryError) as caught:
        device.compute(device.stream("transfer"), work, reads=[])
    assert made[0]() is None
    assert caught.value.__context__ is None


def test_an_allocation_that_does_not_fit_says_how_much_was_asked_for(device, monkeypatch):
    def empty(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(DeviceMemoryError, match=r"no room for another 3\.00 MiB"):
        device.allocate(3 << 20, device.stream("transfer"))


def test_other_errors_of_the_work_are_left_as_they_are(device):
    def work():
        raise RuntimeError("device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side assert"):
        device.compute(device.stream("transfer"), work, reads=[])


def test_events_are_recorded_waited_for_and_synchronized_on_the_streams_named(fake, device):
    transfer, consumer = device.stream("transfer"), device.consumer()
    event = device.record(transfer)
    device.wait(consumer, event)
    device.synchronize(event)
    assert event.is_done()
    inner = event.torch_event
    assert fake.calls == [
        ("record", transfer.torch_stream, inner),
        ("wait", fake.default, inner),
        ("synchronize", inner),
    ]


@pytest.mark.parametrize("blocking", [True, False])
def test_a_thread_that_waits_for_an_event_sleeps_where_the_kind_of_device_can(blocking):
    device = device_of(FakeTorch(blocking=blocking))
    event = device.record(device.stream("transfer"))
    assert event.torch_event.made_with == ({"blocking": True} if blocking else {})


def test_delivered_tensors_are_kept_for_the_stream_that_reads_them(fake, device, monkeypatch):
    kept = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: kept.append((tensor, stream)))
    tensors = [torch.zeros(1), torch.zeros(2)]
    device.keep_for(device.consumer(), tensors)
    assert [(id(tensor), stream) for tensor, stream in kept] == [(id(tensor), fake.default) for tensor in tensors]


def test_streams_and_events_of_another_device_are_refused(device):
    with pytest.raises(AssertionError, match="another device"):
        device.record(MpsDevice(torch.device("cpu"), None).stream("x"))
    with pytest.raises(AssertionError, match="another device"):
        device.wait(device.consumer(), MpsDevice(torch.device("cpu"), None).record(None))


def test_page_locked_memory_and_caches_are_asked_for_on_this_device_whatever_the_threads_own(fake, device):
    device.host_slab(10)
    device.empty_cache()
    assert fake.calls == [("device", torch.device("cpu"))] * 2


def test_closing_gives_page_locked_memory_back(device, monkeypatch):
    calls = []
    monkeypatch.setattr(module_under_test, "empty_host_cache", lambda: calls.append(1))
    device.close()
    assert calls == [1]


def test_without_page_locked_memory_to_give_back_closing_does_nothing(device):
    device.close()


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_this_torch_has_every_name_that_is_used(name):
    module = torch.get_device_module(name)
    names = (
        "Stream Event stream device current_stream mem_get_info memory_stats memory_reserved get_device_properties "
        "empty_cache init device_count current_device"
    )
    assert [word for word in names.split() if not hasattr(module, word)] == []
