"""An iterable of 2,000 integers: torch's workers give each twice unless its author shards it; here once, always."""

from collections import Counter

import pytest

from flodl_pipe import Loader
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ConfigError
from flodl_pipe.sources.iterable_stream import IterableStream
from tests.experiments.lab import Integers, Part, ShardedIntegers, torch_loader

N = 2000


def ours(source, *, rank=0, world=1, **keywords):
    with Loader(source, batch_size=24 // world, drop_last=False, context=RunContext(rank, world), **keywords) as loader:
        return [number for batch in loader for number, counts in numbers(batch) if counts]


def numbers(batch):
    counts = [True] * batch.size if batch.valid is None else batch.valid.tolist()
    return zip(batch[0].tolist(), counts, strict=True)


@pytest.mark.parametrize(
    ("kind", "duplicates"), [(Integers, N), pytest.param(ShardedIntegers, 0, marks=pytest.mark.full)]
)
def test_two_workers_of_torch_repeat_what_is_not_sharded(kind, duplicates):
    given = [number for batch in torch_loader(kind(N), batch_size=50) for number in batch.tolist()]
    assert len(given) - len(set(given)) == duplicates
    assert set(given) == set(range(N))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("readers", [0, 1, 4])
def test_every_item_comes_once_whatever_reads(readers, shuffle):
    given = ours(Integers(N), readers=readers, shuffle=shuffle)
    assert sorted(given) == list(range(N))
    assert (given == list(range(N))) is not shuffle
    assert given == ours(Integers(N), shuffle=shuffle)


@pytest.mark.parametrize("source", ["parts", "range"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_item_comes_once_over_all_ranks(world, source):
    # Parts of the data are shared out among ranks; who wrote them knows of no worker and no rank.
    sources = {
        "parts": lambda: IterableStream([Part(0, 700), Part(700, 1500), Part(1500, N)]),
        "range": lambda: range(N),
    }
    given = [number for rank in range(world) for number in ours(sources[source](), rank=rank, world=world)]
    assert Counter(given) == Counter(range(N))


def test_one_iterable_on_several_ranks_is_refused_not_repeated():
    with pytest.raises(ConfigError, match="fewer than the 2 ranks"):
        ours(Integers(N), world=2)
