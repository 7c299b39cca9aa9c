"""source.on_error=skip: bad rows are marked, and nothing else changes, whichever way batches are made."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.keyed.digest import Digest, row_hashes
from tests.loader.inside import split_steps, wait_until_filled
from tests.loader.skipping import BAD, WAYS, N, require_skipped, run, same, skipping
from tests.loader.sources import Numbers, values


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("drop_last", [True, False, "pad"])
def test_bad_rows_are_marked_and_nothing_else_changes(way, drop_last):
    shuffle, keep_digest = drop_last is not True, (way % 2 == 0) == (drop_last is False)
    options = {"shuffle": shuffle, "drop_last": drop_last, "keep_digest": keep_digest, **WAYS[way]}
    with skipping(Numbers(N), **options) as loader:
        whole = run(loader, 2)
        assert loader.skipped == ()
        assert loader.state_dict()["skipped"] == ""
    with skipping(Numbers(N, bad=BAD), **options) as loader:
        found = run(loader, 2)
        require_skipped(found, whole, BAD)
        met = {sample for samples, *_ in found for sample in samples} & BAD
        assert met <= {sample for sample, _ in loader.skipped} <= BAD
        assert dict(loader.skipped)[40] == "OSError: record 40 of numbers.bin is bad"
        valid = sum(len(samples) if valid is None else sum(valid) for samples, _, valid, _, _ in found)
        assert loader.statistics().num_samples == valid


@pytest.mark.parametrize("bad", [{0}, {7}, {63}, {0, 1, 2}, set(range(64)), {31, 32, 33}, set(range(20, 64))])
@pytest.mark.parametrize("shuffle", [True, False])
def test_parts_of_a_step_agree(bad, shuffle, monkeypatch):
    split_steps(monkeypatch)
    options = {"batch_size": 64, "shuffle": shuffle, "keep_digest": True, "mode": "streaming"}
    found, digests = [], set()
    for readers in (0, 2, 4):
        with skipping(Numbers(130, 40, bad=bad), **options, readers=readers) as loader:
            assert loader.plan.step_parts == max(1, readers)
            found.append(run(loader))
            digests.add(loader.statistics().digest)
    same(found[1], found[0])
    same(found[2], found[0])
    assert len(digests) == 1


def digest_of_good_rows(whole, bad, width=3):
    """Sum the hashes of the rows that are good, from what stands where."""
    digest, position = Digest(), 0
    for samples, repeats, valid, _, _ in whole:
        ids = np.array(samples)
        keep = ~np.isin(ids, list(bad))
        if valid is not None:
            keep &= np.array(valid)
        hashes = row_hashes(
            [ids, values(ids, width)],
            epoch=0,
            positions=position + np.arange(len(ids)),
            samples=ids,
            repeats=np.array(repeats),
        )
        digest.add(hashes[keep])
        position += len(ids)
    return digest.hex(), digest.num_rows


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("augment", [1, 3])
def test_the_digest_is_that_of_the_good_rows(way, augment):
    with skipping(Numbers(N), augment=augment, drop_last="pad", **way) as loader:
        wanted = digest_of_good_rows(run(loader), BAD)
    with skipping(Numbers(N, bad=BAD), augment=augment, drop_last="pad", keep_digest=True, **way) as loader:
        run(loader)
        statistics = loader.statistics()
        assert (statistics.digest, statistics.num_samples) == wanted
        assert {sample for sample, _ in loader.skipped} == BAD


def test_each_sample_is_said_once_and_not_read_again(caplog):
    source = Numbers(N, bad=BAD)
    asked = []
    read = source.read_into
    source.read_into = lambda indices, rows, out: (asked.extend(indices.tolist()), read(indices, rows, out))[1]
    with skipping(source, readers=0, mode="streaming", augment=2) as loader:
        run(loader)
        said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(said) == len(BAD)
        assert all(sum(f"sample {sample} " in text for text in said) == 1 for sample in BAD)
        asked.clear()
        run(loader, 2)
        assert not BAD & set(asked)
        assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == len(BAD)


@pytest.mark.parametrize("way", WAYS)
def test_contributions_of_good_rows_are_the_same_for_any_number_of_ranks(way):
    def contributions(world_size):
        found = {}
        for rank in range(world_size):
            with skipping(
                Numbers(N, bad=BAD), batch_size=None if world_size < 0 else 1, global_batch_size=24,
                context=RunContext(rank, world_size), **way,
            ) as loader:  # fmt: skip
                for step, batch in enumerate(loader):
                    valid = torch.ones(batch.size, dtype=torch.bool) if batch.valid is None else batch.valid
                    for sample in batch.pick_keys.sample[valid.numpy()].tolist():
                        # Its part in the average over ranks of the weighted mean loss.
                        found[step, sample] = batch.weight / int(valid.sum()) / world_size
        return found

    alone = contributions(1)
    for world_size in (2, 5):
        assert contributions(world_size) == pytest.approx(alone)
    assert not BAD & {sample for _, sample in alone}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [[50], [3], range(0, 101, 2)])
def test_the_purity_check_does_not_trip(way, bad):
    with skipping(Numbers(N, bad=bad), check_purity=True, shuffle=False, **way) as loader:
        run(loader)
        assert [sample for sample, _ in loader.skipped] == list(bad)


def test_a_resident_set_that_meets_the_fault_is_given_up_aloud(caplog):
    with skipping(Numbers(N, bad=[40]), mode="resident", readers=2) as loader:
        run(loader, 2)
        assert not wait_until_filled(loader)
        assert loader.mode[0] == "streaming"
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    (given_up,) = [text for text in said if "was given up: reading it failed (record 40" in text]
    assert "batches are streamed from the source instead: a resident set needs every sample" in given_up


@settings(max_examples=40, deadline=None)
@given(
    bad=st.sets(st.integers(0, 59), max_size=40),
    batch_size=st.integers(1, 20),
    augment=st.integers(1, 3),
    drop_last=st.sampled_from([True, False, "pad"]),
    order=st.sampled_from(["uniform", "blocked", "sequential"]),
    rank=st.integers(0, 2),
    way=st.sampled_from(WAYS),
    seed=st.integers(0, 2**64 - 1),
)
def test_any_faults_any_cut(bad, batch_size, augment, drop_last, order, rank, way, seed):
    options = {
        "augment": augment,
        "drop_last": drop_last,
        "seed": seed,
        "batch_size": batch_size,
        "context": RunContext(rank, 3),
        **({"shuffle": False} if order == "sequential" else {"order": order}),
        **way,
    }
    with skipping(Numbers(60), **options) as loader:
        whole = run(loader)
    with skipping(Numbers(60, bad=bad), **options) as loader:
        require_skipped(run(loader), whole, bad)
