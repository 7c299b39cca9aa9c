"""A file of 50,000 uint16 tokens, as windows with some tokens hidden: what a seed fixes, and what it does not.

With torch, a seed gives the same batches again only with as many workers; here it always does.
"""

import os
import pickle

import numpy as np
import pytest
import torch

from flodl_pipe import Loader
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.sources.tokens import TokenShards
from flodl_pipe.transforms.tokens import MaskTokens
from tests.experiments.lab import TokenWindows, seed_worker, torch_loader

TOKENS, SEQ_LEN, BATCH, MASK_ID = 50_000, 128, 32, 1000
WINDOWS = (TOKENS - 1) // SEQ_LEN


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("lab") / "tokens.bin"
    np.random.default_rng(0).integers(0, MASK_ID, TOKENS, dtype=np.uint16).tofile(path)
    return path


def windows(file):
    return TokenShards.open(str(file), seq_len=SEQ_LEN, file_format="raw", dtype="uint16")


def new_loader(file, **keywords):
    hide = MaskTokens(mask_id=MASK_ID, vocab_size=MASK_ID + 1, field="input", target="hidden")
    return Loader(windows(file), **{"batch_size": BATCH, "seed": 7, "transforms": {"hide": hide}, **keywords})


def ours(file, *, epoch=0, **keywords):
    with new_loader(file, **keywords) as loader:
        return list(loader.epoch(epoch))


def same(batches, others):
    """Whether two runs of batches hold the same tensors."""
    return len(batches) == len(others) and all(
        batch.names == other.names and all(map(torch.equal, batch, other))
        for batch, other in zip(batches, others, strict=True)
    )


def torchs(file, num_workers):
    generator = torch.Generator().manual_seed(7)
    loader = torch_loader(
        TokenWindows(str(file), SEQ_LEN, MASK_ID),
        num_workers,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        generator=generator,
        worker_init_fn=seed_worker,
    )
    return [torch.stack(batch) for batch in loader]


@pytest.mark.full
def test_torchs_seed_holds_for_one_number_of_workers(file):
    first, again, other = torchs(file, 2), torchs(file, 2), torchs(file, 1)
    assert all(map(torch.equal, first, again))
    assert [torch.equal(a[1], b[1]) for a, b in zip(first, other, strict=True)] == [True] * len(first)  # the order
    assert torch.equal(first[0], other[0])  # the first that the first worker makes
    assert not any(map(torch.equal, first[1:], other[1:]))  # what is hidden


def test_a_seed_gives_the_same_batches_again_and_another_seed_others(file):
    first = ours(file)
    assert len(first) == WINDOWS // BATCH
    assert same(first, ours(file))
    for other in (ours(file, seed=8), ours(file, epoch=1)):
        assert not any(
            torch.equal(batch["target"], theirs["target"]) for batch, theirs in zip(first, other, strict=True)
        )


@pytest.mark.parametrize("mode", ["resident", "streaming"])
@pytest.mark.parametrize("readers", [0, 1, 4])
def test_batches_are_the_same_whatever_reads(file, readers, mode):
    assert same(ours(file, readers=readers, mode=mode), ours(file))


def test_batches_are_the_same_in_pieces(file):
    pieces, state = [], None
    for stop in (1, 5, 9, None):
        with new_loader(file, readers=len(pieces) % 3) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for batch in loader:
                pieces.append(batch)
                if len(pieces) == stop:
                    break
            state = loader.state_dict()
    assert same(pieces, ours(file))


def test_rows_are_the_same_over_ranks(file):
    whole = ours(file)
    ranks = [ours(file, batch_size=BATCH // 2, context=RunContext(rank, 2)) for rank in range(2)]
    for batch, *parts in zip(whole, *ranks, strict=True):
        for name in batch.names:
            assert torch.equal(batch[name], torch.cat([part[name] for part in parts]))


def test_windows_are_those_of_the_file(file):
    tokens = np.fromfile(file, dtype=np.uint16).astype(np.int64)
    seen = set()
    for batch in ours(file, drop_last=False):
        x, y, hidden = batch["input"], batch["target"], batch["hidden"]
        assert {tensor.dtype for tensor in batch} == {torch.int64}
        assert (x == MASK_ID).any()
        before = torch.where(hidden == -100, x, hidden)
        assert torch.equal(y[:, :-1], before[:, 1:])
        for row, window in enumerate(batch.pick_keys.sample.tolist()):
            start = window * SEQ_LEN
            assert np.array_equal(before[row].numpy(), tokens[start : start + SEQ_LEN])
            assert np.array_equal(y[row].numpy(), tokens[start + 1 : start + SEQ_LEN + 1])
            seen.add(window)
    assert seen == set(range(WINDOWS))


def test_the_share_that_is_hidden_is_what_was_asked_for(file):
    chosen = torch.cat([batch["hidden"] != -100 for batch in ours(file, drop_last=False)])
    assert chosen.numel() == WINDOWS * SEQ_LEN
    assert chosen.float().mean().item() == pytest.approx(0.15, abs=5 * (0.15 * 0.85 / chosen.numel()) ** 0.5)


def held(file):
    """Whether this process has the file open or mapped."""
    with open("/proc/self/maps") as maps:
        mapped = str(file) in maps.read()
    return mapped or any(
        os.path.realpath(f"/proc/self/fd/{number}") == str(file) for number in os.listdir("/proc/self/fd")
    )


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_the_file_is_opened_when_it_is_read_and_closed_with_the_loader(file):
    loader = new_loader(file, mode="streaming", readers=0)
    assert not held(file)
    next(iter(loader))
    assert held(file)
    loader.close()
    assert not held(file)


def test_a_pickled_source_holds_paths_and_no_tokens(file):
    source = windows(file)
    with Loader(source, batch_size=BATCH) as loader:
        next(iter(loader))
        pickled = pickle.dumps(source)
    assert len(pickled) < 4096 < file.stat().st_size
    with Loader(pickle.loads(pickled), batch_size=BATCH) as copy, Loader(windows(file), batch_size=BATCH) as loader:
        assert same(list(copy), list(loader))
