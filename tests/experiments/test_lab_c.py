"""2,000 sequences of 4 to 64 tokens in batches of 32: how much of a batch is padding, by its order."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from flodl_pipe import Loader
from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.sources.ragged_source import RaggedRows
from tests.experiments.lab import BucketBatchSampler, Sequences, pad

N, BATCH = 2000, 32
LENGTHS = np.random.default_rng(0).integers(4, 65, N)


def sequences():
    """The sequences as rows in memory; row ``i`` holds ``i`` everywhere."""
    offsets = np.concatenate([[0], LENGTHS.cumsum()])
    return RaggedRows({"ids": Ragged(values=np.repeat(np.arange(N), LENGTHS), offsets=offsets)})


def ours(source=None, **keywords):
    source = sequences() if source is None else source
    sizes = {} if "batch_sampler" in keywords else {"batch_size": BATCH, "drop_last": False}
    names = None if isinstance(source, RaggedRows) else ["ids"]
    with Loader(source, names=names, collate="pad", pad_multiple=1, **sizes, **keywords) as loader:
        return [(batch["ids"], batch["attention_mask"]) for batch in loader]


def torchs(**keywords):
    return list(DataLoader(Sequences(LENGTHS.tolist()), collate_fn=pad, **keywords))


def padded_fraction(batches):
    return 1 - sum(int(mask.sum()) for _, mask in batches) / sum(mask.numel() for _, mask in batches)


def bucket_sampler(seed=0):
    return BucketBatchSampler(LENGTHS, BATCH, torch.Generator().manual_seed(seed))


def require_every_sequence_once(batches):
    found = torch.cat([ids[mask.bool()] for ids, mask in batches])
    assert torch.equal(found.bincount(minlength=N), torch.from_numpy(LENGTHS))
    assert all((ids[mask == 0] == 0).all() for ids, mask in batches)


def test_nearly_half_of_a_random_batch_is_padding():
    theirs = torchs(batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(0))
    for batches in (theirs, ours()):
        require_every_sequence_once(batches)
        assert len(batches) == -(-N // BATCH)
        assert padded_fraction(batches) == pytest.approx(0.45, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_less_than_three_percent_of_a_bucketed_batch_is(seed):
    batches = ours(order="bucketed", seed=seed)
    require_every_sequence_once(batches)
    assert len(batches) == -(-N // BATCH)
    assert padded_fraction(batches) < 0.03


def require_same(batches, others):
    for batch, other in zip(batches, others, strict=True):
        assert all(map(torch.equal, batch, other))


@pytest.mark.parametrize("source", [sequences, lambda: Sequences(LENGTHS.tolist())], ids=["rows", "dataset"])
def test_a_bucketing_batch_sampler_gives_the_same_batches_here_as_to_torch(source):
    batches, theirs = ours(source(), batch_sampler=bucket_sampler()), torchs(batch_sampler=bucket_sampler())
    require_every_sequence_once(batches)
    require_same(batches, theirs)
    assert padded_fraction(batches) < 0.04


def test_the_bucketed_order_pads_no_more_than_the_sampler():
    built_in = [padded_fraction(ours(order="bucketed", seed=seed)) for seed in range(5)]
    sampled = [padded_fraction(ours(batch_sampler=bucket_sampler(seed))) for seed in range(5)]
    assert np.mean(built_in) <= np.mean(sampled)


@pytest.mark.parametrize("readers", [0, 4])
def test_bucketed_batches_are_the_same_whatever_reads(readers):
    require_same(ours(order="bucketed", readers=readers), ours(order="bucketed"))
