"""Memory of several processes, and how it comes from one to the other.

White box: who is asked for the user of the other side, how long a silent one is waited for, and where the system says
how it accounts for memory.
"""

import os
import platform
import select
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.staging import shared_handover, shared_memory
from flodl_pipe.staging.shared_fence import membarrier, memory_fence
from flodl_pipe.staging.shared_handover import Line, Listener
from flodl_pipe.staging.shared_memory import SharedMemory, memory_file

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs memory files")

LIMIT_S = 60.0  # of what takes no time


def test_pieces_are_the_same_memory_for_all_who_map_it() -> None:
    sizes = [10, 0, 3 << 20, 1]
    num_bytes = SharedMemory.bytes_for(sizes)
    descriptor = memory_file(num_bytes)
    one, other = SharedMemory(descriptor, num_bytes), SharedMemory(descriptor, num_bytes)
    os.close(descriptor)
    for number, size in enumerate(sizes):
        mine, theirs = one.reserve(size), other.reserve(size, scattered=True)
        assert len(mine) == len(theirs) == size
        assert not theirs.any()
        mine[:] = number + 1
        assert (theirs == number + 1).all()
    with pytest.raises(ValueError, match="beyond"):
        one.reserve(1)


def test_nobody_can_make_it_shorter() -> None:
    descriptor = memory_file(1 << 20)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("kind", ["a plain file", "not sealed", "another size"])
def test_a_file_that_is_no_such_memory_is_refused(tmp_path: Path, kind: str) -> None:
    size = 1 << 20
    if kind == "a plain file":
        (tmp_path / "file").write_bytes(bytes(size))
        descriptor = os.open(tmp_path / "file", os.O_RDWR)
    else:
        descriptor = memory_file(size + 1) if kind == "another size" else os.memfd_create("x", os.MFD_ALLOW_SEALING)
    if kind == "not sealed":
        os.ftruncate(descriptor, size)
    try:
        with pytest.raises(OSError):
            SharedMemory(descriptor, size)
    finally:
        os.close(descriptor)


def test_no_memory_is_taken_before_it_is_written() -> None:
    descriptor = memory_file(1 << 36)
    memory = SharedMemory(descriptor, 1 << 36)
    os.close(descriptor)
    piece = memory.reserve(1 << 36, scattered=True)
    piece[:: 1 << 30] = 1
    shared = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssShmem:"))
    assert int(shared.split()[1]) < 64 << 10


def test_strict_accounting_of_memory_is_refused_where_it_would_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strict").write_text("2\n")
    monkeypatch.setattr(shared_memory, "_OVERCOMMIT", tmp_path / "strict")
    with pytest.raises(OSError, match="overcommit_memory=2"):
        memory_file(1)


@pytest.mark.parametrize(("machine", "has_one"), [("x86_64", True), ("AMD64", True), ("sparc64", False)])
def test_processors_that_keep_order_need_no_fence_and_unknown_ones_have_none(
    monkeypatch: pytest.MonkeyPatch, machine: str, has_one: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert (memory_fence.__wrapped__() is not None) == has_one


def test_a_machine_without_a_fence_has_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "memory_fence", lambda: None)
    descriptor = memory_file(10)
    try:
        with pytest.raises(OSError, match="membarrier"):
            SharedMemory(descriptor, 10)
    finally:
        os.close(descriptor)


def test_the_kernels_barrier_can_be_called_and_a_refusal_is_seen() -> None:
    number = {"x86_64": 324, "aarch64": 283}.get(os.uname().machine)
    if number is None:
        pytest.skip(f"the number of membarrier on {os.uname().machine} is not known here")
    fence = membarrier(number)
    if fence is None:
        pytest.skip("this kernel, or a sandbox, refuses membarrier")
    fence()
    assert membarrier(100_000) is None


def hand_over(listener: Listener, descriptor: int, places: set[int]) -> threading.Thread:
    thread = threading.Thread(target=listener.hand_over, args=(descriptor, places, LIMIT_S))
    thread.start()
    return thread


def test_a_file_comes_to_another_process() -> None:
    num_bytes = SharedMemory.bytes_for([100])
    descriptor = memory_file(num_bytes)
    with Listener() as listener:
        child = os.fork()
        if not child:
            ok = False
            try:
                got = receive(listener.token, 2)
                SharedMemory(got, num_bytes).reserve(100)[:] = 7
                ok = True
            finally:
                os._exit(0 if ok else 1)
        listener.hand_over(descriptor, {2}, LIMIT_S)
        assert os.waitpid(child, 0)[1] == 0
    assert (SharedMemory(descriptor, num_bytes).reserve(100) == 7).all()
    os.close(descriptor)


def test_who_does_not_know_the_secret_or_says_nothing_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_handover, "_GREETING_S", 0.05)
    descriptor = memory_file(100)
    with Listener() as listener:
        thread = hand_over(listener, descriptor, {1})
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.connect(f"\0flodl_pipe-{listener.token[:32]}")
            wait_until_it_is_closed(silent)
        monkeypatch.setattr(shared_handover, "_GREETING_S", LIMIT_S)
        with pytest.raises(OSError, match="turned this one away"):
            receive(listener.token[:32] + "0" * 32, 1)
        with pytest.raises(OSError, match="turned this one away"):
            receive(listener.token, 9)  # not one of the ranks it waits for
        got = receive(listener.token, 1)
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert os.fstat(got).st_ino == os.fstat(descriptor).st_ino
    assert not os.get_inheritable(got)
    os.close(got)
    os.close(descriptor)


def receive(token: str, place: int) -> int:
    with Line(token, place) as line:
        return line.receive(LIMIT_S)


def wait_until_it_is_closed(line: socket.socket) -> None:
    """Wait until the other side has closed a line."""
    waiting = select.poll()
    waiting.register(line, select.POLLHUP)
    assert waiting.poll(1000 * LIMIT_S)


class Strangers:
    """Says of the other side of a line that another user has it, where one of the two sides asks, until told not to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, ask: str) -> None:
        self.real, self.main, self.ask = shared_handover._user, threading.get_ident(), ask
        monkeypatch.setattr(shared_handover, "_user", self.user)

    def user(self, line: socket.socket) -> int:
        asks = "who comes" if threading.get_ident() == self.main else "who gives"
        return self.real(line) + (asks == self.ask)


@pytest.mark.parametrize("side", ["who comes", "who gives"])
def test_another_user_is_turned_away(monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    strangers = Strangers(monkeypatch, ask="who gives" if side == "who comes" else "who comes")
    descriptor = memory_file(100)
    with Listener() as listener:
        thread = hand_over(listener, descriptor, {1})
        with pytest.raises(OSError, match="another user" if side == "who gives" else "turned this one away"):
            receive(listener.token, 1)
        strangers.ask = "nobody"
        os.close(receive(listener.token, 1))  # and who is none gets it
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    os.close(descriptor)


def test_who_is_turned_away_before_it_has_spoken_is_told_so_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is closed between the moment it is there and the first word: sending on it would be a broken pipe."""
    strangers = Strangers(monkeypatch, ask="who gives")
    own = shared_handover._require_own

    def late(line: socket.socket) -> None:
        own(line)
        wait_until_it_is_closed(line)

    descriptor = memory_file(100)
    with Listener() as listener:
        thread = hand_over(listener, descriptor, {1})
        with monkeypatch.context() as patch, pytest.raises(OSError, match="turned this one away") as caught:
            patch.setattr(shared_handover, "_require_own", late)
            receive(listener.token, 1)
        assert not isinstance(caught.value, BrokenPipeError)
        strangers.ask = "nobody"
        os.close(receive(listener.token, 1))
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    os.close(descriptor)


def test_ranks_that_do_not_come_are_waited_for_no_longer_than_told() -> None:
    descriptor = memory_file(100)
    with Listener() as listener, pytest.raises(OSError, match=r"2 ranks of this host did not come .* in 0\.05 s"):
        listener.hand_over(descriptor, {1, 2}, 0.05)
    with pytest.raises(OSError):
        receive(listener.token, 1)
    os.close(descriptor)


def test_a_token_is_another_one_every_time() -> None:
    with Listener() as one, Listener() as other:
        assert len({one.token[:32], other.token[:32], one.token[32:], other.token[32:]}) == 4
    assert np.unique([len(one.token), len(other.token)]).tolist() == [64]
