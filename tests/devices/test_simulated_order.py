"""Every missing wait is an error that names both operations; programs with all their waits run clean.

White box: what is remembered of host and device memory is counted and asked.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch

from flodl_pipe.devices.simulated import SimulatedDevice
from flodl_pipe.devices.simulated_memory import POISON
from flodl_pipe.devices.simulated_order import Access, Operation, OrderError, RangeMap
from flodl_pipe.errors import LoaderError
from tests.support.programs import environment

N = 4096


@pytest.fixture
def device():
    return SimulatedDevice(2**24)


@pytest.fixture
def transfer(device):
    return device.stream("transfer")


def slab_of(device, value, size=N):
    slab = device.host_slab(size)
    device.host_writes(slab)
    slab[:] = value
    return slab


def uploaded(device, stream, value, size=N):
    """Return a slab and device memory that a copy of it is on its way to."""
    slab, tensor = slab_of(device, value, size), device.allocate(size, stream)
    device.copy_in(stream, slab, tensor)
    return slab, tensor


def assert_names(error, *words):
    text = str(error.value)
    for word in (*words, __file__):
        assert word in text, text


def test_the_host_writes_a_slab_that_is_still_copied(device, transfer):
    slab, _ = uploaded(device, transfer, 1)
    with pytest.raises(OrderError) as error:
        device.host_writes(slab)
    assert_names(error, "write of 4,096 bytes by the host", "copy_in of 4,096 bytes on stream transfer", "synchronize")
    assert device.faults == [error.value]


def test_the_host_may_write_a_slab_after_synchronising(device, transfer):
    slab, _ = uploaded(device, transfer, 1)
    device.synchronize(device.record(transfer))
    device.host_writes(slab)
    assert device.faults == []


def test_an_event_before_the_copy_does_not_help(device, transfer):
    event = device.record(transfer)
    slab, _ = uploaded(device, transfer, 1)
    device.synchronize(event)
    with pytest.raises(OrderError):
        device.host_writes(slab)


def test_asking_an_event_is_not_waiting(device, transfer):
    slab, tensor = uploaded(device, transfer, 1)
    event = device.record(transfer)
    assert not event.is_done()
    device.clock.spend(1.0)
    assert event.is_done()
    assert tensor.eq(1).all()
    with pytest.raises(OrderError):
        device.host_writes(slab)


def test_who_only_asks_gets_a_yes_some_time(device, transfer):
    uploaded(device, transfer, 1)
    event = device.record(transfer)
    assert any(event.is_done() for _ in range(1000))


def test_part_of_a_slab_may_be_written_while_another_part_is_copied(device, transfer):
    slab, tensor = slab_of(device, 1), device.allocate(N, transfer)
    device.copy_in(transfer, slab[:100], tensor[:100])
    device.host_writes(slab[100:])
    with pytest.raises(OrderError, match="1 bytes of host memory"):
        device.host_writes(slab[99:])


def test_the_host_may_read_what_is_copied_in(device, transfer):
    slab, _ = uploaded(device, transfer, 1)
    device.host_reads(slab)


def test_the_consumer_uses_a_tensor_without_waiting(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    assert tensor.eq(POISON).all()
    with pytest.raises(OrderError) as error:
        device.use(device.consumer(), [tensor])
    assert_names(error, "use of 4,096 bytes on stream consumer, declared at", "copy_in of 4,096 bytes", "device.wait(")


def test_the_consumer_finds_the_bytes_after_waiting(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    device.wait(device.consumer(), device.record(transfer))
    device.use(device.consumer(), [tensor])
    assert tensor.eq(7).all()


def test_a_stream_reads_what_another_one_writes_without_waiting(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    other = device.stream("other")
    out = device.allocate(N, other)
    with pytest.raises(OrderError) as error:
        device.enqueue(other, lambda: out.copy_(tensor), reads=[tensor], writes=[out])
    assert_names(error, "work that reads 4,096 and writes 4,096 bytes on stream other", "on stream transfer", "wait")


def test_a_stream_writes_what_another_one_reads_without_waiting(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    other = device.stream("other")
    out = device.allocate(N, other)
    device.wait(other, device.record(transfer))
    device.enqueue(other, lambda: out.copy_(tensor), reads=[tensor], writes=[out])
    with pytest.raises(OrderError):
        device.copy_in(transfer, slab_of(device, 8), tensor)
    assert len(device.faults) == 1
    # Told once; and the right wait helps from the start.
    device.wait(transfer, device.record(other))
    device.copy_in(transfer, slab_of(device, 8), tensor)
    device.synchronize(device.record(other))
    assert out.eq(7).all()
    assert not tensor.eq(8).any()
    device.synchronize(device.record(transfer))
    assert tensor.eq(8).all()


def test_two_streams_may_read_at_once(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    other = device.stream("other")
    device.wait(other, device.record(transfer))
    for stream in (transfer, other):
        out = device.allocate(N, stream)
        device.enqueue(stream, lambda out=out: out.copy_(tensor), reads=[tensor], writes=[out])


def test_a_writer_waits_for_every_reader(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    ready, read = device.record(transfer), []
    for name in ("first", "second"):
        stream = device.stream(name)
        device.wait(stream, ready)
        device.copy_out(stream, tensor, np.zeros(N, np.uint8))
        read.append(device.record(stream))
    device.wait(transfer, read[1])
    with pytest.raises(OrderError, match="copy_out of 4,096 bytes on stream first"):
        device.copy_in(transfer, slab_of(device, 8), tensor)


def test_waits_are_transitive(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    middle, last = device.stream("middle"), device.stream("last")
    device.wait(middle, device.record(transfer))
    device.wait(last, device.record(middle))
    host = np.zeros(N, np.uint8)
    device.copy_out(last, tensor, host)
    assert not host.any()
    device.synchronize(device.record(last))
    device.host_reads(host)
    assert (host == 7).all()


def test_what_the_host_knows_every_stream_knows(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    device.synchronize(device.record(transfer))
    device.use(device.consumer(), [tensor])
    assert tensor.eq(7).all()


def test_the_host_reads_a_copy_that_is_still_on_its_way(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    host = np.zeros(N, np.uint8)
    device.copy_out(transfer, tensor, host)
    with pytest.raises(OrderError) as error:
        device.host_reads(host)
    assert_names(error, "read of 4,096 bytes by the host", "copy_out of 4,096 bytes on stream transfer")


@pytest.mark.parametrize("is_kept", [False, True])
def test_memory_goes_to_another_stream_while_the_consumer_may_work_on_it(device, transfer, is_kept):
    _, tensor = uploaded(device, transfer, 7)
    address = tensor.data_ptr()
    device.wait(device.consumer(), device.record(transfer))
    device.use(device.consumer(), [tensor])
    if is_kept:
        device.keep_for(device.consumer(), [tensor])
    del tensor
    again = device.allocate(N, transfer)
    assert again.data_ptr() == address
    if is_kept:
        device.copy_in(transfer, slab_of(device, 8), again)
        assert device.faults == []
        return
    with pytest.raises(OrderError) as error:
        device.copy_in(transfer, slab_of(device, 8), again)
    assert_names(error, "use of 4,096 bytes on stream consumer", "copy_in of 4,096", "device.keep_for(consumer, ")


def test_waiting_for_the_beginning_of_a_use_is_not_waiting_for_its_end(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    address = tensor.data_ptr()
    device.wait(device.consumer(), device.record(transfer))
    device.use(device.consumer(), [tensor[:10]])
    device.wait(transfer, device.record(device.consumer()))
    del tensor
    again = device.allocate(N, transfer)
    assert again.data_ptr() == address
    device.copy_in(transfer, slab_of(device, 8, N - 10), again[10:])
    with pytest.raises(OrderError, match=r"(?s)use of 10 bytes on stream consumer.*keep_for"):
        device.copy_in(transfer, slab_of(device, 8), again)


def test_memory_is_kept_for_a_stream_whose_work_is_put_off(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    other, host = device.stream("other"), np.zeros(N, np.uint8)
    device.wait(other, device.record(transfer))
    device.copy_out(other, tensor, host)
    device.keep_for(other, [tensor])
    address = tensor.data_ptr()
    del tensor
    fresh = device.allocate(N, transfer)
    assert fresh.data_ptr() != address, "its event is not done"
    device.synchronize(device.record(other))
    again = device.allocate(N, transfer)
    assert again.data_ptr() == address
    device.copy_in(transfer, slab_of(device, 9), again)
    device.host_reads(host)
    assert (host == 7).all()


def test_waiting_for_the_consumer_by_hand_does_as_well_as_keeping(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    other, host = device.stream("other"), np.zeros(N, np.uint8)
    device.wait(other, device.record(transfer))
    device.copy_out(other, tensor, host)
    read = device.record(other)
    del tensor
    again = device.allocate(N, transfer)
    device.wait(transfer, read)
    device.copy_in(transfer, slab_of(device, 9), again)
    device.synchronize(device.record(transfer))
    device.host_reads(host)
    assert (host == 7).all()
    assert again.eq(9).all()


def test_memory_is_for_the_stream_that_it_was_allocated_for(device, transfer):
    tensor, other = device.allocate(N, transfer), device.stream("other")
    with pytest.raises(OrderError, match="allocate of 4,096 bytes on stream transfer"):
        device.copy_in(other, slab_of(device, 1), tensor)


def test_what_work_makes_is_there_when_its_stream_is(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    doubled = device.compute(transfer, lambda: tensor * 2, reads=[tensor])
    assert doubled.eq(POISON).all()
    with pytest.raises(OrderError, match="work that makes 4,096 bytes on stream transfer"):
        device.use(device.consumer(), [doubled])
    device.wait(device.consumer(), device.record(transfer))
    device.use(device.consumer(), [doubled])
    assert doubled.eq(14).all()


def test_rows_of_a_slab_are_told_apart(device, transfer):
    slab = device.allocate(64 * 100, transfer).view(100, 64)
    other = device.stream("other")
    device.wait(other, device.record(transfer))
    device.enqueue(transfer, lambda: slab[:, :32].fill_(1), reads=[], writes=[slab[:, :32]])
    device.enqueue(other, lambda: slab[:, 32:].fill_(2), reads=[], writes=[slab[:, 32:]])
    with pytest.raises(OrderError, match="32 bytes of device block"):
        device.enqueue(other, lambda: None, reads=[slab[50]], writes=[])


def test_rows_of_host_memory_are_told_apart(device, transfer):
    slab, tensor = slab_of(device, 1), device.allocate(N, transfer)
    rows = slab.reshape(64, 64)
    device.copy_in(transfer, slab[64 * 7 + 32 : 64 * 8], tensor[:32])
    device.host_writes(rows[:, :32])
    device.host_writes(rows[62::-2, ::-3])  # even ones, from the end
    device.host_writes(rows[:0])
    with pytest.raises(OrderError):
        device.host_writes(rows[5:9, 30:40])


def test_host_memory_at_the_same_place_is_other_memory(device, transfer):
    memory = np.zeros(N + 64, np.uint8)
    _, tensor = uploaded(device, transfer, 1)
    target = np.ndarray((N,), np.uint8, bytearray(N))
    device.copy_out(transfer, tensor, target)
    device.wait(device.consumer(), device.record(transfer))
    # The copy was made, the host does not know of it, and the array dies: whoever gets the memory next is clean.
    address = target.ctypes.data
    del target
    ranges = device._core._host_ranges
    assert ranges.conflict(address, address + N, {}, is_write=True) is None
    device.host_writes(memory)


def test_a_host_tensor_is_refused_as_device_memory(device, transfer):
    with pytest.raises(LoaderError, match="is host memory, not memory of simulated"):
        device.enqueue(transfer, lambda: None, reads=[torch.zeros(3)], writes=[])


def test_work_on_what_was_not_declared_is_refused(device, transfer):
    declared, other = device.allocate(N, transfer), device.allocate(N, transfer)

    def reads():
        declared.copy_(other[:N])

    def writes():
        torch.add(declared, 1, out=other[:N])

    def writes_what_it_reads():
        declared.view(2, -1)[0].add_(1)

    for work, message, declaration in (
        (reads, "work reads .* by aten.slice.* not declared.*reads=", {"reads": [], "writes": [declared]}),
        (writes, "work reads .* was not declared", {"reads": [], "writes": [declared]}),
        (writes, r"work writes \(4096,\) of device block", {"reads": [declared, other], "writes": []}),
        (writes_what_it_reads, "work writes .* was not declared.*writes=", {"reads": [declared], "writes": []}),
    ):
        device.enqueue(transfer, work, **declaration)
        with pytest.raises(LoaderError, match=message):
            device.synchronize(device.record(transfer))
    with pytest.raises(LoaderError, match="work reads"):
        device.compute(transfer, lambda: torch.cat([declared, other]), reads=[declared])


@pytest.mark.full
def test_watching_work_does_not_import_torchs_compiler():
    program = (
        "import sys, torch\n"
        "from flodl_pipe.devices.simulated import SimulatedDevice\n"
        "device = SimulatedDevice(2**20)\n"
        "before = set(sys.modules)\n"
        "tensor = device.allocate(8, device.consumer())\n"
        "device.compute(device.consumer(), lambda: tensor + 1, reads=[tensor])\n"
        "device.enqueue(device.consumer(), lambda: tensor.add_(1), reads=[], writes=[tensor])\n"
        "assert len(set(sys.modules) - before) < 10, set(sys.modules) - before\n"
    )
    # A Python of its own: what it imports is the question.
    subprocess.run([sys.executable, "-c", program], env=environment(), check=True, timeout=120)


def test_results_may_be_made_in_place_and_count_as_written(device, transfer):
    _, tensor = uploaded(device, transfer, 7)
    same = device.compute(transfer, lambda: tensor.add_(1), reads=[tensor])
    other = device.stream("other")
    with pytest.raises(OrderError, match="reads 4,096 bytes and writes there on stream transfer"):
        device.copy_out(other, same, np.zeros(N, np.uint8))
    assert same.data_ptr() == tensor.data_ptr()
    assert tensor.eq(8).all()


def test_what_is_remembered_stays_bounded(device, transfer):
    rows, num_rows, other = 100, 64, device.stream("other")
    pool = device.allocate(rows * num_rows, transfer).view(rows, num_rows)
    slab = slab_of(device, 1, num_rows)
    device.wait(other, device.record(transfer))
    random = np.random.default_rng(0)
    for step in range(6_000):
        row = int(random.integers(rows))
        device.copy_in(transfer, slab, pool[row])
        if step % 50 == 0:
            device.wait(other, device.record(transfer))
            device.enqueue(other, lambda: None, reads=[pool], writes=[])
            device.wait(transfer, device.record(other))
        if step % 1000 == 0:
            device.synchronize(device.record(other))
    assert device.faults == []
    assert len(device._core.block(pool).ranges) <= 2 * rows
    assert len(device._core._host_ranges) <= 64
    assert len(transfer.pending) < 1100


def test_a_map_tells_ranges_apart_and_forgets_what_the_host_knows():
    host = {}
    ranges = RangeMap(host)
    operation = Operation("copy", "a", "here:1")
    ranges.note(0, 10, Access(operation, 2, 1, 0), is_write=True)
    ranges.note(5, 20, Access(operation, 2, 2, 0), is_write=False)
    assert ranges.conflict(10, 20, {}, is_write=False) is None
    begin, end, access = ranges.conflict(8, 30, {2: 1}, is_write=True)
    assert (begin, end, access.tick) == (8, 10, 2)
    assert ranges.conflict(8, 30, {2: 1}, is_write=True) is None
    assert not ranges.is_ordered({})
    assert ranges.is_ordered({2: 1})
    ranges.note(0, 1, Access(operation, 3, 4, 0), is_write=False)
    assert not ranges.is_ordered({2: 1})
    host.update({2: 1, 3: 4})
    assert ranges.is_ordered({})
