"""Integrated GPUs, with figures that were made up: no such machine was at hand."""

import pytest
import torch

from flodl_pipe.devices.accelerator import AcceleratorDevice
from flodl_pipe.devices.aperture import host_reserve, measure_aperture, num_sockets, written_memory
from flodl_pipe.devices.protocol import DeviceMemory
from flodl_pipe.errors import ConfigError
from tests.devices.fake_torch import FakeTorch

GIB = 1 << 30


class Host:
    """Host memory that lacks ``share`` of what is allocated on the device, and ``noise`` that others take meanwhile."""

    def __init__(self, share, noise=(), start=0):
        self.share, self.noise, self.start = share, list(noise), start
        self.taken = 0
        self.held = []

    def allocate(self, num_bytes):
        if not self.held:
            self.taken += self.start
        elif self.noise:
            self.taken += self.noise.pop(0)
        self.taken += int(self.share * num_bytes)
        self.held.append(num_bytes)
        return num_bytes

    def available(self):
        return 100 * GIB - self.taken


def shares(host):
    return measure_aperture(host.allocate, host.available, GIB)


def test_memory_that_the_host_lacks_afterwards_is_the_hosts():
    host = Host(1.0)
    assert shares(host)
    assert host.held[1:] == [GIB] * 3


def test_memory_that_the_host_does_not_miss_is_the_devices_own():
    assert not shares(Host(0.0))


def test_what_other_programs_take_and_free_meanwhile_does_not_change_the_verdict():
    assert shares(Host(1.0, noise=[-GIB // 3, GIB // 3, -GIB // 3]))
    assert not shares(Host(0.0, noise=[GIB, GIB, GIB // 4]))


def test_what_starting_the_driver_takes_of_the_host_is_not_looked_at():
    assert not shares(Host(0.0, start=GIB))


def test_memory_of_one_try_is_not_given_out_again_in_the_next():
    """A caching allocator would; then the host would lose nothing, and an integrated GPU pass for a discrete one."""
    cache, alive = [], []

    class Block:
        def __init__(self, num_bytes):
            self.num_bytes = num_bytes

        def __del__(self):
            cache.append(self.num_bytes)

    def allocate(num_bytes):
        if num_bytes in cache:
            cache.remove(num_bytes)
        else:
            alive.append(num_bytes)
        return Block(num_bytes)

    assert measure_aperture(allocate, lambda: 100 * GIB - sum(alive), GIB)


def test_device_memory_is_written_to_and_new():
    fake = FakeTorch()
    fake.reserved, fake.allocated = 5000, 3000
    tensor = written_memory(AcceleratorDevice(torch.device("cpu"), fake))(10)
    assert tensor.tolist() == [1] * 10
    assert fake.reserved == 3000
    assert [call[0] for call in fake.calls][-2:] == ["record", "synchronize"]


def reserve(**changes):
    asked = {"gpu_ram_share": None, "shares_host_memory": True, "num_sockets": 1, "num_devices": 1} | changes
    return host_reserve(DeviceMemory(16 * GIB, 10 * GIB), 32 * GIB, **asked)


def test_a_discrete_device_leaves_the_hosts_memory_alone_whatever_was_stated():
    found = reserve(shares_host_memory=False, num_sockets=2)
    assert (found.num_bytes, found.reason) == (0, "a discrete device has memory of its own")
    stated = reserve(shares_host_memory=False, gpu_ram_share=0.5)
    assert stated.num_bytes == 0
    assert stated.reason.endswith("gpu_ram_share 0.5 has no effect")


def test_an_integrated_device_may_still_take_the_rest_of_its_aperture():
    assert reserve().num_bytes == 10 * GIB
    assert "16.0 GiB less 6.00 GiB in use" in str(reserve())
    assert reserve(num_devices=3).num_bytes == 30 * GIB


@pytest.mark.parametrize(("share", "gib"), [(0.5, 10), (1.25, 34), (0.1, 0)])
def test_a_stated_share_of_the_hosts_memory_counts_instead_and_may_exceed_it(share, gib):
    assert reserve(gpu_ram_share=share).num_bytes == gib * GIB
    assert reserve(gpu_ram_share=share, num_sockets=4).num_bytes == gib * GIB


def test_several_sockets_need_a_stated_share():
    with pytest.raises(ConfigError, match=r"loader\.gpu_ram_share: must be set.*2 processor packages.*32\.0 GiB"):
        reserve(num_sockets=2)


def machine(folder, packages):
    for cpu, package in enumerate(packages):
        topology = folder / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
    (folder / "cpufreq").mkdir()
    return folder


def test_sockets_are_packages(tmp_path):
    assert num_sockets(machine(tmp_path, [0, 0, 1, 1])) == 2


def test_a_socket_that_is_divided_into_numa_nodes_is_one(tmp_path):
    root = machine(tmp_path / "cpu", [0] * 8)
    for node in range(4):
        (tmp_path / "node" / f"node{node}").mkdir(parents=True)
    assert num_sockets(root) == 1


def test_a_system_that_does_not_tell_has_one_socket(tmp_path):
    assert num_sockets(tmp_path) == 1
