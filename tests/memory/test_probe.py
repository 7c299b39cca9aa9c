"""Probes: the host's figure, or the control group's when that is smaller."""

import pytest

from flodl_pipe.memory.probe import num_cpus, probe_host

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path):
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:  16777216 kB\nMemFree:  1048576 kB\nMemAvailable:  8388608 kB\n")
    (tmp_path / "cgroup").mkdir()
    return proc, tmp_path / "cgroup"


def group(folder, names, limit, used, cache):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\ntotal_inactive_file {cache}\n")


V2 = ("memory.max", "memory.current")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_without_control_groups_the_host_decides(machine):
    memory = probe_host(*machine)
    assert (memory.total_bytes, memory.available_bytes, memory.limited_by) == (16 * GIB, 8 * GIB, "host")


def test_a_v2_limit_counts_less_what_is_used_without_page_cache(machine):
    proc, cgroups = machine
    (proc / "self/cgroup").write_text("0::/job/step\n")
    group(cgroups / "job/step", V2, 4 * GIB, 3 * GIB, GIB)
    memory = probe_host(proc, cgroups)
    assert (memory.total_bytes, memory.available_bytes, memory.limited_by) == (4 * GIB, 2 * GIB, "cgroup")


def test_the_limit_that_leaves_the_least_is_told(machine):
    proc, cgroups = machine
    assert probe_host(proc, cgroups).cgroup_limit_bytes is None
    (proc / "self/cgroup").write_text("0::/job/step\n")
    group(cgroups / "job/step", V2, 2 * GIB, 0, 0)
    group(cgroups / "job", V2, 3 * GIB, 2 * GIB, 0)
    memory = probe_host(proc, cgroups)
    assert (memory.available_bytes, memory.cgroup_limit_bytes) == (GIB, 3 * GIB)


def test_a_limit_of_a_group_above_counts_too(machine):
    proc, cgroups = machine
    (proc / "self/cgroup").write_text("0::/job/step\n")
    group(cgroups / "job/step", V2, "max", GIB, 0)
    group(cgroups / "job", V2, 3 * GIB, 2 * GIB, 0)
    assert probe_host(proc, cgroups).available_bytes == GIB


def test_inside_a_container_the_mount_is_our_group(machine):
    proc, cgroups = machine
    (proc / "self/cgroup").write_text("0::/../../system.slice/docker-abc.scope\n")
    group(cgroups, V2, 2 * GIB, GIB, 0)
    assert probe_host(proc, cgroups).available_bytes == GIB


def test_a_v1_limit_counts_and_its_huge_default_does_not(machine):
    proc, cgroups = machine
    (proc / "self/cgroup").write_text("3:cpu,cpuacct:/x\n2:memory:/box\n")
    group(cgroups / "memory/box", V1, 5 * GIB, 4 * GIB, 2 * GIB)
    assert probe_host(proc, cgroups).available_bytes == 3 * GIB
    group(cgroups / "memory/box", V1, 9223372036854771712, 4 * GIB, 0)
    assert probe_host(proc, cgroups).limited_by == "host"


def test_a_limit_that_is_exceeded_leaves_nothing(machine):
    proc, cgroups = machine
    (proc / "self/cgroup").write_text("0::/job\n")
    group(cgroups / "job", V2, GIB, 2 * GIB, 0)
    assert probe_host(proc, cgroups).available_bytes == 0


def test_this_machine_has_processors():
    assert num_cpus() >= 1
