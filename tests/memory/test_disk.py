"""Disks: found by the longest mount point, refused with a reason, warned of where they are memory."""

import os
from types import SimpleNamespace

import pytest

from flodl_pipe.errors import StagingError
from flodl_pipe.memory.disk import DiskFacts, disk_grant, memory_warning, probe_disk

GIB = 1 << 30


def mounts(tmp_path, *points):
    """Write a table of mounts: (mount point, type), as the kernel does."""
    lines = [
        f"{number} 1 0:{number} / {point} rw,relatime shared:1 - {fs_type} some:/source rw"
        for number, (point, fs_type) in enumerate(points, 20)
    ]
    table = tmp_path / "mountinfo"
    table.write_text("\n".join(lines) + "\n")
    return table


def sizes(free_blocks, flag=0):
    return lambda folder: SimpleNamespace(f_bavail=free_blocks, f_frsize=4096, f_blocks=1000, f_flag=flag)


def test_the_longest_mount_point_decides(tmp_path):
    folder = tmp_path / "data" / "stage"
    folder.mkdir(parents=True)
    table = mounts(tmp_path, ("/", "ext4"), (tmp_path / "data", "nfs4"), (tmp_path, "xfs"), (tmp_path / "da", "btrfs"))
    assert probe_disk(folder, mountinfo=table).fs_type == "nfs4"
    assert probe_disk(tmp_path, mountinfo=table).fs_type == "xfs"
    assert probe_disk("/", mountinfo=table).fs_type == "ext4"


def test_of_two_mounts_on_one_point_the_later_one_is_seen(tmp_path):
    table = mounts(tmp_path, (tmp_path, "ext4"), (tmp_path, "tmpfs"))
    assert probe_disk(tmp_path, mountinfo=table).fs_type == "tmpfs"


def test_a_mount_point_with_a_space_is_found(tmp_path):
    folder = tmp_path / "my disk"
    folder.mkdir()
    table = mounts(tmp_path, ("/", "ext4"), (str(folder).replace(" ", "\\040"), "xfs"))
    assert probe_disk(folder, mountinfo=table).fs_type == "xfs"


def test_a_link_is_followed_to_the_disk_that_it_leads_to(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    table = mounts(tmp_path, ("/", "ext4"), (tmp_path / "far", "nfs"))
    facts = probe_disk(tmp_path / "near", mountinfo=table)
    assert (facts.fs_type, facts.folder) == ("nfs", str(tmp_path / "near"))


def test_damaged_lines_and_a_missing_table_are_no_error(tmp_path):
    table = mounts(tmp_path, ("/", "ext4"))
    table.write_text("nonsense\n 1 2 - \n" + table.read_text())
    assert probe_disk(tmp_path, mountinfo=table).fs_type == "ext4"
    assert probe_disk(tmp_path, mountinfo=tmp_path / "none").fs_type == ""


def test_free_is_what_may_be_written_without_special_rights(tmp_path):
    facts = probe_disk(tmp_path, mountinfo=mounts(tmp_path, ("/", "ext4")), statvfs=sizes(10))
    assert (facts.free_bytes, facts.total_bytes, facts.is_folder, facts.is_writable) == (40960, 4096000, True, True)


def test_a_disk_for_reading_only_is_not_writable(tmp_path):
    assert not probe_disk(tmp_path, statvfs=sizes(10, os.ST_RDONLY)).is_writable


def test_what_is_no_folder_is_an_answer(tmp_path):
    facts = probe_disk(tmp_path / "none")
    assert (facts.is_folder, facts.is_writable, facts.free_bytes) == (False, False, 0)
    (tmp_path / "file").write_text("")
    assert not probe_disk(tmp_path / "file").is_folder


def test_this_machines_folder_can_be_looked_at(tmp_path):
    facts = probe_disk(tmp_path)
    assert facts.is_folder
    assert facts.is_writable
    assert facts.free_bytes > 0


def local(**changes):
    return DiskFacts(
        **{"folder": "/scratch", "free_bytes": 4 * GIB, "total_bytes": 8 * GIB, "fs_type": "xfs"} | changes
    )


def test_what_was_asked_for_is_granted_where_the_disk_has_it():
    assert str(disk_grant(GIB, local())) == (
        "1.00 GiB: loader.disk_stage=1.00 GiB; 4.00 GiB is free on the disk of /scratch (xfs)"
    )
    assert disk_grant(4 * GIB, local()).num_bytes == 4 * GIB


def test_more_than_the_set_is_not_granted():
    grant = disk_grant(2 * GIB, local(), set_bytes=GIB)
    assert grant.num_bytes == GIB
    assert grant.reason.startswith("all rows")


def test_off_is_off_wherever_it_would_be():
    assert disk_grant(0, local(is_folder=False)).num_bytes == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, r"loader\.disk_stage=5\.00 GiB, but 4\.00 GiB is free on the disk of /scratch; lower loader\.disk_stage"),
        ({"is_folder": False}, r"loader\.disk_stage_dir=/scratch: there is no such folder"),
        ({"is_writable": False}, r"loader\.disk_stage_dir=/scratch: files cannot be made there"),
    ],
)
def test_what_cannot_be_done_is_refused(changes, words):
    with pytest.raises(StagingError, match=words):
        disk_grant(5 * GIB, local(**changes))


@pytest.mark.parametrize(
    "fs_type", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "lustre", "glusterfs", "ceph", "fuse.gcsfuse"]
)
def test_a_network_file_system_is_refused_by_name(fs_type):
    with pytest.raises(StagingError, match=rf"on a network file system \({fs_type}\).*to a local folder"):
        disk_grant(GIB, local(fs_type=fs_type))


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs", "zfs", "overlay", "fuseblk", "apfs", ""])
def test_a_local_file_system_is_taken_without_a_word(fs_type):
    facts = local(fs_type=fs_type)
    assert disk_grant(GIB, facts).num_bytes == GIB
    assert not facts.is_memory
    assert memory_warning(facts, GIB) is None


@pytest.mark.parametrize("fs_type", ["tmpfs", "ramfs"])
def test_a_disk_that_is_memory_is_warned_of(fs_type):
    facts = local(fs_type=fs_type)
    assert facts.is_memory
    assert disk_grant(GIB, facts).num_bytes == GIB
    warning = memory_warning(facts, GIB)
    assert f"/scratch is a {fs_type}: a disk stage of 1.00 GiB there takes host memory" in warning
