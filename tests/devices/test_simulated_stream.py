"""Simulated streams: work is put off to the last moment, and takes virtual time.

White box: clocks of two threads are set within one.
"""

import threading

import numpy as np
import pytest

from flodl_pipe.devices.simulated import SimulatedDevice
from flodl_pipe.devices.simulated_memory import POISON

COPY_S = 1.0
"""A copy of 100 bytes; work on as many takes a tenth of it."""


@pytest.fixture
def device():
    return SimulatedDevice(2**20, copy_bytes_per_s=100, latency_s=0.0, gather_bytes_per_s=1000)


def upload(device, stream, size=100):
    tensor = device.allocate(size, stream)
    device.copy_in(stream, device.host_slab(size), tensor)
    return tensor


def test_a_copy_reads_its_source_as_late_as_it_may(device):
    stream = device.stream("a")
    slab, tensor = device.host_slab(100), device.allocate(100, stream)
    slab[:] = 1
    device.copy_in(stream, slab, tensor)
    slab[:] = 2  # nobody declared it
    device.synchronize(device.record(stream))
    assert tensor.eq(2).all()


def test_only_what_is_waited_for_is_done(device):
    one, two = device.stream("one"), device.stream("two")
    first, event = upload(device, one), device.record(one)
    second, other = upload(device, one), upload(device, two)
    slab = device.host_slab(100)
    slab[:] = 1
    device.copy_in(one, slab, first)
    device.synchronize(event)
    assert first.eq(POISON).all()
    assert len(one.pending) == 2
    assert len(two.pending) == 1
    assert (second.numel(), other.numel()) == (100, 100)


def test_long_chains_of_waits_are_no_deep_recursion(device):
    one, two = device.stream("one"), device.stream("two")
    tensor = upload(device, one)
    for _ in range(3000):
        device.wait(two, device.record(one))
        device.enqueue(two, lambda: None, reads=[tensor], writes=[tensor])
        device.wait(one, device.record(two))
        device.enqueue(one, lambda: tensor.add_(1), reads=[tensor], writes=[tensor])
    device.synchronize(device.record(two))
    assert tensor.eq((POISON + 2999) % 256).all()
    device.synchronize(device.record(one))
    assert tensor.eq((POISON + 3000) % 256).all()


def test_copies_take_time_on_their_stream_and_none_on_the_host(device):
    stream = device.stream("a")
    upload(device, stream)
    event = device.record(stream)
    assert device.clock.now() == 0
    device.synchronize(event)
    assert device.clock.now() == pytest.approx(COPY_S)


def test_work_begins_when_it_is_enqueued_or_later(device):
    stream = device.stream("a")
    device.clock.spend(5)
    upload(device, stream)
    device.synchronize(device.record(stream))
    assert device.clock.now() == pytest.approx(5 + COPY_S)


def test_copies_in_one_direction_share_an_engine(device):
    one, two = device.stream("one"), device.stream("two")
    upload(device, one)
    tensor = upload(device, two)
    device.synchronize(device.record(two))
    assert device.clock.now() == pytest.approx(2 * COPY_S)
    # The other direction has its own.
    device.copy_in(one, device.host_slab(100), device.allocate(100, one))
    device.copy_out(two, tensor, np.zeros(100, np.uint8))
    device.synchronize(device.record(two))
    device.synchronize(device.record(one))
    assert device.clock.now() == pytest.approx(3 * COPY_S)


def test_every_operation_takes_its_latency():
    device = SimulatedDevice(2**20, copy_bytes_per_s=1e30, latency_s=1.0, gather_bytes_per_s=1e30)
    stream = device.stream("a")
    tensor = upload(device, stream)
    device.enqueue(stream, lambda: None, reads=[tensor], writes=[tensor])
    device.synchronize(device.record(stream))
    assert device.clock.now() == pytest.approx(2)


def test_a_gather_takes_as_long_as_what_it_moves(device):
    stream = device.stream("a")
    pool, rows = device.allocate(10_000, stream), device.allocate(50, stream)
    device.enqueue(stream, lambda: rows.copy_(pool[:50]), reads=[pool], writes=[rows])
    device.enqueue(stream, lambda: pool[:50].copy_(rows), reads=[rows], writes=[pool])
    device.synchronize(device.record(stream))
    assert device.bytes_computed == 200
    assert device.clock.now() == pytest.approx(0.2)
    made = device.compute(stream, pool[:50].clone, reads=[pool])
    device.enqueue(stream, made.zero_, reads=[], writes=[made])
    assert device.bytes_computed == 350


def test_a_stream_that_waits_goes_on_when_the_other_is_done(device):
    one, two = device.stream("one"), device.stream("two")
    tensor = upload(device, one)
    device.wait(two, device.record(one))
    device.copy_out(two, tensor, np.zeros(100, np.uint8))
    device.synchronize(device.record(two))
    assert device.clock.now() == pytest.approx(2 * COPY_S)


def test_the_loops_time_is_the_consumers(device):
    stream = device.stream("a")
    upload(device, stream)
    device.wait(device.consumer(), device.record(stream))
    assert device.clock.now() == pytest.approx(COPY_S)
    device.clock.spend(3)
    event = device.record(device.consumer())
    other = []
    thread = threading.Thread(target=lambda: (device.synchronize(event), other.append(device.clock.now())))
    thread.start()
    thread.join()
    assert other == [pytest.approx(COPY_S + 3)]


def test_memory_that_the_loop_still_works_on_is_waited_for_only_when_there_is_no_other():
    device = SimulatedDevice(1024, copy_bytes_per_s=100, latency_s=0.0)
    stream = device.stream("a")
    tensor = upload(device, stream)
    address = tensor.data_ptr()
    held = [tensor]
    device.keep_for(device.consumer(), held)
    device.wait(device.consumer(), device.record(stream))
    device.clock.spend(10)
    del tensor
    held.clear()
    found = []

    def run():  # a thread whose time is still 0
        for _ in range(2):
            block = device.allocate(100, stream)
            device.copy_in(stream, device.host_slab(100), block)
            event = device.record(stream)
            device.synchronize(event)
            found.append((block.data_ptr() == address, device.clock.now()))
            held.append(block)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(False, pytest.approx(2 * COPY_S)), (True, pytest.approx(10 + 2 * COPY_S))]


def test_read_copy_and_step_overlap():
    """The pipeline that this is for: three stages of 5 ms each, and 200 steps take little more than 200 of them."""
    stage_s, steps, depth = 5e-3, 200, 3
    device = SimulatedDevice(10 * 512, copy_bytes_per_s=512 / stage_s, latency_s=0.0)
    stream, consumer = device.stream("transfer"), device.consumer()
    slabs, events = [device.host_slab(512) for _ in range(depth)], {}
    transfer_s = loop_s = 0.0
    for step in range(steps):
        # The reader and transfer thread's part of it, by a clock of its own.
        device._virtual._local.time_s = transfer_s
        if step >= depth:
            device.synchronize(events[step - depth])
        device.host_writes(slabs[step % depth])
        device.clock.spend(stage_s)
        rows = device.allocate(512, stream)
        device.copy_in(stream, slabs[step % depth], rows)
        device.keep_for(consumer, [rows])
        events[step] = device.record(stream)
        transfer_s = device.clock.now()
        # The loop's.
        device._virtual._local.time_s = loop_s
        device.wait(consumer, events[step])
        device.use(consumer, [rows])
        device.clock.spend(stage_s)
        del rows
        loop_s = device.clock.now()
    assert loop_s <= 1.05 * steps * stage_s
    assert device.faults == []


def test_the_timeline_tells_what_was_done_when(device):
    stream = device.stream("a")
    tensor = upload(device, stream)
    device.enqueue(stream, lambda: None, reads=[tensor], writes=[])
    assert device.timeline() == [("a", "copy_in", 0.0, COPY_S), ("a", "work", COPY_S, pytest.approx(1.1))]
    for _ in range(11_000):
        device.enqueue(device.consumer(), lambda: None, reads=[], writes=[])
    assert len(device.timeline()) == 10_000
