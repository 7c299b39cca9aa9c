"""The device sample pool: whatever it is asked for, in whatever state, rows are those of the source.

White box: the slabs that a pool has are looked at, to see that what it holds is counted, and declared to the device.
"""

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.devices.simulated import SimulatedDevice
from flodl_pipe.devices.simulated_order import OrderError
from flodl_pipe.staging.ranking import ByWeight, StorageOrder
from flodl_pipe.staging.sample_pool import SamplePool

N = 61
SPECS = [
    SampleSpec.of(tokens=("uint16", (9,))),
    SampleSpec.of(image=("uint8", (4, 4)), label=("int64", ())),
    SampleSpec.of(a=("uint8", ()), nothing=("float32", (0,)), b=("float64", (3,))),
    SampleSpec.of(nothing=("uint8", (0,))),
]


def content(spec):
    rng = np.random.default_rng(5)
    return {field.name: rng.integers(0, 256, (N, field.row_bytes), dtype=np.uint8) for field in spec}


class Rig:
    """A pool, and the transfer that a loader would do."""

    def __init__(self, spec, *, ranking=None, memory_bytes=1 << 24, slab_rows=None):
        self.device = SimulatedDevice(memory_bytes)
        self.stream = self.device.stream("transfer")
        self.spec, self.content = spec, content(spec)
        self.ranking = ranking or StorageOrder(N)
        self.pool = SamplePool(self.device, spec, self.ranking, stream=self.stream, slab_rows=slab_rows)

    def upload(self, array, stream=None):
        """Return an array on the device."""
        stream = stream or self.stream
        array = np.ascontiguousarray(array)
        if not array.size:
            return torch.empty(array.shape, dtype=torch.from_numpy(array).dtype)
        slot = self.device.host_slab(array.nbytes)
        slot[:] = array.reshape(-1).view(np.uint8)
        target = self.device.allocate(array.nbytes, stream)
        self.device.copy_in(stream, slot, target)
        return target.view(torch.from_numpy(array).dtype).view(array.shape)

    def rows(self, samples):
        return {name: self.upload(rows[samples]) for name, rows in self.content.items()}

    def batch(self, samples, *, admits=True, stream=None):
        """Do all of a batch, as a reader and a transfer thread would, and return its rows on the host.

        On another stream only what is wholly held: rows are uploaded on the pool's.
        """
        samples = np.asarray(samples, dtype=np.int64)
        plan = self.pool.plan(samples)
        missing = samples[plan.missing]
        admission = self.pool.admission(missing)
        uploaded = self.rows(missing)
        numbers = self.upload(np.concatenate([plan.index, admission.index]), stream)
        index, rest = numbers[: len(plan.index)], numbers[len(plan.index) :]
        found = self.pool.assemble(plan, index, uploaded, stream=stream)
        if admits:
            self.pool.admit(admission, rest, uploaded)
        return self.read(found, stream or self.stream)

    def fill(self, count):
        samples, _ = self.pool.missing(0, count)
        assert not self.pool.holds(samples).any()
        admission = self.pool.admission(samples)
        self.pool.admit(admission, self.upload(admission.index), self.rows(samples), ahead=True)

    def read(self, found, stream):
        out = {}
        for name, rows in found.items():
            assert rows.dtype == torch.uint8
            assert rows.is_contiguous()
            out[name] = np.empty(rows.shape, np.uint8)
            if rows.numel():
                self.device.copy_out(stream, rows.view(-1), out[name].reshape(-1))
        self.device.synchronize(self.device.record(stream))
        return out

    def require(self, samples, **options):
        found = self.batch(samples, **options)
        assert list(found) == list(self.spec.names)
        for name, rows in found.items():
            assert np.array_equal(rows, self.content[name][np.asarray(samples, dtype=np.int64)]), name

    def require_exact(self):
        slabs = [tensor for slab in self.pool._slabs for tensor in slab.tensors]
        assert sum(tensor.numel() for tensor in slabs) == self.pool.held_bytes
        assert self.device.allocated_bytes == sum(-(-tensor.numel() // 512) * 512 for tensor in slabs)


def weighted():
    return ByWeight(np.random.default_rng(2).permutation(N).astype(np.float64))


SAMPLES = st.lists(st.integers(0, N - 1), max_size=24)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), SAMPLES),
        st.tuples(st.just("consumer"), SAMPLES),
        st.tuples(st.just("shrink"), st.integers(0, N)),
        st.tuples(st.just("grow"), st.integers(0, N + 5)),
        st.tuples(st.just("grow at once"), st.integers(0, N + 5)),
        st.tuples(st.just("fill"), st.integers(1, 20)),
        st.tuples(st.just("refuse"), st.just(0)),
    ),
    max_size=10,
)


@settings(max_examples=50, deadline=None)
@given(spec=st.sampled_from(SPECS), by_weight=st.booleans(), slab_rows=st.sampled_from([None, 1, 7, 20]), steps=STEPS)
def test_rows_are_those_of_the_source_whatever_was_done_to_the_pool(spec, by_weight, slab_rows, steps):
    rig = Rig(spec, ranking=weighted() if by_weight else None, slab_rows=slab_rows)
    held = set()
    for what, value in steps:
        before = set(held)
        match what:
            case "batch":
                rig.require(value)
            case "consumer":
                all_held = len(value) > 0 and rig.pool.holds(np.array(value)).all()
                rig.require(value, stream=rig.device.consumer() if all_held else None)
            case "shrink":
                rig.pool.shrink(value)
            case "grow":
                assert rig.pool.grow(value)
            case "grow at once":
                rig.pool.grow(value, at_once=True)
            case "fill":
                rig.fill(value)
            case "refuse":
                rig.device.fail_next()
        everything = np.arange(N)
        held = set(everything[rig.pool.holds(everything)].tolist())
        assert all(rig.ranking.ranks(np.array([sample]))[0] < rig.pool.capacity_rows for sample in held)
        assert what == "shrink" or before <= held
        assert rig.pool.num_rows == len(held)
        assert rig.pool.is_complete == (len(held) == N)
        rig.device.fail_next(0)
    rig.require(np.random.default_rng(0).permutation(N))
    rig.require_exact()
    assert rig.device.faults == []
    rig.pool.close()
    rig.require_exact()
    assert rig.device.allocated_bytes == 0


@pytest.mark.parametrize("spec", SPECS[:3], ids=str)
@pytest.mark.parametrize("at_once", [True, False])
def test_what_was_uploaded_once_is_not_uploaded_again(spec, at_once):
    rig = Rig(spec)
    assert rig.pool.grow(N, at_once=at_once)
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(N)
        for first in range(0, N, 8):
            plan = rig.pool.plan(order[first : first + 8])
            assert len(plan.missing) == (0 if epoch else len(order[first : first + 8]))
            rig.require(order[first : first + 8])
    assert rig.pool.is_complete
    assert rig.pool.missing(0, 5)[0].tolist() == []
    count = rig.pool.count()
    assert (count.name, count.off, count.held_bytes) == ("sample pool", None, N * spec.row_bytes)
    assert count.hit_bytes == count.num_hits * spec.row_bytes
    assert count.filled_bytes == 0


def test_a_batch_out_of_one_piece_is_one_gather_a_field():
    rig = Rig(SPECS[1])
    rig.pool.grow(N, at_once=True)
    rig.require(np.arange(N))
    plan = rig.pool.plan(np.array([5, 60, 5, 0]))
    assert plan.index.tolist() == [5, 60, 5, 0]
    assert plan.is_ordered
    assert len(plan.missing) == 0
    assert len(plan.slabs) == 1


def test_rows_without_a_hit_are_the_upload_itself():
    rig = Rig(SPECS[0])
    uploaded = rig.rows(np.arange(4))
    found = rig.pool.assemble(rig.pool.plan(np.arange(4)), torch.empty(0, dtype=torch.int64), uploaded)
    assert found["tokens"] is uploaded["tokens"]


def test_a_pool_keeps_no_upload():
    rig = Rig(SPECS[0])
    rig.pool.grow(N)
    samples = np.array([9, 3, 40])
    admission = rig.pool.admission(samples)
    uploaded = rig.rows(samples)
    storage = weakref.ref(uploaded["tokens"])
    rig.pool.admit(admission, rig.upload(admission.index), uploaded)
    rig.device.synchronize(rig.device.record(rig.stream))
    del uploaded, admission
    assert storage() is None
    rig.require_exact()


def test_memory_comes_slab_by_slab_as_rows_come():
    rig = Rig(SPECS[0], slab_rows=10)
    rig.pool.grow(35)
    seen = []
    for _ in range(5):
        rig.require([34, 2, 60])
        seen.append(rig.pool.held_bytes // SPECS[0].row_bytes)
    assert seen == [10, 20, 30, 35, 35]
    assert rig.pool.holds(np.array([34, 2, 60])).tolist() == [True, True, False]


def test_a_device_without_memory_leaves_the_pool_as_it_is_and_says_so():
    rig = Rig(SPECS[1], slab_rows=10)
    rig.pool.grow(N)
    rig.require(np.arange(10))
    rig.device.fail_next(skip=1)  # the second of two fields
    admission = rig.pool.admission(np.array([15]))
    assert admission.num_rows == 0
    assert "memory" in str(rig.pool.refusal)
    rig.require_exact()
    rig.require([15, 3])
    assert rig.pool.num_rows == 10
    rig.pool.grow(N)  # asked for again
    rig.require([15, 3])
    assert rig.pool.refusal is None
    assert rig.pool.num_rows == 11


def test_taking_all_at_once_is_all_or_nothing():
    rig = Rig(SPECS[1], memory_bytes=2048)
    taken = rig.device.take(1024)
    assert not rig.pool.grow(N, at_once=True)
    assert (rig.pool.capacity_rows, rig.pool.held_bytes) == (0, 0)
    assert rig.pool.refusal is not None
    del taken
    assert rig.pool.grow(N, at_once=True)
    assert rig.pool.refusal is None
    assert rig.pool.held_bytes == N * SPECS[1].row_bytes


def test_a_plan_outlives_the_slabs_it_was_made_of():
    rig = Rig(SPECS[0], slab_rows=10)
    rig.pool.grow(N)
    for _ in range(7):
        rig.require(np.arange(N))
    samples = np.array([55, 7, 12])
    plan = rig.pool.plan(samples)
    assert rig.pool.shrink(10) == (N - 10) * SPECS[0].row_bytes
    found = rig.pool.assemble(plan, rig.upload(plan.index), {})
    assert np.array_equal(rig.read(found, rig.stream)["tokens"], rig.content["tokens"][samples])
    del plan, found
    rig.require_exact()


def test_rows_chosen_before_the_pool_shrank_are_not_held():
    rig = Rig(SPECS[0], slab_rows=10)
    rig.pool.grow(N)
    samples = np.array([3, 8])
    admission = rig.pool.admission(samples)
    rig.pool.shrink(5)
    rig.pool.admit(admission, rig.upload(admission.index), rig.rows(samples))
    assert rig.pool.holds(samples).tolist() == [True, False]
    admission = rig.pool.admission(np.array([4]))
    rig.pool.shrink(0)
    rig.pool.grow(N)
    rig.pool.admission(np.array([4]))  # other memory for the same ranks
    rig.pool.admit(admission, rig.upload(admission.index), rig.rows(np.array([4])))
    assert rig.pool.num_rows == 0


def test_another_stream_is_ordered_with_what_is_admitted_later():
    rig = Rig(SPECS[0], slab_rows=10)
    consumer = rig.device.stream("loop")
    rig.pool.grow(10)
    rig.require(np.arange(10))
    index = rig.upload(np.array([4, 5]), consumer)
    plan = rig.pool.plan(np.array([4, 5]))
    found = rig.pool.assemble(plan, index, {}, stream=consumer)
    rig.pool.shrink(6)
    rig.pool.grow(10)
    rig.require([8, 9])  # written to the slab that the other stream has read
    assert np.array_equal(rig.read(found, consumer)["tokens"], rig.content["tokens"][[4, 5]])
    assert rig.device.faults == []


def test_memory_read_on_another_stream_is_not_given_out_before_that_is_done():
    rig = Rig(SPECS[0])
    loop = rig.device.stream("loop")
    rig.pool.grow(N, at_once=True)
    rig.require(np.arange(N))
    index = rig.upload(np.arange(N)[::-1], loop)
    plan = rig.pool.plan(np.arange(N)[::-1])
    found = rig.pool.assemble(plan, index, {}, stream=loop)
    del plan
    rig.pool.shrink(0)
    rig.pool.grow(N, at_once=True)
    rig.require(np.arange(N))  # the memory is written again
    assert np.array_equal(rig.read(found, loop)["tokens"], rig.content["tokens"][::-1])
    assert rig.device.faults == []


def test_a_pool_that_was_switched_off_holds_nothing_and_takes_nothing():
    rig = Rig(SPECS[0])
    rig.pool.grow(N)
    rig.require([1, 2])
    rig.pool.switch_off("the device has no memory")
    assert not rig.pool.grow(N)
    rig.require([1, 2])
    assert rig.pool.num_rows == 0
    assert rig.pool.count().off == "the device has no memory"
    rig.require_exact()


def test_rows_to_fill_it_with_come_in_the_order_of_ranks():
    rig = Rig(SPECS[0], ranking=weighted())
    rig.pool.grow(30)
    rig.require(rig.ranking.samples(2, 5))
    seen, rank = [], 0
    while rank < rig.pool.capacity_rows:
        samples, rank = rig.pool.missing(rank, 4)
        seen += rig.ranking.ranks(samples).tolist()
    assert seen == [0, 1, *range(5, 30)]
    samples, _ = rig.pool.missing(0, N)
    admission = rig.pool.admission(samples)
    rig.pool.admit(admission, rig.upload(admission.index), rig.rows(samples), ahead=True)
    assert rig.pool.num_rows == 30
    assert rig.pool.count().filled_bytes == 27 * SPECS[0].row_bytes


def test_runs_are_copied_without_numbers():
    rig = Rig(SPECS[0], slab_rows=20)
    rig.pool.grow(N)
    for first in (0, 20, 40, 60):
        samples, _ = rig.pool.missing(first, 15)
        admission = rig.pool.admission(samples)
        assert admission.run == 0
        assert len(admission.index) == 0
        rig.pool.admit(admission, torch.empty(0, dtype=torch.int64), rig.rows(samples))
    assert rig.pool.num_rows > 40
    rig.require(np.random.default_rng(1).permutation(N), admits=False)


def test_another_stream_waits_for_what_was_just_admitted():
    rig = Rig(SPECS[0])
    loop = rig.device.stream("loop")
    rig.pool.grow(N)
    samples = np.array([7, 2, 50, 2])
    admission = rig.pool.admission(samples)
    rig.pool.admit(admission, rig.upload(admission.index), rig.rows(samples))
    plan = rig.pool.plan(samples)
    found = rig.pool.assemble(plan, rig.upload(plan.index, loop), {}, stream=loop)
    assert np.array_equal(rig.read(found, loop)["tokens"], rig.content["tokens"][samples])


@pytest.mark.parametrize("samples", [[7, 2, 50, 2], [3, 4, 5]], ids=["scattered", "run"])
def test_what_is_written_is_declared(samples):
    rig = Rig(SPECS[0])
    rig.pool.grow(N)
    samples = np.array(samples)
    admission = rig.pool.admission(samples)
    rig.pool.admit(admission, rig.upload(admission.index), rig.rows(samples))
    kept = rig.pool._slabs[0].fields["tokens"]
    with pytest.raises(OrderError, match="is not ordered after work"):
        rig.device.enqueue(rig.device.stream("astray"), lambda: None, reads=[kept], writes=[])


def test_only_rows_that_are_wanted_are_taken_in_and_once():
    rig = Rig(SPECS[1])
    rig.pool.grow(40)
    rig.require([5])
    samples = [60, 5, 12, 39, 12, 40, 0]
    assert rig.pool.admission(np.array(samples)).num_rows == 3
    rig.require(samples)
    rig.require([12, 5, 0, 39])
    assert rig.pool.num_rows == 4
