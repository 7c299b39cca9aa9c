"""The tiers of the host in a loader: whatever they hold, the rows are those of the source."""

import logging

import numpy as np
import pytest
import torch

from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.loader.loader import Loader
from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.sources.ragged_source import RaggedRows
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.tokens import TokenShards
from tests.loader.inside import disk_file, wait_until_filled

N, ROW = 2000, 520


@pytest.fixture(scope="module")
def records_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "records.bin"
    rows = np.zeros((N, ROW), dtype=np.uint8)
    rows[:, :8] = np.arange(N, dtype="<i8")[:, None].view(np.uint8)
    rows[:, 8:] = np.arange(N * (ROW - 8)).reshape(N, -1) % 251
    rows.tofile(path)
    return path


@pytest.fixture
def small_host(monkeypatch):
    """Return a function that leaves a loader some bytes for its RAM cache, whatever its ring takes."""

    def leave(cache_bytes, ring_bytes=0):
        available = 2 * (cache_bytes + ring_bytes)
        memory = HostMemory(8 << 30, available, "host", None)
        monkeypatch.setattr("flodl_pipe.loader.host_budget.probe_host", lambda: memory)

    return leave


def records(path):
    parts = {"id": RecordPart(0, "int64", ()), "data": RecordPart(8, "uint8", (ROW - 8,))}
    return Records.open(str(path), record_bytes=ROW, parts=parts)


def delivered(loader, epochs=3):
    """Return the ids and the sum of every row, in the order of delivery."""
    rows = []
    for epoch in range(epochs):
        for batch in loader.epoch(epoch):
            rows += zip(batch["id"].tolist(), batch["data"].sum(dim=1, dtype=torch.int64).tolist(), strict=True)
    return rows


def counts(loader):
    return {count.name: count for count in loader.tiers()}


@pytest.fixture(scope="module")
def whole(records_file):
    """The rows of three epochs, and their digest, without any tier."""
    plain = Loader(records(records_file), batch_size=16, mode="streaming", sample_cache=False, keep_digest=True)
    with plain as loader:
        return delivered(loader), loader.statistics().digest


DISK, CACHED = 400 * 528, 0.3


@pytest.mark.parametrize(
    ("readers", "disk", "cached"),
    [
        (0, DISK, CACHED),
        (1, DISK, CACHED),
        (3, DISK, CACHED),
        (1, DISK, 0),
        (3, DISK, 0),
        (0, 0, CACHED),
        (3, 0, CACHED),
    ],
)
def test_a_part_in_memory_a_part_on_disk_and_the_rest_from_the_source(
    records_file, small_host, tmp_path, whole, readers, disk, cached
):
    options = {"batch_size": 16, "mode": "streaming", "readers": readers, "prefetch": 4, "sample_cache": cached > 0}
    with Loader(records(records_file), **options, device="cpu") as loader:
        ring_bytes = dict(loader.granted())["ring"]
    small_host(int(cached * N * (ROW + 1)) + 4 * 400, ring_bytes)
    with Loader(
        records(records_file), **options, disk_stage=disk, disk_stage_dir=str(tmp_path), keep_digest=True
    ) as loader:
        assert (delivered(loader), loader.statistics().digest) == whole
        found = counts(loader)
        assert set(found) == ({"RAM cache"} if cached else set()) | ({"disk stage"} if disk else set())
        if cached:
            assert 0.25 * N * ROW < found["RAM cache"].held_bytes < 0.31 * N * (ROW + 1)
        if disk:
            assert found["disk stage"].num_hits > 0
    assert not list(tmp_path.iterdir())


def test_the_hit_rate_of_a_cache_is_its_part_of_the_set(records_file, small_host):
    options = {"batch_size": 20, "mode": "streaming", "readers": 1, "prefetch": 2}
    with Loader(records(records_file), **options) as loader:
        ring_bytes = dict(loader.granted())["ring"]
    small_host(N // 4 * (ROW + 1) + 1, ring_bytes)
    with Loader(records(records_file), **options) as loader:
        delivered(loader, 1)
        assert wait_until_filled(loader)
        before = counts(loader)["RAM cache"]
        delivered(loader, 10)
        after = counts(loader)["RAM cache"]
        assert abs((after.num_hits - before.num_hits) / (after.num_rows - before.num_rows) - 0.25) < 0.01


def test_one_epoch_fills_nothing(records_file):
    with Loader(records(records_file), batch_size=20, mode="streaming", num_epochs=1) as loader:
        delivered(loader, 1)
        assert loader.tiers() == ()
        assert loader.traffic().source_rows == N
        assert "RAM cache" not in dict(loader.granted())


def test_a_cache_of_the_whole_set_serves_streaming_like_a_resident_set(records_file):
    with Loader(records(records_file), batch_size=20, mode="streaming") as loader:
        first = delivered(loader, 1)
        assert wait_until_filled(loader)
        read = loader.traffic().source_rows
        assert sorted(delivered(loader, 4)[-N:]) == sorted(first)
        assert loader.traffic().source_rows == read
        assert not loader.is_resident
        assert loader.mode == ("streaming", "loader.mode=streaming")
        assert counts(loader)["RAM cache"].num_hits >= 4 * N


def test_samples_of_a_python_dataset_are_read_once(small_host):
    class Dataset(torch.utils.data.Dataset):
        def __init__(self):
            self.asked = []

        def __len__(self):
            return 60

        def __getitem__(self, index):
            self.asked.append(index)
            return {"id": index, "data": torch.full((4,), index, dtype=torch.uint8)}

    dataset = Dataset()
    with Loader(dataset, batch_size=6, mode="streaming", check_purity=False) as loader:
        dataset.asked.clear()
        delivered(loader, 3)
        assert sorted(dataset.asked) == list(range(60))


def test_windows_that_overlap_are_kept_once(tmp_path, small_host):
    path = tmp_path / "tokens.bin"
    np.arange(40_000, dtype="<u2").tofile(path)

    def windows():
        return TokenShards.open(str(path), seq_len=64, stride=8, file_format="raw", dtype="uint16")

    def run(loader):
        return [batch["input"].clone() for epoch in range(3) for batch in loader.epoch(epoch)]

    options = {"batch_size": 50, "mode": "streaming", "readers": 1, "prefetch": 2}
    with Loader(windows(), **options, sample_cache=False) as loader:
        whole = run(loader)
        ring_bytes = dict(loader.granted())["ring"]
    small_host(40_000, ring_bytes)  # half of the tokens, and far less than half of the windows as rows
    with Loader(windows(), **options) as loader:
        found = run(loader)
        assert all(torch.equal(one, other) for one, other in zip(found, whole, strict=True))
        assert wait_until_filled(loader)
        before = counts(loader)["RAM cache"]
        run(loader)
        after = counts(loader)["RAM cache"]
        assert 0.45 < (after.num_hits - before.num_hits) / (after.num_rows - before.num_rows) < 0.5
        assert after.held_bytes <= 40_000


def test_samples_of_different_lengths_are_kept(small_host):
    lengths = np.arange(1, 101)
    values = Ragged(
        np.arange(lengths.sum(), dtype=np.int32), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    )
    source = RaggedRows({"ids": values, "id": np.arange(100)})

    def run(loader):
        return [
            (batch["ids"].sum().item(), batch["id"].tolist()) for epoch in range(3) for batch in loader.epoch(epoch)
        ]

    options = {"batch_size": 10, "collate": "pad"}
    with Loader(source, **options, sample_cache=False) as loader:
        whole = run(loader)
        assert loader.tiers() == ()
    with Loader(source, **options) as loader:
        assert run(loader) == whole
        assert counts(loader)["RAM cache"].num_hits >= 200
    with Loader(source, **options, device="simulated", simulated={"memory_bytes": 1 << 24}) as loader:
        assert run(loader) == whole


def test_a_disk_stage_that_fails_is_said_and_the_rows_come_from_the_source(records_file, tmp_path, caplog, monkeypatch):
    options = {"batch_size": 16, "mode": "streaming", "sample_cache": False, "readers": 1}
    with Loader(records(records_file), **options) as loader:
        whole = delivered(loader)
    with (
        caplog.at_level(logging.WARNING, logger="flodl_pipe"),
        Loader(records(records_file), **options, disk_stage=1 << 20, disk_stage_dir=str(tmp_path)) as loader,
    ):
        rows = delivered(loader, 1)
        disk_file(loader).give_back()
        for epoch in (1, 2):
            for batch in loader.epoch(epoch):
                rows += zip(batch["id"].tolist(), batch["data"].sum(dim=1, dtype=torch.int64).tolist(), strict=True)
        assert rows == whole
        assert counts(loader)["disk stage"].off is not None
        assert "disk stage" in caplog.text
