"""The ways to serve of ``job=verify``: each is what its name says, for every rank.

White box: the pool and the device that each rank has are looked at.
"""

import pytest

from flodl_pipe.config.compose import load_config
from flodl_pipe.jobs.verify_combinations import WAYS, Setting, settings
from flodl_pipe.jobs.verify_possible import possible_settings
from flodl_pipe.jobs.verify_ranks import Ranks
from flodl_pipe.jobs.verify_ways import Sizes, Subject, idle_tier, sizes_of

MIB = 1 << 20
JOB = ("job=verify", "reports.progress=false")


@pytest.fixture(scope="module")
def subject():
    config = load_config("cifar10", *JOB)
    return Subject(config, 64, sizes_of(config))


def read_twice(ranks, num_steps):
    """Read as many steps of two epochs; return the rows that the last rank's tiers had and were asked for."""
    for epoch in range(2):
        iterators = [loader.epoch(epoch) for loader in ranks.loaders]
        for _ in range(num_steps):
            for iterator in iterators:
                next(iterator)
        del iterators
    return {tier.name: (tier.num_hits, tier.num_rows) for tier in ranks.loaders[-1].tiers()}


def test_sizes_are_those_of_one_rank(subject):
    assert subject.sizes.set_bytes == 2000 * 3073
    assert subject.sizes.row_bytes == 3073
    assert subject.sizes.max_rows == subject.config.loader.batch_size


def test_a_pool_holds_half_of_a_set_in_whole_slabs():
    assert Sizes(set_bytes=10 * MIB, row_bytes=1024).pool_bytes == 5 * MIB
    assert Sizes(set_bytes=3 * MIB, row_bytes=1024).pool_bytes == 1 * MIB
    assert Sizes(set_bytes=MIB + 1024, row_bytes=1024).pool_bytes == MIB
    assert Sizes(set_bytes=MIB // 2, row_bytes=1024).pool_bytes == MIB // 2
    assert Sizes().pool_bytes == 0


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_another_section(way, subject):
    section = subject.at(Setting(way, 1), 0).loader
    assert (section.device == "simulated") == (way in ("device", "device pool", "uploaded"))
    assert (section.mode == "resident") == (way in ("resident", "device"))
    assert section.sample_cache == (way in ("cached", "uploaded"))
    assert section.disk_stage == (3_073_000 if way == "disk" else 0)
    assert section.vram_pool == (way in ("device", "device pool"))
    assert (section.readers, section.global_batch_size) == (1, 64)


@pytest.mark.parametrize("ratios", [(1,), (1, 1, 1), (5, 1), (1,) * 8])
def test_the_pool_of_every_rank_holds_a_part_of_the_set(ratios, subject):
    with Ranks(subject, Setting("device pool", 0, ratios)) as ranks:
        read_twice(ranks, 2)
        for loader in ranks.loaders:
            pool = loader._engine.side.pool
            assert 600 < pool.capacity_rows < 1400
        devices = {id(loader._engine.side.device) for loader in ranks.loaders}
    assert len(devices) == len(ratios)


@pytest.mark.parametrize(
    ("way", "tier", "least", "most"),
    [("disk", "disk stage", 0.2, 0.8), ("device pool", "sample pool", 0.1, 0.8), ("cached", "RAM cache", 0.4, 1.0)],
)
def test_what_is_kept_is_served_again(way, tier, least, most, subject):
    with Ranks(subject, Setting(way, 0)) as ranks:
        hits, rows = read_twice(ranks, 31)[tier]
    assert least < 2 * hits / rows <= 2 * most


def test_a_device_holds_the_whole_set(subject):
    with Ranks(subject, Setting("device", 0, (1, 1))) as ranks:
        read_twice(ranks, 4)
        assert all(loader.is_resident and loader.is_loaded for loader in ranks.loaders)


def test_devices_are_emptied_when_ranks_end(subject):
    with Ranks(subject, Setting("device pool", 1, (1, 1))) as ranks:
        read_twice(ranks, 3)
        devices = [loader._engine.side.device for loader in ranks.loaders]
        assert all(device.allocated_bytes for device in devices)
    assert [device.allocated_bytes + device.kept_bytes for device in devices] == [0, 0]


def test_a_way_that_would_keep_nothing_is_refused_with_the_reason(subject):
    assert all(idle_tier(subject, Setting(way)) is None for way in WAYS)
    config = load_config("olmo_shards", *JOB, "loader.ram_max_usage=0")
    told = idle_tier(Subject(config, 32, sizes_of(config)), Setting("cached", 1))
    assert told.startswith("cached: 0 B of the host grant is left for it")
    stream = load_config("text_stream", *JOB)
    why = idle_tier(Subject(stream, 64, sizes_of(stream)), Setting("disk"))
    assert why == "disk: a stream has no index, so no memory tier can hold its samples"


def test_a_pool_that_is_switched_off_is_told(subject, monkeypatch):
    monkeypatch.setenv("FLODL_VRAM_POOL", "off")
    possible, refused = possible_settings(subject, settings(0))
    assert {setting.way for _, setting in possible} == set(WAYS) - {"device", "device pool"}
    assert refused == {
        "device pool: FLODL_VRAM_POOL=off in the environment": 27,
        "loader.mode=resident, but FLODL_VRAM_POOL=off in the environment; use loader.mode=auto or streaming": 27,
    }


def test_devices_that_do_not_fit_into_the_host_are_refused():
    large = Subject(None, 8, Sizes(set_bytes=4 * MIB, row_bytes=1024, host_bytes=9 * MIB))
    assert large.too_large(Setting("device", 1, (1, 1))) is None
    assert large.too_large(Setting("device pool", 1, (1, 1, 1))) is None
    assert large.too_large(Setting("resident", 1, (1,) * 8)) is None
    told = "simulated devices that keep 4.00 MiB for each of 3 ranks take host memory, and 9.00 MiB may be held"
    assert large.too_large(Setting("device", 1, (1, 1, 1))) == told
