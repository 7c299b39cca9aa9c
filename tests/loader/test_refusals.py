"""What a machine cannot do is refused when the loader is built: the value, the rule, the remedy."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from flodl_pipe.errors import ConfigError, LoaderError, StagingError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.memory.disk import DiskFacts, probe_disk
from flodl_pipe.memory.probe import HostMemory
from tests.loader.sources import Numbers

MIB = 1 << 20


@pytest.fixture
def host(monkeypatch):
    """Return a function that makes the host look smaller."""

    def looks_like(available, limited_by="host", limit=None):
        memory = HostMemory(max(available, 8 << 30), available, limited_by, limit)
        monkeypatch.setattr("flodl_pipe.loader.host_budget.probe_host", lambda: memory)

    return looks_like


@pytest.fixture
def disk(monkeypatch):
    """Return a function that makes a folder's disk look as told."""

    def looks_like(**facts):
        given = {"folder": "/data", "free_bytes": 1 << 40, "total_bytes": 1 << 41, "fs_type": "ext4", **facts}
        monkeypatch.setattr("flodl_pipe.loader.tiers.probe_disk", lambda _: DiskFacts(**given))

    return looks_like


def staged(**options):
    """Return a loader with a disk stage, and nothing in memory."""
    return Loader(Numbers(200), batch_size=4, mode="streaming", sample_cache=False, disk_stage=MIB, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vram_max_usage": 0.3}, r"vram_max_usage: must be from 0\.5 to 0\.99, got 0\.3"),
        ({"vram_max_usage": 80}, r"did you mean 0\.8\?"),
        ({"ram_max_usage": 0.95}, r"ram_max_usage: must be from 0 to 0\.9, got 0\.95"),
        ({"gpu_ram_share": 0.0}, "gpu_ram_share"),
        ({"disk_stage": "200G"}, "200G.*ambiguous"),
        ({"disk_stage": True}, "disk_stage: must be a size such as 200GiB, or 0"),
        ({"simulated": {"memory_bytes": 1000}}, "simulated.memory_bytes"),
        ({"reader_kind": "worker"}, "reader_kind"),
    ],
)
def test_values_outside_their_clamps(options, says):
    with pytest.raises(ConfigError, match=says):
        Loader(Numbers(100), batch_size=4, **options)


def test_a_disk_stage_larger_than_the_disk(tmp_path):
    free = probe_disk(tmp_path).free_bytes
    with pytest.raises(StagingError, match=r"loader\.disk_stage=.*TiB, but .* is free on the disk of .*lower loader"):
        Loader(
            Numbers(200), batch_size=4, mode="streaming", sample_cache=False, disk_stage=free + (1 << 40),
            disk_stage_dir=str(tmp_path),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"is_folder": False}, "there is no such folder.*make it, or name another"),
        ({"is_writable": False}, "files cannot be made there.*write permission, or name another"),
        ({"fs_type": "nfs4"}, r"network file system \(nfs4\).*local folder"),
        ({"fs_type": "fuse.sshfs"}, r"network file system \(fuse\.sshfs\)"),
    ],
)
def test_a_folder_that_cannot_hold_a_disk_stage(disk, facts, says):
    disk(**facts)
    with pytest.raises(StagingError, match=says):
        staged()


def test_a_disk_that_is_memory_is_warned_of_and_charged_to_the_host(caplog):
    shm = Path("/dev/shm")
    if not shm.is_dir() or not probe_disk(shm).is_memory:
        pytest.skip("/dev/shm is no tmpfs here")
    with caplog.at_level(logging.WARNING, logger="flodl_pipe"), staged(disk_stage_dir=str(shm)) as loader:
        assert "is a tmpfs" in caplog.text
        assert "disk stage in memory" in dict(loader.granted())


def test_a_disk_stage_where_no_sample_can_be_kept_by_number():
    class Batches(torch.utils.data.Dataset):
        def __len__(self):
            return 100

        def get_batch(self, indices):
            return np.asarray(indices)

    with pytest.raises(ConfigError, match=r"loader\.disk_stage.*disk_stage=0"):
        Loader(Batches(), batch_size=4, disk_stage=MIB)


def test_a_device_that_does_not_exist():
    if torch.cuda.is_available():
        pytest.skip("there is such a device here")
    with pytest.raises(ConfigError, match=r"loader\.device.*CUDA") as caught:
        Loader(Numbers(100), batch_size=4, device="cuda:7")
    assert "cpu" in str(caught.value)


def test_a_set_that_is_to_be_resident_and_does_not_fit_in_memory(host):
    host(20 * MIB)
    with pytest.raises(StagingError, match=r"loader\.mode=resident, but the whole set takes 10\.\d MiB, and .* of the"):
        Loader(Numbers(1_000_000), batch_size=4, mode="resident", ram_max_usage=0.5)


def test_a_set_that_is_to_be_resident_and_does_not_fit_on_the_device():
    says = r"loader\.mode=resident, but the whole set takes 7\.63 MiB, and 75 % of \d\.\d\d MiB free on the device"
    dataset = torch.utils.data.TensorDataset(torch.arange(1_000_000))
    with pytest.raises(StagingError, match=says):
        Loader(dataset, batch_size=4, mode="resident", device="simulated", simulated={"memory_bytes": 8 * MIB})


def test_a_pool_that_the_environment_forces_off(monkeypatch):
    monkeypatch.setenv("FLODL_VRAM_POOL", "off")
    options = {"batch_size": 4, "device": "simulated", "simulated": {"memory_bytes": 3 << 30}}
    dataset = torch.utils.data.TensorDataset(torch.arange(100))
    with Loader(dataset, **options) as loader:
        assert loader.mode == ("streaming", "FLODL_VRAM_POOL=off in the environment")
        assert "sample pool" not in dict(loader.granted())
        assert len(list(loader)) == 25
    with pytest.raises(StagingError, match=r"loader\.mode=resident, but FLODL_VRAM_POOL=off in the environment"):
        Loader(dataset, mode="resident", **options)
    monkeypatch.setenv("FLODL_VRAM_POOL", "perhaps")
    with pytest.raises(ConfigError, match=r"FLODL_VRAM_POOL='perhaps' in the environment must be on or off"):
        Loader(dataset, **options)


def test_a_control_group_that_holds_no_batch(host):
    host(1 * MIB, "cgroup", 2 * MIB)
    says = r"one batch of 400,000 rows takes .*the control group's memory limit is 2\.00 MiB.*lower loader\.batch_size"
    with pytest.raises(StagingError, match=says):
        Loader(Numbers(1_000_000), batch_size=400_000)


def test_a_dataset_that_no_process_can_be_given():
    class Local(torch.utils.data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return index

    with pytest.raises(LoaderError, match=r"cannot be sent to reader processes.*top level of a module"):
        Loader(Local(), batch_size=2, reader_kind="process", readers=1)


def test_threads_inside_a_dataset_that_is_random_on_purpose():
    with pytest.raises(ConfigError, match=r"loader\.reader_kind.*readers=2.*set reader_kind=process, or readers=0"):
        Loader(torch.utils.data.TensorDataset(torch.arange(10)), batch_size=2, pure=False, readers=2)


def test_what_is_refused_leaves_nothing_behind(disk):
    disk(fs_type="nfs")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(StagingError):
            staged()
    assert len(os.listdir("/proc/self/fd")) == before
