"""A user's batch sampler: its lists are the steps, shared out exactly, on any number of ranks."""

import itertools
import pickle
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from flodl_pipe.errors import ConfigError, LoaderError, ResumeError
from flodl_pipe.sampling.batch_sampler import BatchSamplerOrder, BatchSteps

DATA = range(23)


def random_batches(drop_last=False, batch_size=4, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return BatchSampler(RandomSampler(DATA, generator=generator), batch_size, drop_last)


def world(order, ranks, **options):
    return [BatchSteps(order, rank, ranks, **options) for rank in range(ranks)]


def batches(order, epoch=0):
    """Return the batches of an epoch as one rank alone gets them."""
    steps, positions = BatchSteps(order).of_epoch(epoch), order.epoch(epoch)
    parts = [steps.step(index) for index in range(steps.num_steps())]
    return [positions.at(part.start, part.stop).tolist() for part in parts]


class Bucketed(Sampler):
    """Sizes change between epochs, their number, sum and maximum do not."""

    def __init__(self, sizes=(1, 5, 3, 2, 5)):
        self.sizes = list(sizes)
        self.rng = random.Random(3)

    def __iter__(self):
        sizes = self.rng.sample(self.sizes, len(self.sizes))
        start = 0
        for size in sizes:
            yield list(range(start, start + size))
            start += size


class ByEpoch:
    def __init__(self, *epochs):
        self.epochs, self.epoch = epochs, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(self.epochs[min(self.epoch, len(self.epochs) - 1)])


class Endless:
    def __iter__(self):
        return itertools.repeat(range(23))


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_first_epoch_is_torchs_and_later_ones_differ(drop_last):
    order = BatchSamplerOrder(random_batches(drop_last), 23, seed=1)
    assert batches(order) == list(random_batches(drop_last))
    assert order.num_batches == len(random_batches(drop_last))
    assert order.num_picks == (20 if drop_last else 23)
    assert order.largest_batch == 4
    assert order.num_repeats is None
    epochs = [batches(order, epoch) for epoch in range(4)]
    assert len({str(epoch) for epoch in epochs}) == 4
    again = BatchSamplerOrder(random_batches(drop_last), 23, seed=1)
    assert [batches(again, epoch) for epoch in (3, 0)] == [epochs[3], epochs[0]]
    assert again.tag == order.tag


def test_the_epoch_reaches_the_sampler_inside():
    order = BatchSamplerOrder(BatchSampler(DistributedSampler(DATA, 1, 0, seed=3), 4, drop_last=False), 23, seed=1)
    inner = DistributedSampler(DATA, 1, 0, seed=3)
    inner.set_epoch(2)
    assert batches(order, 2) == list(BatchSampler(inner, 4, drop_last=False))


def test_batches_may_be_lists_tuples_ranges_arrays_and_tensors():
    given_as = [[3, 1], (0,), range(4, 6), np.array([7, 8], dtype=np.uint16), torch.tensor([9]), list(torch.arange(2))]
    order = BatchSamplerOrder(given_as, 23, seed=1)
    assert batches(order) == [[3, 1], [0], [4, 5], [7, 8], [9], [0, 1]]
    rows = BatchSamplerOrder(np.arange(6).reshape(3, 2), 23, seed=1)
    assert batches(rows) == [[0, 1], [2, 3], [4, 5]]


def test_the_same_rows_in_other_batches_are_another_order():
    one, other = (BatchSamplerOrder(lists, 23, seed=1).tag for lists in ([[1, 2], [3]], [[1], [2, 3]]))
    assert one != other


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    ranks=st.integers(1, 6),
    unit=st.sampled_from([1, 2]),
    data=st.data(),
)
def test_ranks_share_every_batch_in_equal_numbers_of_steps(sizes, ranks, unit, data):
    if max(sizes) < ranks * unit:
        return
    ratios = data.draw(st.none() | st.lists(st.integers(1, 9), min_size=ranks, max_size=ranks))
    ends = np.cumsum(sizes)
    lists = [list(range(end - size, end)) for end, size in zip(ends.tolist(), sizes, strict=True)]
    order = BatchSamplerOrder(lists, sum(sizes), seed=1)
    parts = world(order, ranks, ratios=ratios, unit=unit)
    first = data.draw(st.integers(0, len(sizes)))
    position = [0, *ends.tolist()][first]
    assert {part.num_steps(position) for part in parts} == {len(sizes) - first}
    for index in range(len(sizes) - first):
        steps = [part.step(index, position) for part in parts]
        assert {step.next_position for step in steps} == {int(ends[first + index])}
        valid = [row for step in steps for row in range(step.start, step.start + step.num_valid)]
        assert valid == lists[first + index]
        for part, step in zip(parts, steps, strict=True):
            assert 1 <= step.num_rows <= part.max_rows
            assert step.num_valid in (0, step.num_rows)
            assert step.weight == pytest.approx(step.num_valid * ranks / sizes[first + index])
        assert sum(step.weight for step in steps) == pytest.approx(ranks)
        if sizes[first + index] >= ranks * unit:
            assert all(step.num_valid for step in steps)
    assert parts[0].is_even == (len(set(sizes)) == 1)
    if parts[0].is_even:
        assert {part.step(index).num_rows for part in parts[:1] for index in range(len(sizes))} == {parts[0].max_rows}


def test_a_rank_without_rows_in_a_small_batch_takes_one_of_weight_zero():
    order = BatchSamplerOrder([[0, 1, 2], [3], [4, 5]], 6, seed=1)
    steps = [part.step(1) for part in world(order, 3)]
    assert [(step.num_rows, step.num_valid, step.weight) for step in steps] == [(1, 1, 3.0), (1, 0, 0.0), (1, 0, 0.0)]
    assert {step.start for step in steps} == {3}


def test_unequal_shares_are_of_each_batch():
    order = BatchSamplerOrder([list(range(9)), list(range(3))], 9, seed=1)
    parts = world(order, 2, ratios=(2, Fraction(1)))
    assert [[part.step(index).num_rows for part in parts] for index in (0, 1)] == [[6, 3], [2, 1]]
    assert [part.of_rank(1).step(0).num_rows for part in parts] == [3, 3]


def test_sizes_may_change_between_epochs():
    order = BatchSamplerOrder(Bucketed(), 16, seed=1)
    found = {epoch: order.sizes(epoch).tolist() for epoch in range(6)}
    assert len({tuple(sizes) for sizes in found.values()}) > 1
    assert {tuple(sorted(sizes)) for sizes in found.values()} == {(1, 2, 3, 5, 5)}
    steps = BatchSteps(order, 1, 2)
    for epoch, sizes in found.items():
        own = steps.of_epoch(epoch)
        assert own.num_steps() == 5
        assert [own.step(index).next_position for index in range(5)] == np.cumsum(sizes).tolist()
        assert own.of_epoch(0).step(0) == steps.step(0)
        assert not own.is_even


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ([[0, 1], [2]], r"3 indices and epoch 0 has 4, but steps, memory"),
        ([[0, 1], [2], [3]], r"3 batches and epoch 0 has 2"),
        ([[0, 1, 2], [3]], r"3 rows in its largest batch and epoch 0 has 2"),
    ],
)
def test_epochs_have_the_same_numbers(other, message):
    first = [[0, 1], [2, 3]]
    with pytest.raises(ConfigError, match=rf"epoch 1 of the sampler has .*{message}"):
        BatchSamplerOrder(ByEpoch(first, other), 4, seed=1)
    order = BatchSamplerOrder(ByEpoch(first, first, other), 4, seed=1)
    with pytest.raises(
        LoaderError, match=rf"sampling.batch_sampler in epoch 2: epoch 2 of the sampler has .*{message}"
    ):
        BatchSteps(order).of_epoch(2)


def test_a_position_within_a_batch_is_refused():
    steps = BatchSteps(BatchSamplerOrder([[0, 1, 2], [3], [4, 5]], 6, seed=1))
    assert [steps.num_steps(position) for position in (0, 3, 4, 6)] == [3, 2, 1, 0]
    with pytest.raises(
        ResumeError, match=r"no batch of epoch 0 begins at position 5: one goes from 4 to 5; .*position 4"
    ):
        steps.num_steps(5)
    with pytest.raises(ResumeError, match=r"no batch of epoch 0 begins at position 1"):
        steps.step(0, 1)
    for position in (-1, 7):
        with pytest.raises(ResumeError, match=r"lies outside the epoch of 6 samples"):
            steps.num_steps(position)
    with pytest.raises(IndexError, match="beyond the 3 batches"):
        steps.step(3)


def test_the_global_batch_is_the_batch_samplers():
    steps = BatchSteps(BatchSamplerOrder([[0, 1, 2], [3]], 6, seed=1))
    assert steps.global_batch == 3
    assert steps.with_global_batch(3) is steps
    with pytest.raises(
        ConfigError, match=r"global batch of 8 rows was asked for, but the batch sampler decides .*\(3 in"
    ):
        steps.with_global_batch(8)


def test_too_many_ranks_are_refused_with_both_numbers():
    order = BatchSamplerOrder([[0, 1, 2], [3]], 6, seed=1)
    with pytest.raises(ConfigError, match=r"largest batch has 3 rows for 4 ranks; .*at least 4 rows"):
        BatchSteps(order, 0, 4)
    with pytest.raises(
        ConfigError, match=r"largest batch has 3 rows for 2 ranks, which need 2 rows each.*at least 4 rows"
    ):
        BatchSteps(order, 0, 2, unit=2)
    with pytest.raises(ValueError, match=r"one ratio is needed for each of 2 ranks, got 3"):
        BatchSteps(order, 0, 2, ratios=(1, 1, 1))


REFUSED = {
    "an empty batch": ([[0], []], r"batch 1 of the batch sampler is empty.*leave empty batches out"),
    "no batch": ([], r"yields no batch"),
    "single indices": (
        SequentialSampler(DATA),
        r"batch 0 of the batch sampler is 0 \(int\).*sampling.sampler, with loader",
    ),
    "indices of tensors": ([torch.tensor(3)], r"batch 0 of the batch sampler is tensor\(3\)"),
    "a dict": ([{0: 1}], r"batch 0 of the batch sampler is \{0: 1\} \(dict\)"),
    "beyond the end": ([[0, 1], [2, 3, 30]], r"batch 1 of the batch sampler, row 2 is 30, .*0 .. 22"),
    "negative": ([[0, -2]], r"batch 0 of the batch sampler, row 1 is -2, .*do not count from the end"),
    "a float": ([[0], [1, 2.0]], r"batch 1 of the batch sampler, row 1 is 2.0 \(float\)"),
    "a truth value": ([[0], [False]], r"batch 1 of the batch sampler, row 0 is False \(bool\)"),
    "a float array": ([np.zeros(3)], r"batch 0 of the batch sampler is an array of float64"),
    "batches of batches": (
        [[[0, 1]]],
        r"batch 0 of the batch sampler, row 0 is \[0, 1\] \(list\), and a batch is a list .*; yield the inner lists",
    ),
    "an array of batches of batches": (
        np.zeros((1, 1, 2), dtype=np.int64),
        r"batch 0 of the batch sampler is an array of shape \(1, 2\), and indices stand in one dimension; flatten it",
    ),
    "one number as an array": (np.array(3), r"is the single number 3, without a dimension; give a list, \[\[3\]\]"),
    "one number as a tensor": (torch.tensor(3), r"is the single number 3, without a dimension; give a list, \[\[3\]\]"),
    "one rank's share": (
        BatchSampler(DistributedSampler(DATA, num_replicas=2, rank=0), 4, drop_last=False),
        r"DistributedSampler of 2 replicas .*num_replicas=1",
    ),
    "a generator": (([i] for i in range(3)), r"cannot be copied"),
    "endless": (Endless(), r"yielded 1,\d+,\d+ indices and goes on"),
    "not iterable": (7, r"cannot be iterated"),
}


@pytest.mark.parametrize(("sampler", "message"), REFUSED.values(), ids=REFUSED)
def test_what_are_no_batches_is_refused_when_it_is_built(sampler, message):
    with pytest.raises(ConfigError, match=rf"(?s)sampling.batch_sampler: .*{message}"):
        BatchSamplerOrder(sampler, 23, seed=1)


def test_order_and_steps_can_be_pickled():
    steps = BatchSteps(BatchSamplerOrder(random_batches(), 23, seed=1), 1, 2)
    copied = pickle.loads(pickle.dumps(steps))
    assert [copied.of_epoch(3).step(index) for index in range(6)] == [
        steps.of_epoch(3).step(index) for index in range(6)
    ]


def test_held_bytes_cover_indices_and_sizes_of_two_epochs():
    order = BatchSamplerOrder(random_batches(), 23, seed=1)
    assert order.held_bytes == 2 * 8 * (23 + 6)
