"""A user's sampler as an order: torch's first epoch, later epochs without a generator that advances, clear refusals."""

import copy
import itertools
import pickle
import random
import sys
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from flodl_pipe.errors import ConfigError, LoaderError
from flodl_pipe.sampling.orders import samples_of
from flodl_pipe.sampling.sampler_order import SamplerOrder
from tests.support.programs import run

DATA = range(20)
WEIGHTS = np.linspace(1.0, 2.0, 20).tolist()


def seeded(seed=7):
    return torch.Generator().manual_seed(seed)


def picks(order, epoch=0):
    return order.epoch(epoch).at(0, order.num_picks).tolist()


class NumpySampler(Sampler):
    def __init__(self, n=20, rng=None):
        self.n = n
        self.rng = np.random.default_rng(5) if rng is None else rng

    def __iter__(self):
        return iter(self.rng.permutation(self.n).tolist())

    def __len__(self):
        return self.n


class PythonSampler:
    """No torch class; keeps a ``random.Random`` and shuffles a list of its own in place."""

    def __init__(self, n=20, seed=5):
        self.indices = list(range(n))
        self.rng = random.Random(seed)

    def __iter__(self):
        self.rng.shuffle(self.indices)
        return iter(self.indices)


class GlobalSampler:
    """Draws from the three global states, as scripts do."""

    def __iter__(self):
        yield random.randrange(20)
        yield int(np.random.randint(20))  # noqa: NPY002 - what users write
        yield from torch.randperm(20).tolist()


class EpochSampler:
    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([(place + self.epoch) % 20 for place in range(20)])


SAMPLERS = {
    "random": lambda: RandomSampler(DATA),
    "random, seeded": lambda: RandomSampler(DATA, generator=seeded()),
    "random, replacement": lambda: RandomSampler(DATA, replacement=True, num_samples=33, generator=seeded()),
    "random, replacement, no generator": lambda: RandomSampler(DATA, replacement=True, num_samples=33),
    "random, more than there are": lambda: RandomSampler(DATA, num_samples=50, generator=seeded()),
    "sequential": lambda: SequentialSampler(DATA),
    "subset": lambda: SubsetRandomSampler(range(1, 20, 2)),
    "subset, seeded": lambda: SubsetRandomSampler(range(1, 20, 2), generator=seeded()),
    "weighted": lambda: WeightedRandomSampler(WEIGHTS, 30),
    "weighted, seeded": lambda: WeightedRandomSampler(WEIGHTS, 30, generator=seeded()),
    "weighted, without replacement": lambda: WeightedRandomSampler(WEIGHTS, 20, replacement=False, generator=seeded()),
    "distributed, one replica": lambda: DistributedSampler(DATA, num_replicas=1, rank=0, seed=3),
    "numpy generator": NumpySampler,
    "numpy legacy": lambda: NumpySampler(rng=np.random.RandomState(3)),
    "python generator": PythonSampler,
    "global states": GlobalSampler,
    "set_epoch": EpochSampler,
    "list": lambda: [4, 4, 2, 19],
    "tuple": lambda: (4, 4, 2, 19),
    "range": lambda: range(19, 0, -3),
    "array": lambda: np.array([1, 2, 3], dtype=np.uint8),
    "tensor": lambda: torch.tensor([1, 2, 3]),
    "list of tensors": lambda: list(torch.arange(5)),
    "list of NumPy integers": lambda: list(np.arange(5, dtype=np.int32)),
}
# Torch's own answer for the same generator, where a generator decides it.
SAME_AS_TORCH = [
    "random, seeded",
    "random, replacement",
    "random, more than there are",
    "sequential",
    "subset, seeded",
    "weighted, seeded",
    "weighted, without replacement",
    "distributed, one replica",
    "numpy generator",
    "numpy legacy",
    "python generator",
]
FIXED = ["sequential", "list", "tuple", "range", "array", "tensor", "list of tensors", "list of NumPy integers"]


@pytest.fixture(autouse=True)
def _global_states_stay():
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    yield
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1][1], np.random.get_state()[1])  # noqa: NPY002
    assert before[1][2:] == np.random.get_state()[2:]  # noqa: NPY002
    assert before[2] == random.getstate()


@pytest.mark.parametrize("name", SAME_AS_TORCH)
def test_the_first_epoch_is_what_torch_gives_for_the_same_generator(name):
    assert picks(SamplerOrder(SAMPLERS[name](), 20, seed=42)) == list(SAMPLERS[name]())


def test_the_first_epoch_of_a_seeded_random_sampler():
    order = SamplerOrder(RandomSampler(DATA, generator=seeded(7)), 20, seed=1)
    assert picks(order) == list(RandomSampler(DATA, generator=torch.Generator().manual_seed(7)))


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_an_epoch_is_a_function_of_sampler_seed_and_epoch(make):
    one = SamplerOrder(make(), 20, seed=42)
    before = torch.get_rng_state()
    torch.manual_seed(1)  # of no consequence
    other = SamplerOrder(make(), 20, seed=42)
    torch.set_rng_state(before)
    assert one.tag == other.tag
    assert one.num_picks == len(picks(one))
    assert one.num_repeats is None
    assert one.held_bytes in (8 * one.num_picks, 2 * 8 * one.num_picks)
    forth = {epoch: picks(one, epoch) for epoch in (0, 1, 2, 3)}
    back = {epoch: picks(other, epoch) for epoch in (3, 2, 0, 1, 3)}
    assert forth == back
    copied = pickle.loads(pickle.dumps(one))
    assert copied.tag == one.tag
    assert {epoch: picks(copied, epoch) for epoch in forth} == forth


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name not in FIXED])
def test_epochs_differ_without_a_call_of_set_epoch(name):
    order = SamplerOrder(SAMPLERS[name](), 20, seed=42)
    assert len({tuple(picks(order, epoch)) for epoch in range(4)}) == 4


@pytest.mark.parametrize("name", FIXED)
def test_a_sampler_without_chance_gives_every_epoch_alike(name):
    order = SamplerOrder(SAMPLERS[name](), 20, seed=42)
    assert picks(order, 3) == picks(order) == [int(index) for index in SAMPLERS[name]()]


@pytest.mark.parametrize("name", ["random", "weighted", "subset", "global states"])
def test_without_a_generator_the_run_seed_decides(name):
    def orders(seed):
        order = SamplerOrder(SAMPLERS[name](), 20, seed)
        return [picks(order, epoch) for epoch in range(3)]

    assert orders(1) == orders(1)
    for mine, others in zip(orders(1), orders(2), strict=True):
        assert mine != others


def test_with_a_generator_the_run_seed_decides_the_later_epochs():
    one, other = (SamplerOrder(RandomSampler(DATA, generator=seeded()), 20, seed) for seed in (1, 2))
    assert picks(one) == picks(other)
    assert picks(one, 1) != picks(other, 1)
    assert one.tag != other.tag


def test_the_users_objects_are_not_advanced():
    generator, rng, python = seeded(), np.random.default_rng(5), random.Random(5)
    before = generator.get_state(), copy.deepcopy(rng.bit_generator.state), python.getstate()
    own = PythonSampler()
    own.rng = python
    for sampler in (RandomSampler(DATA, generator=generator), NumpySampler(rng=rng), own):
        order = SamplerOrder(sampler, 20, seed=1)
        for epoch in range(4):
            order.epoch(epoch)
    assert torch.equal(before[0], generator.get_state())
    assert rng.bit_generator.state == before[1]
    assert python.getstate() == before[2]
    assert own.indices == list(range(20))


def test_what_the_user_does_with_the_sampler_later_changes_nothing():
    sampler = EpochSampler()
    order = SamplerOrder(sampler, 20, seed=1)
    before = picks(order, 7)
    sampler.set_epoch(100)
    list(sampler)
    order.epoch(1), order.epoch(2)
    assert picks(order, 7) == before


def test_set_epoch_is_called_for_the_user():
    order = SamplerOrder(DistributedSampler(DATA, num_replicas=1, rank=0, seed=3), 20, seed=1)
    for epoch in range(4):
        torchs = DistributedSampler(DATA, num_replicas=1, rank=0, seed=3)
        torchs.set_epoch(epoch)
        assert picks(order, epoch) == list(torchs)


def test_global_states_are_left_alone_where_a_sampler_does_not_need_them():
    seen = []

    class Watcher(NumpySampler):
        def __iter__(self):
            seen.append(torch.get_rng_state())
            return super().__iter__()

    order = SamplerOrder(Watcher(), 20, seed=1)
    seen.clear()
    order.epoch(2)
    assert len(seen) == 1
    assert torch.equal(seen[0], torch.get_rng_state())


def test_global_states_are_put_back_when_the_sampler_raises():
    class Broken:
        def __iter__(self):
            random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
            yield 1
            raise ZeroDivisionError("in the sampler")

    with pytest.raises(ZeroDivisionError, match="in the sampler"):
        SamplerOrder(Broken(), 20, seed=1)  # the fixture compares


def test_global_draws_of_later_epochs_only_are_noticed():
    class Late(EpochSampler):
        def __iter__(self):
            yield from range(20) if self.epoch < 2 else random.sample(range(20), 20)

    order = SamplerOrder(Late(), 20, seed=1)
    before = random.getstate()
    with pytest.raises(LoaderError, match=r"epoch 2: .*draws from a global random state.*generator that it keeps"):
        order.epoch(2)
    random.setstate(before)


def test_data_of_a_sampler_is_shared_and_not_copied():
    class Big(Dataset):
        def __len__(self):
            return 20

        def __deepcopy__(self, memo):
            raise AssertionError("data was copied")

    class Named:
        def __deepcopy__(self, memo):
            raise AssertionError("data was copied")

    class Own(Sampler):
        def __init__(self, **kept):
            self.kept = [kept]

        def __iter__(self):
            return iter(range(20))

    named = Named()
    for sampler in (
        RandomSampler(Big()),
        SequentialSampler(Big()),
        DistributedSampler(Big(), num_replicas=1, rank=0),
        Own(data=Big()),
        Own(source=named),
    ):
        assert SamplerOrder(sampler, 20, seed=1, shared=[named]).num_picks == 20


@pytest.fixture
def threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_take_turns_often")
@pytest.mark.parametrize("is_one_order", [True, False])
def test_threads_get_the_same_epochs(is_one_order):
    orders = [SamplerOrder(GlobalSampler(), 20, seed=1)] * 4
    if not is_one_order:
        orders = [SamplerOrder(GlobalSampler(), 20, seed=1) for _ in range(4)]
    wanted = {epoch: picks(orders[0], epoch) for epoch in range(6)}
    wrong = []

    def read(number):
        epochs = [(number + step) % 6 for step in range(24)]
        wrong.extend(epoch for epoch in epochs if picks(orders[number], epoch) != wanted[epoch])

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_epochs_are_kept_and_no_more():
    read = []

    class Watched(EpochSampler):
        def __iter__(self):
            read.append(self.epoch)
            return super().__iter__()

    order = SamplerOrder(Watched(), 20, seed=1)
    read.clear()
    for epoch in (0, 1, 2, 1, 3, 1, 2):
        assert picks(order, epoch)[0] == epoch
    assert read == [2, 3, 2]


def test_another_process_reads_the_same_epochs():
    code = (
        "import sys; from tests.sampling.test_sampler_order import SAMPLERS, SamplerOrder, picks\n"
        "for name in sys.argv[1:]:\n"
        "    order = SamplerOrder(SAMPLERS[name](), 20, seed=42)\n"
        "    print(order.tag, picks(order, 0), picks(order, 3))\n"
    )
    names = ["random", "random, seeded", "numpy generator", "python generator", "global states", "weighted"]
    done = run(["-c", code, *names], timeout=120, check=True)
    here = []
    for name in names:
        order = SamplerOrder(SAMPLERS[name](), 20, seed=42)
        module = "tests.sampling.test_sampler_order"
        here.append(f"{order.tag.replace(__name__, module)} {picks(order, 0)} {picks(order, 3)}")
    assert done.stdout.splitlines() == here


def test_another_order_has_another_tag():
    tags = {name: SamplerOrder(make(), 20, seed=42).tag for name, make in SAMPLERS.items()}
    assert tags["list"] == tags["tuple"]
    assert tags["list of tensors"] == tags["list of NumPy integers"]
    assert tags["array"] == tags["tensor"]
    assert len(set(tags.values())) == len(SAMPLERS) - 3
    seeds = {SamplerOrder(RandomSampler(DATA, generator=seeded(seed)), 20, seed=42).tag for seed in range(5)}
    assert len(seeds) == 5


def test_repeats_are_positions_so_that_a_sample_drawn_twice_has_two_keys():
    order = SamplerOrder([4, 4, 2], 5, seed=1)
    positions = np.arange(3)
    samples, repeats = samples_of(order, positions, order.epoch(0).pick(positions))
    assert samples.tolist() == [4, 4, 2]
    assert repeats.tolist() == [0, 1, 2]


def test_what_is_handed_out_may_be_written_to():
    order = SamplerOrder([4, 4, 2], 5, seed=1)
    order.epoch(0).at(0, 3)[:] = 0
    order.epoch(0).pick(np.arange(3))[:] = 0
    assert picks(order) == [4, 4, 2]


def test_where_is_the_inverse_if_no_sample_comes_twice():
    order = SamplerOrder(SubsetRandomSampler([3, 5, 7, 11], generator=seeded()), 20, seed=1).epoch(2)
    found = order.where(np.array([11, 3, 7]))
    assert order.pick(found).tolist() == [11, 3, 7]
    with pytest.raises(LoaderError, match=r"sample 4 does not come in this epoch.*4 samples"):
        order.where(np.array([3, 4]))
    with pytest.raises(LoaderError, match=r"sample 19 does not come"):
        order.where(np.array([19]))
    with pytest.raises(LoaderError, match=r"sample 4 more than once.*positions instead"):
        SamplerOrder([4, 4, 2], 5, seed=1).epoch(0).where(np.array([2]))


def test_positions_and_epochs_out_of_range_are_refused():
    order = SamplerOrder([1, 2, 3], 5, seed=1)
    with pytest.raises(ValueError, match=r"positions 2 .. 4 do not lie within the epoch of 3 picks"):
        order.epoch(0).at(2, 4)
    for epoch in (-1, 1 << 64):
        with pytest.raises(ValueError, match="epoch must be"):
            order.epoch(epoch)
    with pytest.raises(ValueError, match="seed must be"):
        SamplerOrder([1], 5, seed=-1)
    assert picks(SamplerOrder(RandomSampler(DATA), 20, seed=(1 << 64) - 1), (1 << 64) - 1)


def generator_function():
    yield from range(5)


class Counting:
    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter([self.epoch % 20, 1, 2])


class Unsteady:
    drawn = itertools.count()

    def __iter__(self):
        return iter([0, next(self.drawn) % 20])


class Endless:
    def __iter__(self):
        return itertools.cycle(range(20))


class Growing(EpochSampler):
    def __iter__(self):
        return iter(range(3 + self.epoch))


class NoLength(Sampler):
    def __len__(self):
        raise NotImplementedError

    def __iter__(self):
        return iter([1.5])


class Returns:
    """Its __iter__ returns what is no iterator."""

    def __init__(self, value):
        self.value = value

    def __iter__(self):
        return self.value


REFUSED = {
    "beyond the end": ([0, 1, 20], r"index 2 of the sampler is 20, and the samples are numbered 0 .. 19; make"),
    "negative": (np.array([0, -1]), r"index 1 of the sampler is -1, .*do not count from the end"),
    "far beyond": ([0, 1 << 70], r"index 1 of the sampler is 1180591620717411303424, "),
    "far beyond, unsigned": (np.array([0, (1 << 64) - 1], dtype=np.uint64), r"is 18446744073709551615, .*0 .. 19"),
    "a float": ([0, 1.0], r"index 1 of the sampler is 1.0 \(float\), and indices are integers; yield int"),
    "a late float": ([0] * 70_000 + [1.0], r"index 70000 of the sampler is 1.0"),
    "a truth value": ([0, True], r"index 1 of the sampler is True \(bool\)"),
    "a NumPy truth value": ([0, np.True_], r"index 1 of the sampler is np.True_ \(bool"),
    "text": ([0, "1"], r"index 1 of the sampler is '1' \(str\)"),
    "nothing": ([0, None], r"index 1 of the sampler is None \(NoneType\)"),
    "a float tensor inside": ([torch.tensor(0), torch.tensor(1.0)], r"index 1 of the sampler is an array of float32"),
    "a truth tensor inside": ([torch.tensor(True)], r"index 0 of the sampler is an array of bool"),
    "a float array": (np.array([0.0]), r"array of float64, and indices are integers; convert it"),
    "a float tensor": (torch.tensor([0.0]), r"array of float32, and indices are integers"),
    "a mask": (np.array([True, False]), r"array of bool, .*numpy.flatnonzero\(mask\)"),
    "two axes": (np.zeros((2, 3), dtype=np.int64), r"shape \(2, 3\).*sampling.batch_sampler"),
    "one number as an array": (np.array(3), r"is the single number 3, without a dimension; give a list, \[3\]"),
    "one number as a tensor": (torch.tensor(3), r"is the single number 3, without a dimension; give a list, \[3\]"),
    "no iterator": (Returns(None), r"__iter__ of the sampler, a Returns, returned None \(NoneType\), .*let it yield"),
    "a list in place of an iterator": (Returns([1]), r"returned \[1\] \(list\).* or return iter\(list_of_indices\)"),
    "batches": (BatchSampler(SequentialSampler(DATA), 4, drop_last=False), r"index 0 .*\[0, 1, 2, 3\].*batch_sampler"),
    "empty": ([], r"yields no index, and an epoch needs at least one"),
    "an empty array": (np.array([], dtype=np.int64), r"yields no index"),
    "a number": (5, r"5 \(int\), which cannot be iterated"),
    "a class": (RandomSampler, r"which cannot be iterated"),
    "words": ("123", r"'123' \(str\), which has no order"),
    "bytes": (b"123", r"which has no order"),
    "a set": ({1, 2}, r"which has no order"),
    "a generator": (generator_function(), r"cannot be copied .*TypeError.*give a list"),
    "an iterator": (iter([1, 2]), r"gives another order, or none, when it is read a second time.*or give a list"),
    "counts by itself": (Counting(), r"cannot be told the epoch.*set_epoch"),
    "not the same twice": (
        Unsteady(),
        r"gave two orders for epoch 0 \(index 1 is \d+ and then \d+\).*could not resume",
    ),
    "endless": (Endless(), r"yielded 1,\d+,\d+ indices and goes on, and an epoch of 20 samples is read for at most"),
    "grows": (Growing(), r"epoch 1 of the sampler has 4 indices and epoch 0 has 3, .*let every epoch yield as many"),
    "one rank's share": (
        DistributedSampler(DATA, num_replicas=4, rank=1),
        r"4 replicas .*shared out twice.*replicas=1",
    ),
    "no length, a float": (NoLength(), r"index 0 of the sampler is 1.5"),
}


@pytest.mark.parametrize(("sampler", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_order_is_refused_when_it_is_built(sampler, message):
    with pytest.raises(ConfigError, match=rf"(?s)sampling.sampler: .*{message}"):
        SamplerOrder(sampler, 20, seed=1)


class Failing(Sampler):
    """Raises in one epoch, as it begins or at its second index."""

    def __init__(self, epoch, early):
        self.fails, self.early, self.epoch = epoch, early, 0

    def set_epoch(self, epoch):
        self.epoch = epoch
        if self.early and epoch == self.fails:
            raise RuntimeError("no order today")

    def __iter__(self):
        yield 0
        if self.epoch == self.fails:
            raise RuntimeError("no order today")
        yield 1


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_an_error_raised_within_a_sampler_has_a_note_that_names_sampler_and_epoch(epoch, early):
    with pytest.raises(RuntimeError, match="no order today") as caught:
        SamplerOrder(Failing(epoch, early), 20, seed=1).epoch(5)
    (note,) = caught.value.__notes__
    assert note.startswith("raised by sampling.sampler, a ")
    assert note.endswith(f".Failing, when it was read for epoch {epoch}")


def test_an_error_of_a_later_epoch_names_it():
    class Later(EpochSampler):
        def __iter__(self):
            return iter([0, 1, 2] if self.epoch < 3 else [0, 1, 25])

    class Shrinking(EpochSampler):
        def __iter__(self):
            return iter(range(5 if self.epoch < 2 else 4))

    with pytest.raises(LoaderError, match=r"sampling.sampler in epoch 3: index 2 of the sampler is 25, .*0 .. 19"):
        SamplerOrder(Later(), 20, seed=1).epoch(3)
    with pytest.raises(LoaderError, match=r"epoch 2 of the sampler has 4 indices and epoch 0 has 5"):
        SamplerOrder(Shrinking(), 20, seed=1).epoch(2)


def test_a_sampler_that_says_it_is_long_may_be():
    class Long:
        def __len__(self):
            return (1 << 20) + 70_000

        def __iter__(self):
            return itertools.islice(itertools.cycle(range(20)), len(self))

    assert SamplerOrder(Long(), 20, seed=1).num_picks == (1 << 20) + 70_000


def test_a_long_range_is_an_endless_one():
    with pytest.raises(ConfigError, match=r"is 20, and the samples are numbered 0 .. 19"):
        SamplerOrder(range(10**6), 20, seed=1)


def test_arrays_that_nobody_may_write_to_are_not_copied():
    class ByLength(Sampler):
        def __init__(self, lengths):
            self.lengths = lengths

        def __iter__(self):
            seen.append(self.lengths)
            return iter(np.argsort(self.lengths, kind="stable"))

    seen = []
    lengths = np.arange(20)[::-1].copy()
    lengths.setflags(write=False)
    assert picks(SamplerOrder(ByLength(lengths), 20, seed=1)) == list(range(19, -1, -1))
    assert all(np.shares_memory(lengths, held) for held in seen)
    seen.clear()
    mutable = lengths.copy()
    SamplerOrder(ByLength(mutable), 20, seed=1)
    assert not any(np.shares_memory(mutable, held) for held in seen)


def test_a_sampler_with_slots_and_nested_samplers_is_set_as_a_whole():
    class Pair:
        __slots__ = ("parts",)

        def __init__(self):
            self.parts = {"a": [RandomSampler(range(10)), NumpySampler(10)], "b": (PythonSampler(10),)}

        def __iter__(self):
            for samplers in self.parts.values():
                for sampler in samplers:
                    yield from sampler

    order = SamplerOrder(Pair(), 20, seed=1)
    assert [picks(order, epoch) for epoch in (0, 5)] == [
        picks(SamplerOrder(Pair(), 20, seed=1), epoch) for epoch in (0, 5)
    ]
    for part in (slice(0, 10), slice(10, 20), slice(20, 30)):
        assert len({tuple(picks(order, epoch)[part]) for epoch in range(4)}) == 4


def test_two_samplers_without_generators_draw_different_numbers():
    class Two:
        def __init__(self):
            self.parts = RandomSampler(DATA), RandomSampler(DATA)

        def __iter__(self):
            return itertools.chain(*self.parts)

    first = picks(SamplerOrder(Two(), 20, seed=1))
    assert first[:20] != first[20:]


class Words:
    """What the generators of an epoch give; only those whose values are fixed for good."""

    def __init__(self):
        self.rng = random.Random(5)
        self.bits = np.random.MT19937(5)

    def __iter__(self):
        yield self.rng.getrandbits(32)
        yield int(self.bits.random_raw())


def test_the_numbers_of_later_epochs_are_pinned():
    # To change these values is to change what every resumed run with a sampler of one's own gets: it needs another
    # ALGORITHM, and a line in the change log.
    order = SamplerOrder(Words(), 1 << 32, seed=42)
    assert order.tag.startswith("sampler s64v1 ")
    assert [picks(order, epoch) for epoch in (0, 1, 2, 1 << 40)] == [
        [2675342405, 1463718072],
        [667402964, 855702659],
        [2809811055, 4235626758],
        [640963114, 723508107],
    ]


def test_seeds_and_epochs_beyond_32_bits_do_not_collide():
    found = [
        tuple(picks(SamplerOrder(RandomSampler(range(1000), generator=seeded()), 1000, seed), epoch)[:4])
        for seed in (0, 1, 1 << 32, 1 << 63)
        for epoch in (1, 2, 1 + (1 << 32), 1 << 63)
    ]
    assert len(set(found)) == 16
