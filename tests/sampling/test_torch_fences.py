"""Seeded orders, splits and shares of ranks: what torch's own classes promise, and the same beside it here.

Torch's order is a function of a generator that advances, and its ranks are told the epoch. Here an order is a function
of (seed, epoch), and nobody is told anything.
"""

from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, random_split

from flodl_pipe.config.source_base import SubsetConfig
from flodl_pipe.sampling.orders import SequentialOrder, UniformOrder
from flodl_pipe.sampling.sampler_order import SamplerOrder
from flodl_pipe.sampling.steps import Steps
from flodl_pipe.sources.index_sets import select

TWELVE, TEN = list(range(12)), list(range(10))
SHARES = {"train": 0.5, "valid": 0.3, "test": 0.2}


def ours(order, epoch):
    return order.epoch(epoch).at(0, order.num_picks).tolist()


def torchs(loader):
    return [index for batch in loader for index in batch.tolist()]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_torchs_order_is_a_function_of_a_generator_that_advances():
    def order(seed):
        return torchs(DataLoader(TWELVE, batch_size=4, shuffle=True, generator=seeded(seed)))

    assert order(7) == order(7) != order(8)
    assert sorted(order(7)) == TWELVE
    loader = DataLoader(TWELVE, batch_size=4, shuffle=True, generator=seeded(7))
    assert torchs(loader) == order(7)
    assert torchs(loader) != order(7)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: UniformOrder(12, seed),
        lambda seed: SamplerOrder(RandomSampler(TWELVE), 12, seed),
    ],
    ids=["own", "of torch's sampler"],
)
def test_our_order_is_a_function_of_seed_and_epoch_and_nothing_advances(make):
    order = make(7)
    epochs = [ours(order, epoch) for epoch in range(5)]
    assert all(sorted(epoch) == TWELVE for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 5
    assert [ours(order, epoch) for epoch in (4, 0, 2)] == [epochs[4], epochs[0], epochs[2]]
    assert [ours(make(7), epoch) for epoch in range(5)] == epochs
    assert ours(make(8), 0) != epochs[0]
    # Seed and epoch are two words of a key, not a sum.
    assert ours(make(8), 0) != ours(make(7), 1)


def test_the_first_epoch_of_a_generator_can_be_had_from_either():
    torchs_first = torchs(DataLoader(TWELVE, batch_size=4, sampler=RandomSampler(TWELVE, generator=seeded(7))))
    assert ours(SamplerOrder(RandomSampler(TWELVE, generator=seeded(7)), 12, seed=0), 0) == torchs_first


def torch_split(seed):
    return [list(part.indices) for part in random_split(range(10), list(SHARES.values()), generator=seeded(seed))]


def our_split(seed, num_samples=10):
    configs = [SubsetConfig(split=SHARES, take=name, seed=seed) for name in SHARES]
    return [list(map(int, select(num_samples, config)[0])) for config in configs]


@pytest.mark.parametrize("split", [torch_split, our_split])
def test_a_seeded_split_is_reproducible_disjoint_and_covering(split):
    parts = split(0)
    assert parts == split(0)
    assert [len(part) for part in parts] == [5, 3, 2]
    flat = [index for part in parts for index in part]
    assert sorted(flat) == TEN
    assert len({str(split(seed)) for seed in range(8)}) > 4


def test_our_split_has_the_sizes_of_torchs_wherever_shares_are_whole_numbers():
    for num_samples in (10, 100, 1000, 12_340):
        parts = random_split(range(num_samples), list(SHARES.values()), generator=seeded(0))
        assert [len(part) for part in our_split(0, num_samples)] == [len(part) for part in parts]


def distributed(epoch=None, **options):
    ranks = []
    for rank in range(3):
        sampler = DistributedSampler(TEN, num_replicas=3, rank=rank, **options)
        if epoch is not None:
            sampler.set_epoch(epoch)
        ranks.append(list(sampler))
    return ranks


def test_torchs_ranks_pad_and_stand_still_unless_they_are_told_the_epoch():
    first = distributed(0)
    assert [len(part) for part in first] == [4, 4, 4]
    flat = [index for part in first for index in part]
    assert len(flat) == 12
    assert set(flat) == set(TEN)
    assert distributed(1) != first
    assert distributed() == first == distributed()
    dropped = distributed(shuffle=False, drop_last=True)
    assert [len(part) for part in dropped] == [3, 3, 3]
    assert len({index for part in dropped for index in part}) == 9


def our_ranks(order, epoch, rule, batch_rows=1):
    """Return for each of three ranks the (samples, valid, weight) of its steps; one row a rank and step, as torch's."""
    ranks = []
    for rank in range(3):
        steps = Steps(order.num_picks, 3 * batch_rows, rule, rank=rank, world_size=3)
        of_rank = []
        for index in range(steps.num_steps()):
            step = steps.step(index)
            places = [position % order.num_picks for position in range(step.start, step.stop)]
            mask = step.valid()
            valid = [True] * len(places) if mask is None else mask.tolist()
            samples = [int(order.epoch(epoch).at(place, place + 1)[0]) for place in places]
            of_rank.append((samples, valid, step.weight))
        ranks.append(of_rank)
    return ranks


def rows(ranks, *, valid):
    return [
        sample
        for steps in ranks
        for samples, mask, _ in steps
        for sample, counts in zip(samples, mask, strict=True)
        if counts is valid
    ]


@pytest.mark.parametrize(
    ("rule", "num_steps", "num_covered", "num_filling"), [("pad", 4, 10, 2), (False, 4, 10, 2), (True, 3, 9, 0)]
)
def test_our_ranks_have_as_many_steps_each_and_mark_what_fills_a_place(rule, num_steps, num_covered, num_filling):
    ranks = our_ranks(UniformOrder(10, seed=0), 0, rule)
    assert [len(steps) for steps in ranks] == [num_steps] * 3
    counted = Counter(rows(ranks, valid=True))
    assert len(counted) == num_covered
    assert set(counted.values()) == {1}
    assert len(rows(ranks, valid=False)) == num_filling
    for step in zip(*ranks, strict=True):
        assert sum(weight for _, _, weight in step) == pytest.approx(3)


def test_our_padding_is_the_head_of_the_epoch_as_torchs():
    order = SequentialOrder(10)
    ranks = our_ranks(order, 0, "pad")
    mine = sorted(rows(ranks, valid=True) + rows(ranks, valid=False))
    theirs = sorted(index for part in distributed(shuffle=False) for index in part)
    assert mine == theirs
    assert sorted(rows(ranks, valid=False)) == [0, 1]


@pytest.mark.parametrize("rule", ["pad", False, True])
@pytest.mark.parametrize("batch_rows", [1, 2])
def test_our_ranks_reshuffle_every_epoch_without_being_told(rule, batch_rows):
    order = UniformOrder(10, seed=0)
    epochs = [our_ranks(order, epoch, rule, batch_rows) for epoch in range(4)]
    assert len(set(map(str, epochs))) == 4
    assert our_ranks(UniformOrder(10, seed=0), 3, rule, batch_rows) == epochs[3]


def test_torchs_distributed_sampler_of_one_replica_reshuffles_here_without_being_told():
    alone = DistributedSampler(TEN, num_replicas=1, rank=0)
    order = SamplerOrder(alone, 10, seed=0)
    ranks = [our_ranks(order, epoch, "pad") for epoch in range(3)]
    assert len(set(map(str, ranks))) == 3
    for of_epoch in ranks:
        assert sorted(rows(of_epoch, valid=True)) == TEN
    assert list(alone) == list(alone)  # the trap it would be in a loop of torch's
