"""The single-stage device, with tensors on the CPU and a made-up ``torch.mps``."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flodl_pipe.devices.mps import MpsDevice
from flodl_pipe.errors import DeviceMemoryError


@pytest.fixture
def device():
    fake = SimpleNamespace(
        recommended_max_memory=lambda: 1000, current_allocated_memory=lambda: 300, empty_cache=lambda: None
    )
    return MpsDevice(torch.device("cpu"), fake)


def test_it_has_no_streams_and_pins_nothing(device, recwarn):
    assert not device.has_streams
    assert not device.pins
    slab = device.host_slab(10)
    assert slab.base is None  # ordinary memory, without a tensor behind it
    assert device.slab_bytes(10) == 10
    assert not recwarn


def test_memory_allocated_in_inference_mode_can_be_trained_on_outside(device):
    with torch.inference_mode():
        assert not device.allocate(16, device.stream("transfer")).is_inference()


def test_its_memory_is_the_hosts(device):
    memory = device.memory()
    assert (memory.total_bytes, memory.free_bytes, memory.is_shared) == (1000, 700, True)
    assert (memory.process_bytes, memory.process_peak_bytes) == (300, 300)


def test_copies_are_done_when_they_return(device):
    stream = device.stream("transfer")
    rows = device.allocate(4, stream)
    device.copy_in(stream, np.frombuffer(b"\x01\x02\x03\x04", np.uint8), rows)
    event = device.record(stream)
    assert event.is_done()
    device.wait(device.consumer(), event)
    device.synchronize(event)
    out = np.zeros(4, np.uint8)
    device.copy_out(stream, rows, out)
    assert out.tolist() == [1, 2, 3, 4]
    device.keep_for(device.consumer(), [rows])
    device.empty_cache()
    device.close()


def test_memory_that_ran_out_is_told_in_words_by_torch_and_by_type_here(device):
    def work():
        raise RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)")

    with pytest.raises(DeviceMemoryError, match=r"mps has no memory left: 700 B of 1000 B"):
        device.compute(device.stream("transfer"), work, reads=[])


def test_other_errors_are_left_as_they_are(device):
    def work():
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        device.enqueue(device.stream("transfer"), work, reads=[], writes=[])
