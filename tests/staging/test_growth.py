"""Leave to grow: looked at before the first bytes and once per 64 MiB, refused for good and aloud."""

import pytest

from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.staging.growth import Growth

MIB = 1 << 20


class Machine:
    def __init__(self, available_bytes: int) -> None:
        self.available_bytes = available_bytes
        self.looks = 0

    def __call__(self) -> HostMemory:
        self.looks += 1
        return HostMemory(8 << 30, self.available_bytes, "host")


def test_the_machine_is_looked_at_once_per_64_mib() -> None:
    machine = Machine(4 << 30)
    growth = Growth("RAM cache", machine)
    assert all(growth.allows(4 * MIB) for _ in range(16))
    assert machine.looks == 1
    assert all(growth.allows(4 * MIB) for _ in range(17))
    assert machine.looks == 3


def test_once_refused_it_stays_so_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(4 << 30)
    growth = Growth("RAM cache", machine)
    assert growth.allows(64 * MIB)
    machine.available_bytes = 300 * MIB
    assert not growth.allows(1)
    machine.available_bytes = 4 << 30
    assert not growth.allows(1)
    assert growth.stopped == "only 300 MiB of memory is available; 256 MiB is left alone"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "keeps the 64.0 MiB it has" in record.getMessage()
    assert "loader.ram_max_usage" in record.getMessage()


def test_a_large_request_must_fit_above_the_floor_by_itself() -> None:
    growth = Growth("RAM cache", Machine(1 << 30))
    assert not growth.allows(900 * MIB)
