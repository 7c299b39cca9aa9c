"""What the machine has: memory of the host, and the limit of the control group we run in.

``MemAvailable`` is the kernel's estimate of what can be taken without swapping; it counts reclaimable page cache. In a
container the control group's limit may be far below it, and exceeding that limit kills the process, so the smaller of
the two counts. Everything is read once per call; nothing is cached, because the answer changes while models are built.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import final

__all__ = ["HostMemory", "num_cpus", "probe_host", "resident_set_bytes"]

# A cgroup v1 "no limit" is the largest multiple of the page size below 2**63.
_NO_LIMIT_BYTES = 1 << 60


@final
@dataclass(frozen=True)
class HostMemory:
    """Memory of this host as this process may use it.

    Attributes:
        total_bytes: Physical memory, or the control group's limit when smaller.
        available_bytes: What can be taken now without swapping or being killed.
        limited_by: ``"host"`` or ``"cgroup"``: whose figure ``available_bytes`` is.
        cgroup_limit_bytes: Limit of the control group that leaves the least; None where the host's figure is smaller.
    """

    total_bytes: int
    available_bytes: int
    limited_by: str
    cgroup_limit_bytes: int | None = None


def probe_host(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> HostMemory:
    """Read the host's memory, aware of control groups v1 and v2.

    Args:
        proc: Mount point of procfs.
        cgroups: Mount point of the control groups.
    """
    total, available = _meminfo(proc / "meminfo")
    limited_by, tightest = "host", None
    for limit, used in _cgroup_limits(proc / "self" / "cgroup", cgroups):
        total = min(total, limit)
        if limit - used < available:
            available, limited_by, tightest = max(0, limit - used), "cgroup", limit
    return HostMemory(total, available, limited_by, tightest)


def num_cpus() -> int:
    """Return how many processors this process may run on (affinity mask, then ``cpu.max`` of the control group)."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no cgroup v2 here: the affinity mask is all there is to know
    return max(1, count)


def resident_set_bytes() -> int:
    """Return the private anonymous memory of this process (RssAnon), 0 where the platform does not tell."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return 0


def _meminfo(path: Path) -> tuple[int, int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:  # not Linux: physical memory is known, what is free of it is not
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total // 2
    values = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if rest}
    return values["MemTotal"], values.get("MemAvailable", values["MemFree"])


def _cgroup_limits(membership: Path, mount: Path) -> list[tuple[int, int]]:
    """Return (limit, used without reclaimable page cache) of our control group and every group above it."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = mount, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = mount / "memory"
        else:
            continue
        group = root / path.lstrip("/")
        # Inside a container the path is often that of the host and does not exist below the mount: then the mount
        # itself is our group.
        for folder in [group, *group.parents]:
            if folder.is_relative_to(root):
                found += _read_group(folder, *names)
    return found


def _read_group(folder: Path, limit_name: str, used_name: str, cache_name: str) -> list[tuple[int, int]]:
    try:
        limit_text = (folder / limit_name).read_text().strip()
        used = int((folder / used_name).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return []
    if limit_text == "max" or int(limit_text) >= _NO_LIMIT_BYTES:
        return []
    return [(int(limit_text), max(0, used - int(stat.get(cache_name, 0))))]
