"""What a plan foretells is what a run does: rows and bytes of every tier, over ten epochs, within 2 %.

Fills ahead race with readers, so the loop here stands still after its first batch until they are done; readers go ahead
as far as they may meanwhile, and the plan is told so. What they have ahead, six batches, is the least that figures may
differ by; draws with replacement are chance, and may differ by three standard deviations of what is counted.
"""

import gc
import math
import time

import numpy as np
import pytest

from flodl_pipe.jobs.plan import expected_work
from flodl_pipe.jobs.plan_held import Pace, allowances, held_tiers
from flodl_pipe.memory.ledger import process_ledger
from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.pipeline import build_loader, outline
from tests.jobs.composed import composed

N, ROW, EPOCHS, BATCH = 1000, 8192, 10, 20
SET_BYTES = N * ROW
MIB = 1 << 20
TOLERANCE = 0.02
# A loop that takes for ever beside reading that takes no time: readers are ahead by all of their depth.
STANDING = Pace(read_s=1e-9, loop_s=1e9, fill_bytes_per_s=1.0)

FIELDS = f"record_bytes: {ROW}, fields: {{x: {{offset: 0, dtype: uint8, shape: [{ROW}]}}}}"


def part(low, high, weight):
    source = f"{{kind: records, path: data.rec, {FIELDS}, subset: {{range: [{low}, {high}]}}}}"
    return f"{{source: {source}, weight: {weight}}}"


MIXTURE = (
    "source=mixture",
    f"source.parts={{a: {part(0, 300, 3)}, b: {part(300, N, 1)}}}",
    "source.epoch_samples=1000",
)
RECORDS = (
    *("source=records", "source.path=data.rec", f"source.record_bytes={ROW}"),
    f"source.fields={{x: {{offset: 0, dtype: uint8, shape: [{ROW}]}}}}",
)
WEIGHTED = (*RECORDS, "sampling.order=weighted", "sampling.weights=weights.npy", f"sampling.num_draws={N}")
ORDERS = {
    "permutation": RECORDS,
    "dropped": (*RECORDS, "loader.batch_size=19"),
    "augment": (*RECORDS, "sampling.augment=3"),
    "weighted": WEIGHTED,
    "subset": (*RECORDS, "source.subset={fraction: 0.8, seed: 3}"),
    "mixture": MIXTURE,
}
DISK = ("loader.disk_stage=3MiB", "loader.disk_stage_dir=.")
STREAMING = ("loader.mode=streaming", "loader.prefetch=4")


def simulated(size):
    return ("loader.device=simulated", f"loader.simulated.memory_bytes={size}", "loader.simulated.latency_s=0")


@pytest.fixture
def data(tmp_path):
    random = np.random.default_rng(0)
    random.integers(0, 256, SET_BYTES, dtype=np.uint8).tofile(tmp_path / "data.rec")
    np.save(tmp_path / "weights.npy", random.pareto(1.5, N) + 0.01)


@pytest.fixture
def host(monkeypatch):
    """Let this process hold so many bytes of host memory, none of which a loader of another test holds."""
    gc.collect()
    assert process_ledger().held_bytes == 0

    def allow(num_bytes):
        memory = HostMemory(1 << 36, 2 * num_bytes, "host")
        monkeypatch.setattr("flodl_pipe.loader.host_budget.probe_host", lambda: memory)

    return allow


def foretold(words, pace):
    """Return the plan of a run, and sums over its epochs, by name."""
    config = composed(*words, "job=plan", f"job.epochs={EPOCHS}")
    found = outline(config)
    allowed = None if found.device is None else allowances(found.device)
    held = held_tiers(found, allowed, pace)
    work = expected_work(found, held, EPOCHS)
    found.source.close()
    sums = {
        "rows": sum(one.num_rows for one in work),
        "pool": sum(one.pool_rows for one in work),
        "RAM": sum(one.ram_rows for one in work),
        "disk": sum(one.disk_rows for one in work),
        "source": sum(one.source_rows for one in work),
        "source bytes": sum(one.source_bytes + one.fill_bytes for one in work),
        "uploaded bytes": sum(one.link_bytes for one in work),
    }
    return held, sums


def happened(words, held):
    """Run it, and return the same sums."""
    with build_loader(composed(*words), num_epochs=EPOCHS) as loader:
        for epoch in range(EPOCHS):
            for number, _ in enumerate(loader.epoch(epoch)):
                if not number and not epoch:
                    await_fill(loader, held)
        tiers, traffic = {tier.name: tier for tier in loader.tiers()}, loader.traffic()
    assert not any(tier.off for tier in tiers.values())
    hits = {name: tier.num_hits for name, tier in tiers.items()}
    on_host = [tier for name, tier in tiers.items() if name != "sample pool"]
    return {
        "rows": sum(hits.values()) + traffic.source_rows,
        "pool": hits.get("sample pool", 0),
        "RAM": hits.get("RAM cache", hits.get("resident set", 0)),
        "disk": hits.get("disk stage", 0),
        "source": traffic.source_rows,
        "source bytes": traffic.source_bytes + sum(tier.filled_bytes for tier in on_host),
        "uploaded bytes": traffic.uploaded_bytes,
    }


def await_fill(loader, held):
    if not held.ram.ahead or not loader.num_workers:
        return
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        sizes = {tier.name: tier.held_bytes for tier in loader.tiers()}
        if sizes.get("RAM cache", sizes.get("resident set", 0)) >= held.ram.num_rows * ROW:
            return
        time.sleep(0.002)
    pytest.fail("the RAM cache was not filled")


def agree(words, host_bytes, host, pace=STANDING, *, but=()):
    """Plan, run and compare all figures but some."""
    host(host_bytes)
    words = (f"loader.batch_size={BATCH}", *words)
    words = tuple({word.partition("=")[0]: word for word in words}.values())
    held, expected = foretold(words, pace)
    real = happened(words, held)
    assert real["rows"] == expected["rows"] or but
    for name, value in expected.items():
        if name in but:
            continue
        scale = ROW if name.endswith("bytes") else 1
        spread = 3 * math.sqrt(value / scale) if "sampling.order=weighted" in words else 0
        allowed = max(TOLERANCE * value, 6 * BATCH * scale, spread * scale)
        assert real[name] == pytest.approx(value, abs=allowed), f"{name}: planned {expected}, happened {real}"
    return held, real


def only(*quick):
    """All orders; the quick suite has these."""
    return [pytest.param(order, marks=[] if order in quick else [pytest.mark.full]) for order in ORDERS]


@pytest.mark.parametrize("order", only("permutation"))
def test_a_part_of_the_set_in_ram(data, host, order):
    held, real = agree((*ORDERS[order], *STREAMING), 3 * MIB, host)
    assert 0 < held.ram.num_rows < N
    assert real["RAM"] > 0


@pytest.mark.full
@pytest.mark.parametrize("order", ["permutation", "mixture"])
def test_a_part_in_ram_and_a_part_on_disk(data, host, order):
    held, real = agree((*ORDERS[order], *STREAMING, *DISK), 3 * MIB, host)
    assert held.ram.num_rows > 0
    assert real["disk"] > 0


@pytest.mark.full
@pytest.mark.parametrize("order", ORDERS)
def test_a_part_in_the_pool(data, host, order):
    held, real = agree((*ORDERS[order], *STREAMING, *simulated("6656KiB"), "loader.sample_cache=false"), 64 * MIB, host)
    assert 0 < held.pool.num_rows < N
    assert real["pool"] > real["RAM"] == 0


@pytest.mark.parametrize(
    "order", ["mixture", *(pytest.param(order, marks=pytest.mark.full) for order in ("permutation", "weighted"))]
)
def test_parts_in_pool_ram_and_on_disk(data, host, order):
    held, _ = agree((*ORDERS[order], *STREAMING, *simulated("6656KiB"), *DISK), 3 * MIB, host)
    assert min(held.pool.num_rows, held.ram.num_rows, held.disk.num_rows) > 0


@pytest.mark.full
def test_a_pool_before_a_whole_ram_cache(data, host):
    held, real = agree((*RECORDS, *STREAMING, *simulated("6656KiB")), 64 * MIB, host)
    assert held.ram.num_rows == N
    assert min(real["pool"], real["RAM"]) > 0


@pytest.mark.full
def test_without_readers(data, host):
    agree((*RECORDS, *STREAMING, "loader.readers=0", *simulated("6656KiB"), *DISK), 3 * MIB, host)


@pytest.mark.parametrize("readers", [pytest.param(0, marks=pytest.mark.full), 1])
def test_resident_in_ram(data, host, readers):
    held, real = agree((*RECORDS, "loader.prefetch=4", f"loader.readers={readers}"), 64 * MIB, host)
    assert held.ram.in_one
    assert real["RAM"] > 0


@pytest.mark.full
@pytest.mark.parametrize("size", ["16MiB", "256MiB"])
def test_resident_on_the_device_without_readers(data, host, size):
    words = (*RECORDS, "loader.prefetch=4", "loader.readers=0", *simulated(size), "loader.sample_cache=false")
    # Rows that are read to be uploaded ahead count as the source's.
    held, real = agree(words, 64 * MIB, host, but=("source", "rows"))
    assert held.pool.in_one
    assert real["uploaded bytes"] < 1.2 * SET_BYTES
