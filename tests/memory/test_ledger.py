"""The ledger: loaders of one process share each account, and accounts do not know of each other."""

import threading

import pytest

from flodl_pipe.errors import StagingError
from flodl_pipe.memory.budget import Grant
from flodl_pipe.memory.ledger import DISK, Ledger


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


def test_accounts_do_not_know_of_each_other():
    ledger = Ledger()
    owner = ledger.new_owner()
    ledger.take(owner, "ring", 60, Grant(100, "host"))
    ledger.take(owner, "sample pool", 90, Grant(100, "device"), "cuda:0")
    ledger.take(owner, "disk stage", 500, Grant(1000, "disk"), DISK)
    assert ledger.held_bytes == ledger.held() == 60
    assert (ledger.held("cuda:0"), ledger.held("cuda:1"), ledger.held(DISK)) == (90, 0, 500)
    assert ledger.accounts() == {"cuda:0": 90, "disk": 500, "host": 60}
    assert ledger.grants(owner) == {"ring": 60}
    assert ledger.grants(owner, "cuda:0") == {"sample pool": 90}
    ledger.release(owner, account="cuda:0")
    assert ledger.accounts() == {"disk": 500, "host": 60}
    ledger.release(owner)
    assert ledger.accounts() == {}


def test_one_purpose_on_two_accounts_is_two_grants():
    ledger = Ledger()
    owner = ledger.new_owner()
    ledger.take(owner, "in flight", 10, Grant(100, "host"))
    ledger.take(owner, "in flight", 20, Grant(100, "device"), "cuda:0")
    ledger.release(owner, "in flight", "cuda:0")
    assert ledger.accounts() == {"host": 10}


@pytest.mark.parametrize(
    ("account", "where", "remedy"),
    [
        ("cuda:0", " on cuda:0", "raise loader.vram_max_usage"),
        (DISK, " on disk", "lower loader.disk_stage"),
        ("host", "", "raise loader.ram_max"),
    ],
)
def test_a_refusal_names_the_knob_of_its_account(account, where, remedy):
    with pytest.raises(
        StagingError,
        match=rf"pool needs 50 B, but only 40 B of this process's 40 B{where} is left \(a test\); {remedy}",
    ):
        Ledger().take(1, "pool", 50, Grant(40, "a test"), account)


def test_giving_back_is_never_refused():
    ledger = Ledger()
    ledger.take(1, "pool", 100, Grant(100, "before"))
    ledger.take(1, "pool", 60, Grant(10, "the share shrank"))
    assert ledger.held_bytes == 60
    with pytest.raises(StagingError):
        ledger.take(1, "pool", 61, Grant(10, "the share shrank"))
    assert ledger.held_bytes == 60


def test_a_tier_grows_until_the_share_is_used_up():
    ledger, share = Ledger(), Grant(100, "a test")
    ledger.take(1, "ring", 30, share)
    assert [ledger.grow(2, "RAM cache", 25, share) for _ in range(4)] == [True, True, False, False]
    assert ledger.grants(2) == {"RAM cache": 50}


def test_threads_never_get_more_than_there_is():
    ledger, share = Ledger(), Grant(1000, "a test")
    gate = threading.Barrier(8)
    got = [0] * 8

    def loader(number):
        gate.wait()
        for _ in range(400):
            got[number] += ledger.grow(number, "pool", 1, share, "cuda:0")

    threads = [threading.Thread(target=loader, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == ledger.held("cuda:0") == 1000
