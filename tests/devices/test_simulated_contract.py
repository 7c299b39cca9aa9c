"""The simulated device holds the contract of devices, and finds nothing wrong in programs with all their waits."""

from flodl_pipe.devices.simulated import SimulatedDevice
from tests.contract.devices import DeviceContract


class TestSimulatedDevice(DeviceContract):
    def make_device(self):
        return SimulatedDevice(2**28)

    def check(self, device):
        assert device.faults == []


class TestSmallSimulatedDevice(DeviceContract):
    """Hardly any memory: blocks go back and forth all the time."""

    def make_device(self):
        return SimulatedDevice(6 * 2**20)

    def check(self, device):
        assert device.faults == []
        assert device.peak_bytes <= 6 * 2**20
