"""Random programs: the check agrees with a search through the graph of what happens before what, wait by wait."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.devices.simulated import SimulatedDevice
from flodl_pipe.devices.simulated_order import OrderError

SIZE = 8
HOST = "host"
STREAMS = ("a", "b", "consumer")
DEVICE_BUFFERS, HOST_BUFFERS = ("d0", "d1", "d2"), ("h0", "h1")


@dataclass
class Step:
    """One operation: ``target[span]`` becomes a function of ``source[span]``; or a wait for another step."""

    actor: str
    kind: str
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    writes: list[tuple[str, int, int]] = field(default_factory=list)
    value: int = 0
    after: "Step | None" = None
    earlier: set[int] = field(default_factory=set)
    """Numbers of the steps that happen before this one."""


def overlap(one, other):
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def conflict(one, other):
    return any(overlap(a, b) for a in one.writes for b in other.reads + other.writes) or any(
        overlap(a, b) for a in one.reads for b in other.writes
    )


@st.composite
def spans(draw):
    begin = draw(st.integers(0, SIZE - 1))
    return begin, draw(st.integers(begin + 1, SIZE))


@st.composite
def operations(draw):
    begin, end = draw(spans())
    kind = draw(st.sampled_from(["copy_in", "copy_out", "work", "write", "read", "use"]))
    device, host = draw(st.sampled_from(DEVICE_BUFFERS)), draw(st.sampled_from(HOST_BUFFERS))
    inside, outside = (device, begin, end), (host, begin, end)
    stream = draw(st.sampled_from(STREAMS))
    match kind:
        case "copy_in":
            return Step(stream, kind, [outside], [inside])
        case "copy_out":
            return Step(stream, kind, [inside], [outside])
        case "work":
            source = draw(st.sampled_from(DEVICE_BUFFERS)), begin, end
            return Step(stream, kind, [source], [inside])
        case "use":
            return Step("consumer", kind, [], [inside])
        case "write":
            return Step(HOST, kind, [], [outside], draw(st.integers(0, 255)))
        case _:
            return Step(HOST, kind, [outside], [])


@st.composite
def programs(draw):
    """Return operations with a wait before each for every conflicting one of another actor, some of them left out."""
    steps = []
    left_out = draw(st.sampled_from([0.0, 0.0, 0.1, 0.5]))
    random = draw(st.randoms(use_true_random=False))
    for operation in draw(st.lists(operations(), min_size=2, max_size=16)):
        others = [step for step in steps if step.kind != "wait" and step.actor not in (HOST, operation.actor)]
        needed = [step for step in others if conflict(step, operation)]
        waits = [Step(operation.actor, "wait", after=step) for step in needed if random.random() >= left_out]
        steps += [*waits, operation]
    return steps


def first_unordered(steps):
    """Return the number of the first operation that an earlier one is in conflict and not ordered with."""
    for number, step in enumerate(steps):
        before = [
            earlier
            for earlier in range(number)
            if steps[earlier].actor in (step.actor, HOST) or steps[earlier] is step.after
        ]
        step.earlier = set(before).union(*(steps[earlier].earlier for earlier in before))
        if any(conflict(steps[earlier], step) and earlier not in step.earlier for earlier in range(number)):
            return number
    return None


class Machine:
    """Does the steps on a device, and one after the other on plain arrays."""

    def __init__(self):
        self.device = SimulatedDevice(2**20)
        self.streams = {"a": self.device.stream("a"), "b": self.device.stream("b"), "consumer": self.device.consumer()}
        self.plain = {name: np.zeros(SIZE, np.uint8) for name in DEVICE_BUFFERS + HOST_BUFFERS}
        self.tensors = {name: self.device.allocate(SIZE, self.streams["a"]) for name in DEVICE_BUFFERS}
        self.slabs = {name: self.device.host_slab(SIZE) for name in HOST_BUFFERS}
        for slab in self.slabs.values():
            slab[:] = 0
        for tensor in self.tensors.values():
            self.device.copy_in(self.streams["a"], self.slabs["h0"], tensor)
        self.device.synchronize(self.device.record(self.streams["a"]))
        self.events = {}

    def cut(self, place):
        name, begin, end = place
        return (self.slabs if name in self.slabs else self.tensors)[name][begin:end]

    def plain_cut(self, place):
        name, begin, end = place
        return self.plain[name][begin:end]

    def do(self, step):
        device, stream = self.device, self.streams.get(step.actor)
        match step.kind:
            case "wait":
                event = self.events[id(step.after)]
                if stream is None:
                    device.synchronize(event)
                else:
                    device.wait(stream, event)
            case "copy_in":
                device.copy_in(stream, self.cut(step.reads[0]), self.cut(step.writes[0]))
                self.plain_cut(step.writes[0])[:] = self.plain_cut(step.reads[0])
            case "copy_out":
                device.copy_out(stream, self.cut(step.reads[0]), self.cut(step.writes[0]))
                self.plain_cut(step.writes[0])[:] = self.plain_cut(step.reads[0])
            case "work":
                source, target = self.cut(step.reads[0]), self.cut(step.writes[0])
                device.enqueue(stream, lambda: torch.add(source, 3, out=target), reads=[source], writes=[target])
                self.plain_cut(step.writes[0])[:] = self.plain_cut(step.reads[0]) + np.uint8(3)
            case "use":
                device.use(stream, [self.cut(step.writes[0])])
                np.testing.assert_array_equal(self.cut(step.writes[0]).numpy(), self.plain_cut(step.writes[0]))
            case "write":
                device.host_writes(self.cut(step.writes[0]))
                self.cut(step.writes[0])[:] = step.value
                self.plain_cut(step.writes[0])[:] = step.value
            case "read":
                device.host_reads(self.cut(step.reads[0]))
                np.testing.assert_array_equal(self.cut(step.reads[0]), self.plain_cut(step.reads[0]))
        if stream is not None:
            self.events[id(step)] = device.record(stream)


@settings(max_examples=120, deadline=None)
@given(programs())
def test_the_check_finds_exactly_what_nothing_orders(steps):
    machine, expected = Machine(), first_unordered(steps)
    for number, step in enumerate(steps):
        if number == expected:
            with pytest.raises(OrderError):
                machine.do(step)
            return
        machine.do(step)
    assert machine.device.faults == []
    for stream in machine.streams.values():
        machine.device.synchronize(machine.device.record(stream))
    for name, tensor in machine.tensors.items():
        np.testing.assert_array_equal(tensor.numpy(), machine.plain[name])
    for name, slab in machine.slabs.items():
        np.testing.assert_array_equal(slab, machine.plain[name])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), total_blocks=st.sampled_from([8, 12, 1000]))
def test_blocks_go_round_between_streams_that_they_are_kept_for(seed, total_blocks):
    """Tensors are made on one stream, read on others, let go and made again, and nothing is ever mixed up."""
    random = np.random.default_rng(seed)
    device = SimulatedDevice(512 * total_blocks)
    made_on = device.stream("made on")
    readers = [device.stream("reader"), device.consumer(), made_on]
    slabs = [device.host_slab(512) for _ in range(4)]
    last = [device.record(made_on) for _ in slabs]
    reads = []
    for step in range(60):
        which = int(random.integers(len(slabs)))
        device.synchronize(last[which])
        device.host_writes(slabs[which])
        slabs[which][:] = step
        tensor = device.allocate(512, made_on)
        device.copy_in(made_on, slabs[which], tensor)
        last[which] = device.record(made_on)
        reader = readers[int(random.integers(len(readers)))]
        device.wait(reader, last[which])
        device.keep_for(reader, [tensor])
        out = np.zeros(512, np.uint8)
        device.copy_out(reader, tensor, out)
        reads.append((step, out, device.record(reader)))
        if reader is device.consumer():
            device.use(reader, [tensor])
        del tensor
        if random.random() < 0.1:
            reads = [read for read in reads if not check_read(device, *read)]
    for read in reads:
        check_read(device, *read)
    assert device.faults == []


def check_read(device, step, out, event):
    device.synchronize(event)
    device.host_reads(out)
    assert (out == step).all()
    return True
