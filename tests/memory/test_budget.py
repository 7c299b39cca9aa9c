"""The budget neither ratchets up nor starves, and says how it came to its figure."""

import pytest

from flodl_pipe.errors import StagingError
from flodl_pipe.memory.budget import Grant, floor_bytes, host_share
from flodl_pipe.memory.ledger import Ledger
from flodl_pipe.memory.probe import HostMemory

GIB = 1 << 30


def test_the_share_is_taken_of_available_and_held():
    before = host_share(HostMemory(16 * GIB, 8 * GIB, "host"), ram_max_usage=0.5, held_bytes=0)
    after = host_share(HostMemory(16 * GIB, 5 * GIB, "host"), ram_max_usage=0.5, held_bytes=3 * GIB)
    assert before.num_bytes == after.num_bytes == 4 * GIB
    assert "3.00 GiB held" in after.reason


def test_the_reason_names_a_control_group():
    grant = host_share(HostMemory(GIB, GIB, "cgroup"), ram_max_usage=0.25, held_bytes=0)
    assert str(grant) == "256 MiB: ram_max_usage 0.25 of 1.00 GiB available (control group limit)"


def test_the_floor_is_at_least_256_mib():
    assert floor_bytes(HostMemory(GIB, GIB, "host")) == 256 << 20
    assert floor_bytes(HostMemory(1000 * GIB, GIB, "host")) == 20 * GIB


def test_loaders_of_one_process_share_one_account():
    ledger, share = Ledger(), Grant(100, "a test")
    first, second = ledger.new_owner(), ledger.new_owner()
    ledger.take(first, "ring", 60, share)
    with pytest.raises(
        StagingError, match=r"ring needs 50 B, but only 40 B of this process's 100 B is left \(a test\)"
    ):
        ledger.take(second, "ring", 50, share)
    ledger.take(second, "ring", 40, share)
    assert ledger.held_bytes == 100
    ledger.release(first)
    assert ledger.grants(second) == {"ring": 40}
    ledger.take(second, "ring", 90, share)
    assert ledger.held_bytes == 90


def test_releasing_one_purpose_keeps_the_others():
    ledger, share = Ledger(), Grant(100, "a test")
    owner = ledger.new_owner()
    ledger.take(owner, "ring", 10, share)
    ledger.take(owner, "resident set", 20, share)
    ledger.release(owner, "resident set")
    assert ledger.grants(owner) == {"ring": 10}
