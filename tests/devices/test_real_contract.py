"""Real devices hold the contract of devices, as far as tensors on the CPU and a made-up module of torch's can show it.

Left out is what is up to a real allocator: that memory is aligned, comes back and runs out. tests/gpu has it.
"""

from types import SimpleNamespace

import pytest
import torch

from flodl_pipe.devices.accelerator import AcceleratorDevice
from flodl_pipe.devices.mps import MpsDevice
from tests.contract.devices import DeviceContract
from tests.devices.fake_torch import FakeTorch


class OnTheCpu(DeviceContract):
    test_memory_is_aligned_bytes_on_the_device = None
    test_memory_comes_back_when_the_last_view_of_it_is_gone = None
    test_memory_that_is_not_there_is_refused_and_what_is_there_is_not = None


class TestAcceleratorDevice(OnTheCpu):
    @pytest.fixture(autouse=True)
    def _tensors_know_the_streams(self, monkeypatch):
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)

    def make_device(self):
        return AcceleratorDevice(
            torch.device("cpu"),
            FakeTorch(),
            empty_pinned=lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8),
        )


class TestMpsDevice(OnTheCpu):
    def make_device(self):
        module = SimpleNamespace(
            recommended_max_memory=lambda: 1000, current_allocated_memory=lambda: 300, empty_cache=lambda: None
        )
        return MpsDevice(torch.device("cpu"), module)
