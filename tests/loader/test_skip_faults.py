"""What ends a run that skips: too many samples, and faults that are none of a sample."""

import json
import os

import numpy as np
import pytest

from flodl_pipe.errors import ChangedError, ConfigError, SourceError, StagingError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.tokens import TokenShards
from tests.loader.inside import interrupt_reads
from tests.loader.skipping import WAYS, N, require_skipped, run, same, skipping
from tests.loader.sources import Numbers


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("limit", [1, 3, 10])
def test_one_more_than_the_limit_ends_the_run(way, limit):
    bad = range(0, 80, 8)  # one in each of the first ten steps
    with skipping(Numbers(200, bad=[*bad, 150]), shuffle=False, max_skipped=limit, **way) as loader:
        steps = 0
        with pytest.raises(SourceError) as caught:
            for _ in loader:
                steps += 1
        for part in (f"{limit + 1} samples", f"source.max_skipped is {limit}", "numbers.bin is bad", "max_skipped if"):
            assert part in str(caught.value)
        assert len(loader.skipped) == limit
        if way["readers"] < 2:
            assert steps == (limit if limit < 10 else 150 // 8)
            last = limit * 8 if limit < 10 else 150
            assert f"the last one is sample {last}: OSError: record {last}" in str(caught.value)


def test_the_limit_is_not_the_end_of_the_data():
    with skipping(Numbers(80, bad=range(4)), shuffle=False, max_skipped=3, readers=0, mode="streaming") as loader:
        with pytest.raises(SourceError, match="4 samples could not be read"):
            run(loader)
        state = loader.state_dict()
        assert len(json.loads(state["skipped"])) == 3
    with skipping(Numbers(80, bad=range(4)), shuffle=False, max_skipped=4) as loader:
        loader.load_state_dict(state)
        assert len(run(loader)) == 10


@pytest.mark.parametrize("error", [ChangedError("moved"), StagingError("no room"), MemoryError("no memory")])
@pytest.mark.parametrize("way", WAYS[:4])
def test_what_is_no_fault_of_a_sample_is_raised(way, error):
    source = Numbers(N)
    read = source.read_into

    def broken(indices, rows, out):
        if 40 in indices:
            raise error
        read(indices, rows, out)

    source.read_into = broken
    with skipping(source, shuffle=False, **way) as loader:
        with pytest.raises(type(error), match=str(error)):
            run(loader)
        assert loader.skipped == ()


def test_a_fault_that_passes_costs_nothing():
    source = Numbers(N)
    read, failed = source.read_into, []

    def shaky(indices, rows, out):
        if 40 in indices and not failed:
            failed.append(True)
            raise OSError("try again")
        read(indices, rows, out)

    source.read_into = shaky
    with skipping(source, readers=0, mode="streaming") as loader:
        found = run(loader)
        assert failed
        assert loader.skipped == ()
    with skipping(Numbers(N), readers=0) as loader:
        same(found, run(loader))


def test_a_fault_that_is_no_samples_is_raised():
    source = Numbers(N)
    read = source.read_into

    def refuses_crowds(indices, rows, out):
        if 40 in indices and len(indices) > 4:
            raise OSError("too many at once")
        read(indices, rows, out)

    source.read_into = refuses_crowds
    with skipping(source, readers=0, mode="streaming", sample_cache=False) as loader:
        with pytest.raises(OSError, match="too many at once"):
            run(loader)
        assert loader.skipped == ()


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "shard.bin"
    (np.arange(8000, dtype="<u2") % 1000).tofile(path)
    return path


def tokens(path):
    return TokenShards.open(str(path), seq_len=16, file_format="raw", dtype="uint16", vocab_size=1000)


@pytest.mark.parametrize("way", WAYS)
def test_windows_with_damaged_tokens(shard, way):
    with skipping(tokens(shard), **way) as loader:
        whole = run(loader)
    held = np.fromfile(shard, dtype="<u2")
    held[[100, 4000]] = 50_000
    held.tofile(shard)
    bad = {100 // 16, 4000 // 16 - 1, 4000 // 16}  # the last token of a window is the first of the next
    with skipping(tokens(shard), **way) as loader:
        found = run(loader)
        assert {sample for sample, _ in loader.skipped} == bad
        assert all("shard.bin" in reason for _, reason in loader.skipped)
    require_skipped(found, whole, bad)


@pytest.mark.parametrize("way", WAYS[:4])
def test_a_shard_that_is_cut_off_while_it_is_read_is_other_data(shard, way):
    np.zeros(200_000, dtype="<u2").tofile(shard)
    with skipping(tokens(shard), shuffle=False, sample_cache=False, **way) as loader:
        with pytest.raises(ChangedError, match=r"shard\.bin"):
            for number, _ in enumerate(loader):
                if number == 2:
                    os.truncate(shard, 200_000)
        assert loader.skipped == ()


@pytest.mark.parametrize("way", WAYS[:4])
def test_a_shard_whose_middle_the_disk_does_not_give(shard, way, monkeypatch):
    with skipping(tokens(shard), **way) as loader:
        whole = run(loader)
    source = tokens(shard)
    read, lost = source.read_into, set(range(200, 240))

    def torn(indices, rows, out):
        if lost & set(indices.tolist()):
            raise SourceError(f"{shard}: Input/output error; check the disk or the network mount")
        read(indices, rows, out)

    monkeypatch.setattr(source, "read_into", torn)
    with skipping(source, sample_cache=False, **way) as loader:
        require_skipped(run(loader), whole, lost)
        assert {sample for sample, _ in loader.skipped} == lost


def test_an_impure_source_is_still_found():
    source = Numbers(N, bad=range(12))
    read, calls = source.read_into, []

    def drifts(indices, rows, out):
        read(indices, rows, out)
        calls.append(1)
        out["values"][rows] = len(calls)

    source.read_into = drifts
    with (
        skipping(source, shuffle=False, readers=0, mode="streaming") as loader,
        pytest.raises(SourceError, match=r"sample 1[2-9] is not the same when it is read again"),
    ):
        run(loader)


def test_reads_that_are_broken_off_tell_nothing():
    source = Numbers(N, bad=[3])
    with skipping(source, shuffle=False, readers=0, mode="streaming") as loader:
        batches = iter(loader)
        interrupt_reads(loader)
        with pytest.raises(OSError, match="record 3"):
            next(batches)
        assert loader.skipped == ()
        run(loader)
        assert [sample for sample, _ in loader.skipped] == [3]


def test_streams_refuse_to_skip():
    with pytest.raises(ConfigError, match="skip is not for streams"):
        Loader(iter([{"x": np.zeros(3)}] * 5), batch_size=2, on_error="skip")
