"""Loaders of real ranks that keep samples in one RAM cache: what each rank of a test runs, and what it tells.

White box: how many samples ranks hold together is read from the plan of the tiers; sets count as small from another
size on; and pieces of the cache are made small, as the set is.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.cluster.world import World
from flodl_pipe.keyed.digest import Digest
from flodl_pipe.loader import host_budget, host_joining, host_sharing
from flodl_pipe.loader.loader import Loader
from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.tokens import TokenShards
from flodl_pipe.staging.ram_cache import memory_file_bytes
from flodl_pipe.staging.shared_fill import HostPart
from tests.cluster.ranks import PATIENT_S

N, ROW = 6_000, 520
BATCH = 48


def write_records(folder: Path, *, num_rows: int = N, salt: int = 0, name: str = "records.bin") -> Path:
    """Write records whose first number is their index, and the rest follows from it."""
    rows = np.zeros((num_rows, ROW), dtype=np.uint8)
    rows[:, :8] = np.arange(num_rows, dtype="<i8")[:, None].view(np.uint8)
    rows[:, 8:] = (np.arange(num_rows * (ROW - 8)).reshape(num_rows, -1) + salt) % 251
    rows.tofile(folder / name)
    return folder / name


def records(path: Path) -> Records:
    parts = {"id": RecordPart(0, "int64", ()), "data": RecordPart(8, "uint8", (ROW - 8,))}
    return Records.open(str(path), record_bytes=ROW, parts=parts)


class Squares(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A dataset of one's own; it says how often it was read."""

    def __init__(self) -> None:
        self.num_reads = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        self.num_reads += 1
        return index, torch.full((65,), index * index, dtype=torch.int64)


def context(ratios: tuple[int, ...] | None = None, *, share: bool = True, timeout_s: float = PATIENT_S) -> RunContext:
    """Return this rank in its place."""
    world = World.join(os.environ.get("FLODL_PIPE_HOST", "here"), int(os.environ["LOCAL_RANK"]), timeout_s)
    return RunContext(
        world.rank,
        world.world_size,
        ratios,
        host=world.members[world.rank].host,
        local_rank=world.members[world.rank].local_rank,
        co_hosted=world.co_hosted,
        world=world,
        share_host_cache=share,
    )


@contextmanager
def host_of(available_bytes: int) -> Iterator[None]:
    """Let the loaders that are built find so much memory on their host."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    memory = HostMemory(8 << 30, available_bytes, "host", None)
    with patch.object(host_budget, "probe_host", lambda: memory):
        yield


def loader_of(source: Any, ranks: RunContext, **options: Any) -> Loader:
    """Return a rank's loader, which keeps a digest."""
    options = {"global_batch_size": BATCH, "device": "cpu", "prefetch": 4, "keep_digest": True, **options}
    return Loader(source, context=ranks, **options)


def tell(loader: Loader, epochs: int, *, check: bool = True) -> dict[str, Any]:
    """Run epochs, in step with the other ranks between them, and return what came of each."""
    engine: Any = loader._engine
    found: dict[str, Any] = {
        "grants": dict(loader.granted()),
        "mode": loader.mode,
        "held": engine._parts.outline.tiers.ram.num_rows,
        "epochs": [],
    }
    before = _counts(loader)
    for epoch in range(epochs):
        rows = 0
        for batch in loader.epoch(epoch):
            rows += len(batch[0])
            if check:
                require_rows(batch["id"], batch["data"])
        dist.barrier()
        now = _counts(loader)
        found["epochs"].append({"rows": rows, **{name: now[name] - before[name] for name in now}})
        before = now
    digest = loader.statistics().digest
    found["cached_bytes"] = _cached_bytes()
    found["keepers"] = [tier.num_keepers for tier in loader.tiers()]
    found["digest"], found["rows"] = digest, loader.statistics().num_samples
    return found


def _cached_bytes() -> int:
    """Return the memory that caches of several ranks take of this process."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line[0].isupper():
            inside = "memfd:flodl_pipe_cache" in line
        elif inside and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


def _counts(loader: Loader) -> dict[str, int]:
    return {
        "hits": sum(tier.num_hits for tier in loader.tiers()),
        "filled_bytes": sum(tier.filled_bytes for tier in loader.tiers()),
        "source_rows": loader.traffic().source_rows,
    }


def require_rows(ids: torch.Tensor, data: torch.Tensor, salt: int = 0) -> None:
    """Refuse a row that is not what the file has."""
    wanted = (ids[:, None] * (ROW - 8) + torch.arange(ROW - 8) + salt) % 251
    assert torch.equal(data, wanted.to(torch.uint8))


def joined(told: list[dict[str, Any]]) -> str:
    """Return the digest of what all ranks have delivered."""
    total = Digest()
    for one in told:
        total.merge(Digest.from_hex(one["digest"], one["rows"]))
    return total.hex()


def run_records(path: Path, available: int, epochs: int, options: dict[str, Any]) -> dict[str, Any]:
    """Serve records on this rank."""
    options = dict(options)
    ratios, share = options.pop("ratios", None), options.pop("share", True)
    small = patch.object(host_sharing, "_OWN_SET_BYTES", options.pop("own_set", host_sharing._OWN_SET_BYTES))
    # Pieces that are read ahead are as small against so small a set as usual ones against a usual one.
    chunk_bytes = 32 * ROW
    sized = patch.object(host_joining, "memory_file_bytes", partial(memory_file_bytes, chunk_bytes=chunk_bytes))
    parts = patch.object(host_joining, "HostPart", partial(HostPart, chunk_bytes=chunk_bytes))
    ranks = context(ratios, share=share)
    if options.pop("first_on_device", False) and not ranks.rank:
        options.update(device="simulated", mode="resident")
    with host_of(available), small, sized, parts, loader_of(records(path), ranks, **options) as loader:
        return tell(loader, epochs)


def run_tokens(path: Path, available: int, epochs: int) -> dict[str, Any]:
    """Serve overlapping windows of tokens on this rank."""
    source = TokenShards.open(str(path), seq_len=64, stride=4)
    with host_of(available), loader_of(source, context()) as loader:
        return tell(loader, epochs, check=False)


def run_dataset(available: int, epochs: int) -> dict[str, Any]:
    """Serve a dataset of one's own on this rank."""
    dataset = Squares()
    with host_of(available), loader_of(dataset, context(), check_purity=False) as loader:
        told = tell(loader, epochs, check=False)
    return {**told, "reads": dataset.num_reads}


def run_fork(path: Path, available: int) -> bool:
    """Serve an epoch in a fork of this rank, which talks to nobody; return whether that went well."""
    with host_of(available), loader_of(records(path), context(), readers=1) as loader:
        for _ in zip(range(3), loader.epoch(0), strict=False):
            pass
        child = os.fork()
        if not child:
            ok = False
            try:
                rows = 0
                for batch in loader.epoch(0):
                    require_rows(batch["id"], batch["data"])
                    rows += len(batch["id"])
                ok = rows == N // 2
            finally:
                os._exit(0 if ok else 1)
        return os.waitpid(child, 0)[1] == 0


_KINDS: dict[str, Callable[..., Any]] = {
    "records": run_records,
    "tokens": run_tokens,
    "dataset": run_dataset,
    "fork": run_fork,
}


def run_all(runs: dict[str, tuple[str, tuple[Any, ...]]]) -> dict[str, Any]:
    """Do several of these on this rank, one after the other, and return what came of each."""
    return {name: _KINDS[kind](*arguments) for name, (kind, arguments) in runs.items()}
