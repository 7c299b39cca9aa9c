"""Ranks of a host with one RAM cache: the same rows, more hits, the source read once; nobody waits for a dead one."""

import os
import signal
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch.distributed as dist

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.loader import host_budget, host_joining, host_sharing
from flodl_pipe.loader.loader import Loader
from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.sources.tokens import TokenShards
from tests.cluster.ranks import results, run_ranks, told
from tests.cluster.shared_ranks import (
    BATCH,
    ROW,
    N,
    context,
    host_of,
    joined,
    loader_of,
    records,
    require_rows,
    run_all,
    run_records,
    tell,
    write_records,
)

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs memory files")

# Half of the set for all ranks together, at ram_max_usage 0.5, beside what rings take.
HALF = N * (ROW + 1)
RING = 300_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.npy"
    np.save(path, np.random.default_rng(0).integers(0, 1000, 100_000, dtype=np.uint16))
    return path


HELD = HALF + 4 * RING
WHOLE = 2 * N * (ROW + 1) + 4 * RING
PLENTY = 64 << 20


@pytest.fixture(scope="module")
def two(path: Path) -> dict[str, list[Any]]:
    """What two ranks of a host tell of each way to run; they are started once for all of them."""
    return ran(
        {
            "inline": ("records", (path, HELD, 3, {"readers": 0})),
            "read ahead": ("records", (path, HELD, 3, {"readers": 2})),
            "apart": ("records", (path, HELD, 3, {"readers": 1, "share": False})),
            "3:1": ("records", (path, HELD, 1, {"readers": 0, "ratios": (3, 1)})),
            "whole": ("records", (path, WHOLE, 3, {"readers": 1})),
            "small": ("records", (path, PLENTY, 2, {"readers": 1})),
            "large": ("records", (path, PLENTY, 2, {"readers": 1, "own_set": 0})),
            "resident": ("records", (path, PLENTY, 2, {"mode": "resident", "own_set": 0})),
            "lanes": ("records", (path, HELD, 2, {"order": "lanes"})),
            "fork": ("fork", (path, HELD)),
        }
    )


@pytest.fixture(scope="module")
def two_more(path: Path, tokens: Path) -> dict[str, list[Any]]:
    """The same, of ways that take longer."""
    small = {"memory_bytes": 2 << 20}
    return ran(
        {
            "one on a device": ("records", (path, PLENTY, 2, {"first_on_device": True, "own_set": 0})),
            "devices": ("records", (path, HELD, 3, {"device": "simulated", "mode": "streaming", "simulated": small})),
            "tokens": ("tokens", (tokens, 1_000_000, 3)),
            "dataset": ("dataset", (3 * N * 530 + 4 * RING, 3)),
        }
    )


def ran(ways: dict[str, Any]) -> dict[str, list[Any]]:
    found = results(run_all, 2, ways)
    return {name: [rank[name] for rank in found] for name in found[0]}


@pytest.fixture(scope="module")
def once(path: Path) -> dict[int, str | None]:
    """Digests of one process that keeps nothing, after two epochs and after three."""
    return {epochs: alone(records(path), epochs) for epochs in (1, 2, 3)}


def alone(source: Any, epochs: int) -> str | None:
    options: dict[str, Any] = {"batch_size": BATCH, "device": "cpu", "mode": "streaming", "sample_cache": False}
    with Loader(source, keep_digest=True, **options) as loader:
        for epoch in range(epochs):
            for _ in loader.epoch(epoch):
                pass
        return loader.statistics().digest


def require_hits(found: list[dict[str, Any]], num_samples: int = N) -> int:
    """Refuse ranks that do not find what they hold together, from the second epoch on; return how many that are."""
    (held,) = {one["held"] for one in found}
    for one in found:
        for later in one["epochs"][1:]:
            assert later["hits"] / later["rows"] == pytest.approx(held / num_samples, abs=0.05)
    return int(held)


def require_granted(found: list[dict[str, Any]], name: str) -> None:
    """Refuse ranks whose cache is of another size than they were granted; each maps all of it, and it is there once."""
    granted = sum(one["grants"]["RAM cache"] for one in found)
    for one in found:
        assert 0.9 * granted < one["cached_bytes"] < granted + (4 << 20), name


def require_read_once(found: list[dict[str, Any]], held: int) -> None:
    """Refuse ranks that read a sample twice in the first epoch, or one that is held after it."""
    first, *later = zip(*(one["epochs"] for one in found), strict=True)
    assert sum(one["source_rows"] for one in first) == N
    assert [sum(one["hits"] for one in epoch) for epoch in (first, *later)] == [0, held, held]
    for epoch in later:
        assert sum(one["source_rows"] for one in epoch) == N - held


def test_the_stream_is_the_same_however_samples_are_kept(
    two: dict[str, list[Any]], once: dict[int, str | None]
) -> None:
    for name in ("inline", "read ahead", "apart", "3:1", "whole", "small", "large", "resident"):
        assert joined(two[name]) == once[len(two[name][0]["epochs"])], name


@pytest.mark.full
def test_the_stream_is_the_same_on_devices_and_of_windows(
    two_more: dict[str, list[Any]], once: dict[int, str | None], tokens: Path
) -> None:
    for name in ("one on a device", "devices"):
        assert joined(two_more[name]) == once[len(two_more[name][0]["epochs"])], name
    assert joined(two_more["tokens"]) == alone(_tokens(tokens), 3)


def test_every_rank_hits_what_all_of_the_host_hold(two: dict[str, list[Any]]) -> None:
    held = require_hits(two["inline"])
    assert 0.45 * N < held < 0.7 * N
    # Nothing is read ahead without readers: each sample is read by the one rank that it comes to first.
    require_read_once(two["inline"], held)
    held = require_hits(two["read ahead"])
    first = [one["epochs"][0] for one in two["read ahead"]]
    # What is read ahead while the loop comes to it is read twice: no more than a few pieces of 32.
    assert N <= sum(one["source_rows"] + one["filled_bytes"] // ROW for one in first) < 1.1 * N
    for epoch in (1, 2):
        later = [one["epochs"][epoch] for one in two["read ahead"]]
        assert sum(one["source_rows"] for one in later) == N - held
        assert sum(one["filled_bytes"] for one in later) == 0


def test_a_tier_tells_how_many_keep_it(two: dict[str, list[Any]]) -> None:
    assert [one["keepers"] for one in two["inline"]] == [[2], [2]]
    assert [one["keepers"] for one in two["apart"]] == [[1], [1]]


def test_without_sharing_each_rank_hits_its_own_part_only(two: dict[str, list[Any]]) -> None:
    assert 0.2 * N < require_hits(two["apart"]) < 0.3 * N


@pytest.mark.full
def test_three_ranks_hit_what_three_hold(path: Path, once: dict[int, str | None]) -> None:
    found = results(run_records, 3, path, HALF + 6 * RING, 3, {"readers": 0})
    assert joined(found) == once[3]
    held = require_hits(found)
    assert 0.45 * N < held < 0.8 * N
    require_read_once(found, held)


@pytest.mark.parametrize("name", ["inline", "3:1"])
def test_grants_of_all_ranks_stay_within_what_the_host_gives(two: dict[str, list[Any]], name: str) -> None:
    found = two[name]
    grants = [one["grants"] for one in found]
    assert sum(sum(one.values()) for one in grants) <= HELD // 2
    caches = [one["RAM cache"] for one in grants]
    assert sum(caches) - 2 <= found[0]["held"] * (ROW + 1) + 1 <= sum(caches)
    if name == "3:1":
        assert 2.5 < caches[0] / caches[1] < 4  # less each one's ring


def test_a_set_that_all_can_hold_together_is_kept_once_and_whole(two: dict[str, list[Any]]) -> None:
    for one in two["whole"]:
        assert one["held"] == N
        assert one["grants"]["RAM cache"] < 0.6 * N * ROW
        assert one["epochs"][2]["hits"] == one["epochs"][2]["rows"]
        assert one["epochs"][2]["source_rows"] == 0


def test_a_set_that_each_can_hold_is_kept_once_unless_it_is_small(two: dict[str, list[Any]]) -> None:
    for one in two["small"]:
        assert one["mode"][0] == "resident"
        assert one["grants"]["resident set"] == N * ROW
    for one in two["large"]:
        assert one["mode"][0] == "streaming"
        assert "kept once for the 2 ranks" in one["mode"][1]
        assert one["grants"]["RAM cache"] < 0.6 * N * ROW


def test_who_has_the_whole_set_in_memory_keeps_nothing_with_others(two: dict[str, list[Any]]) -> None:
    for one in two["resident"]:
        assert one["mode"][0] == "resident"
        assert one["grants"]["resident set"] == N * ROW


@pytest.mark.full
def test_who_has_the_whole_set_on_a_device_keeps_nothing_with_others(two_more: dict[str, list[Any]]) -> None:
    assert all(one["mode"][0] == "resident" for one in two_more["one on a device"])
    assert "RAM cache" not in two_more["one on a device"][0]["grants"]


@pytest.mark.full
def test_overlapping_windows_of_tokens_are_kept_together(two_more: dict[str, list[Any]], tokens: Path) -> None:
    num_samples = len(_tokens(tokens))
    assert 0.3 * num_samples < require_hits(two_more["tokens"], num_samples) < num_samples
    require_granted(two_more["tokens"], "tokens")


def _tokens(path: Path) -> TokenShards:
    return TokenShards.open(str(path), seq_len=64, stride=4)


@pytest.mark.full
def test_samples_of_a_dataset_of_ones_own_are_read_once_by_the_host(two_more: dict[str, list[Any]]) -> None:
    found = two_more["dataset"]
    assert all(one["held"] == N for one in found)
    assert sum(one["reads"] for one in found) == pytest.approx(N, abs=50)  # a few are looked at while it is built
    for one in found:
        assert one["epochs"][2]["hits"] == one["epochs"][2]["rows"]


@pytest.mark.full
def test_ranks_with_devices_have_pools_of_their_own_and_one_cache_behind_them(
    two_more: dict[str, list[Any]],
) -> None:
    (held,) = {one["held"] for one in two_more["devices"]}
    assert 0.3 * N < held < N
    for one in two_more["devices"]:
        assert one["cached_bytes"] > 0
        last = one["epochs"][2]
        assert last["hits"] / last["rows"] > held / N  # what the pool has comes on top


def test_ranks_of_the_lanes_order_keep_their_own_samples(two: dict[str, list[Any]]) -> None:
    for one in two["lanes"]:
        assert one["cached_bytes"] == 0
        assert one["epochs"][1]["hits"] > 0


def test_memory_of_all_ranks_is_what_they_were_granted(two: dict[str, list[Any]]) -> None:
    for name in ("inline", "whole", "large"):
        require_granted(two[name], name)
    assert all(one["cached_bytes"] == 0 for one in two["apart"])


def test_a_fork_of_a_rank_reads_by_itself_and_meets_nobody(two: dict[str, list[Any]]) -> None:
    assert two["fork"] == [True, True]


@pytest.mark.full
def test_each_host_keeps_its_own(path: Path, once: dict[int, str | None]) -> None:
    hosts = ["b", "a", "b", "a"]
    found = results(run_records, 4, path, HELD, 2, {"readers": 0}, hosts=hosts)
    assert joined(found) == once[2]
    (held,) = {one["held"] for one in found}
    for host in "ab":
        there = [one for one, where in zip(found, hosts, strict=True) if where == host]
        # A host has read half of the set in the first epoch: of what it has room for, half is there in the second.
        assert sum(one["epochs"][1]["hits"] for one in there) == pytest.approx(held / 4, rel=0.15)


def _keep_going(path: Path, available: int, dies: int) -> list[int] | None:
    """Serve two epochs, without a word to the other ranks; one is killed in the midst of the first."""
    dist.init_process_group("gloo")
    ranks = context()
    with host_of(available), loader_of(records(path), ranks, readers=1) as loader:
        dist.barrier()
        ids = []
        for epoch in range(2):
            for step, batch in enumerate(loader.epoch(epoch)):
                if ranks.rank == dies and step == 40:
                    os.kill(os.getpid(), signal.SIGKILL)
                require_rows(batch["id"], batch["data"])
                ids += batch["id"].tolist()
                time.sleep(0.001)
    return ids


@pytest.mark.parametrize("dies", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_rank_that_is_killed_mid_epoch_leaves_the_others_their_cache_and_their_rows(path: Path, dies: int) -> None:
    ended = run_ranks(_keep_going, 3, path, HALF + 6 * RING, dies, init=False, finalize=False)
    assert ended[dies].status == -signal.SIGKILL
    whole = _ids(path, 2)
    for rank in ended:
        if rank.rank != dies:
            assert rank.error is None, told(ended)
            assert rank.result == whole[rank.rank]


def _ids(path: Path, epochs: int) -> list[list[int]]:
    """Return what each of three ranks is to get."""
    found: list[list[int]] = [[], [], []]
    options: dict[str, Any] = {"batch_size": BATCH, "device": "cpu", "mode": "streaming", "sample_cache": False}
    with Loader(records(path), **options) as loader:
        for epoch in range(epochs):
            for batch in loader.epoch(epoch):
                for rank, ids in enumerate(batch["id"].chunk(3)):
                    found[rank] += ids.tolist()
    return found


def _failing(paths: dict[str, list[Path]], available: int) -> dict[str, str]:
    """Build loaders that not all ranks can build, and return what each attempt said."""
    ranks, said = context(), {}
    for what, each in paths.items():
        options = {"prefetch": 500} if what == "prefetch" and ranks.rank == 1 else {}
        try:
            with host_of(available):
                loader_of(records(each[ranks.rank]), ranks, **options).close()
        except Exception as error:  # noqa: BLE001 - which one it is, is looked at
            said[what] = f"{type(error).__name__}: {error}"
    with host_of(available), loader_of(records(paths["prefetch"][0]), ranks) as loader:
        said["after all"] = str(tell(loader, 1)["held"])
    return said


@pytest.mark.full
def test_a_rank_with_other_samples_or_no_loader_is_named_on_all_and_keeps_nobody_waiting(
    path: Path, tmp_path: Path
) -> None:
    short = write_records(tmp_path, num_rows=N - 48, name="short.bin")
    other = write_records(tmp_path, salt=7, name="other.bin")
    paths = {"length": [path, short, path], "content": [path, other, path], "prefetch": [path] * 3}
    found = results(_failing, 3, paths, 3_000_000)
    for said in found:
        assert said["length"].startswith("ClusterError: ")
        assert "the number of samples is 5,952 on here/1; 6,000 on here/0, here/2" in said["length"]
        assert "the data is" in said["content"]
        assert "on here/1; " in said["content"]
        assert "cluster.share_host_cache=false" in said["content"]
        assert int(said["after all"]) > 0
    assert found[1]["prefetch"].startswith("StagingError: loader.prefetch=500")
    for said in (found[0], found[2]):
        assert said["prefetch"].startswith("ClusterError: a loader could not be built on all ranks: here/1: StagingErr")


REFUSALS = ((0, "Listener"), (0, "memory_file"), (0, "SharedMemory"), (1, "Line"), (1, "SharedMemory"))


def _refused(path: Path, available: int) -> list[dict[str, Any]]:
    """Serve records while something is refused on one of two ranks."""
    ranks, found = context(), []

    def refuse(*_: Any) -> int:
        raise OSError("refused by this test")

    for who, name in REFUSALS:
        module = host_sharing if name == "Listener" else host_joining
        patched = patch.object(module, name, refuse if ranks.rank == who else getattr(module, name))
        with patched, host_of(available), loader_of(records(path), ranks, readers=1) as loader:
            found.append(tell(loader, 2))
    return found


@pytest.mark.full
def test_where_memory_is_refused_all_ranks_of_the_host_keep_their_own_aloud(
    path: Path, once: dict[int, str | None]
) -> None:
    ended = run_ranks(_refused, 2, path, HELD, finalize=False)
    assert all(rank.status == 0 for rank in ended), told(ended)
    for one, other in zip(ended[0].result, ended[1].result, strict=True):
        assert joined([one, other]) == once[2]
        assert 0.2 * N < one["held"] == other["held"] < 0.3 * N
    assert ended[0].said.count("WARNING the 2 ranks of this host keep a RAM cache each") == len(REFUSALS)
    assert ended[0].said.count("refused by this test") >= len(REFUSALS)
    assert "WARNING" not in ended[1].said


def test_memory_is_split_by_shares_where_the_host_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_budget, "probe_host", lambda: HostMemory(8 << 30, 1 << 30, "host", None))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    config = LoaderConfig(batch_size=1, ram_max_usage=0.5)
    known = RunContext(1, 3, (3, 1, 4), host="a", co_hosted=(0, 1))
    assert host_budget.host_budget(config, None, 0, known).share.num_bytes == 1 << 27
    assert host_budget.host_budget(config, None, 0, RunContext(1, 3)).share.num_bytes == 1 << 27
    assert host_budget.host_budget(config, None, 0, RunContext(1, 3, co_hosted=(1,))).share.num_bytes == 1 << 29
