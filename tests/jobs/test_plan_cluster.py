"""What a plan says of described hosts is what their ranks would do."""

import io
import sys
from fractions import Fraction

import numpy as np
import pytest

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.compose import load_config
from flodl_pipe.errors import ConfigError
from flodl_pipe.jobs.plan import main
from flodl_pipe.jobs.plan_cluster import cluster_sections
from flodl_pipe.jobs.plan_cluster_shares import Pace, best_shares, equal_shares, first_shares
from flodl_pipe.loader.lane_order import num_own
from flodl_pipe.pipeline import build_loader, outline
from flodl_pipe.reports.tables import Grid, print_sections
from flodl_pipe.sampling.lanes import LanesOrder
from flodl_pipe.sampling.steps import Steps
from tests.jobs.composed import composed

TWO_HOSTS = "cluster.hosts=[{name: big, devices: 2, ratios: [3, 2]}, {name: small, devices: 1, ratios: [1]}]"
WAYS = ("Uniform order, a RAM cache for each rank", "Uniform order, one RAM cache for each host", "Lanes order")
ABSENT = (
    *("source.seq_len=1024", "source.if_missing=sample", "loader.batch_size=10"),
    *("job=plan", "job.num_samples=10_000", "job.sample_bytes=1000"),
)


def absent(*overrides):
    """Plan for data that is not there."""
    return cluster_sections(composed(*ABSENT, *overrides), None)


def by_title(sections):
    return {one.title.removesuffix(" (as configured)"): one for one in sections}


def cells(grid):
    """The lines of a grid by their first cell, as dictionaries by column."""
    assert isinstance(grid, Grid)
    names = [name.replace("\n", " ") for name in grid.header]
    return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in grid.rows}


def values(sections, title):
    return dict(by_title(sections)[title].rows)


def printed(sections, monkeypatch, width=80):
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    print_sections(sections, out)
    return out.getvalue()


def test_it_stands_beside_the_plan_of_this_machine(table, config):
    _, rows = table(main, config("job=plan", TWO_HOSTS, "loader.global_batch_size=12"))
    assert rows["planned as"].startswith("one rank that runs alone")
    assert rows["world"] == "3 ranks on 2 hosts"
    assert rows["data"] == "124 samples of 18 B, from the source"
    assert rows["kind"] == "token_shards"


def test_without_described_hosts_nothing_is_added(table, config):
    _, rows = table(main, config("job=plan"))
    assert not {"planned as", "world"} & set(rows)


@pytest.mark.parametrize("drop_last", ["true", "false", "pad"])
@pytest.mark.parametrize("order", ["uniform", "lanes"])
@pytest.mark.parametrize("batch", ["loader.batch_size=4", "loader.global_batch_size=61"])
def test_ranks_take_what_their_loaders_take(config, drop_last, order, batch):
    given = (TWO_HOSTS, batch, f"sampling.drop_last={drop_last}", f"sampling.order={order}")
    cfg = config("job=plan", *given)
    sections = planned(cfg)
    total = {}
    for rank, host in enumerate(("big", "big", "small")):
        context = RunContext(rank, 3, (3, 2, 1), host=host)
        with build_loader(cfg, context=context) as loader:
            rows = [len(batch["input"]) for batch in loader.epoch(0)]
            assert values(sections, "Cluster")["steps an epoch"] == str(len(rows))
            total[host] = total.get(host, 0) + sum(rows)
            first = rows[0]
        if host == "small":
            assert f"small: {first} rows a step, {sum(rows)} an epoch" in values(sections, "Ranks")["2"]
    delivered = cells(by_title(sections)["Delivered in an epoch"])
    assert {host: int(line["rows a host"]) for host, line in delivered.items()} == total


def planned(cfg):
    found = outline(cfg)
    try:
        return cluster_sections(cfg, found)
    finally:
        found.source.close()


def test_the_global_batch_is_that_of_the_described_world():
    rows = values(absent("cluster.hosts=[{name: a, devices: 8, count: 4}]"), "Cluster")
    assert rows["global batch"].startswith("320 rows (loader.batch_size), 10 rows x 32 ranks")
    assert rows["steps an epoch"] == "31"
    assert rows["data"] == (
        "10,000 samples of 1000 B, as job.num_samples and job.sample_bytes say; no data was looked at"
    )


def test_what_a_run_refuses_is_refused(config):
    hosts = "cluster.hosts=[{name: a, devices: 8, count: 8}]"
    with pytest.raises(ConfigError, match=r"48 is smaller than the 64 ranks of cluster\.hosts"):
        absent(hosts, "loader.global_batch_size=48")
    with pytest.raises(ConfigError, match="an epoch would have no batch"):
        absent(hosts, "loader.batch_size=200")
    with pytest.raises(ConfigError, match=r"5 rows are fewer than the first share"):
        absent(hosts, "cluster.balance=auto", "cluster.max_rows=5", "job.samples_per_s=1")
    with pytest.raises(ConfigError, match="has to look at them"):
        absent(hosts, "sampling.order=bucketed")


def test_lanes_find_as_many_times_more_as_there_are_ranks():
    # A quarter of the samples fits in the memory of a host, an eighth in that of each of its two ranks.
    given = ("cluster.hosts=[{name: a, devices: 2, count: 4}]", "loader.ram_max_usage=0.5")
    found = by_title(absent(*given, "job.host_ram=5_005_000", "sampling.drop_last=false"))  # 2,500 rows of 1,001 bytes
    own, shared, lanes = (cells(found[title])["a-0 .. a-3"] for title in WAYS)
    assert [float(one["end %"]) for one in (own, shared, lanes)] == [12.5, 25.0, 100.0]
    assert {one["first %"] for one in (own, shared, lanes)} == {"0.0"}
    assert lanes["then %"] == lanes["end %"]
    assert lanes["reads first"] == "2.38 MiB"  # each sample of the host's lanes once, whatever is read ahead


@pytest.mark.parametrize(("ram", "share"), [("20_020_000", 100.0), ("40MB", 100.0)])
def test_a_host_that_holds_everything_reads_nothing_in_the_end(ram, share):
    found = by_title(absent("cluster.hosts=[{name: a, devices: 4}]", f"job.host_ram={ram}"))
    line = cells(found["Uniform order, one RAM cache for each host"])["a"]
    assert (float(line["end %"]), line["reads end"]) == (share, "0")


def test_memory_of_a_rank_follows_its_share():
    hosts = "cluster.hosts=[{name: a, devices: 2, ratios: [3, 1]}]"
    found = by_title(absent(hosts, "job.host_ram=8_008_000"))  # 4,000 rows: 3,000 and 1,000
    own = cells(found["Uniform order, a RAM cache for each rank"])["a"]
    assert float(own["end %"]) == pytest.approx(100 * (0.75 * 0.3 + 0.25 * 0.1), abs=0.05)
    assert float(cells(found["Lanes order"])["a"]["end %"]) == pytest.approx(40, abs=0.05)


def test_under_lanes_a_rank_has_the_samples_that_the_plan_counts():
    ratios, num_samples = (3, 2, 1), 1000
    order = LanesOrder(num_samples, 42, num_lanes=48, rows=1)
    steps = Steps(num_samples, 48, True, world_size=3, ratios=ratios)
    shares = first_shares(48, tuple(map(Fraction, ratios)), 1)
    for rank, share in enumerate(shares):
        assert abs(num_own(order, steps.of_rank(rank), num_samples) - num_samples * share / 48) < share


def test_tiers_of_three_kinds_add_up():
    given = ("cluster.hosts=[{name: a, devices: 2}]", "job.host_ram=4_004_000", "job.device_memory=1_112_000")
    found = by_title(absent(*given, "loader.disk_stage=504_000"))
    line = cells(found["Uniform order, one RAM cache for each host"])["a"]
    assert [float(line[f"{tier} %"]) for tier in ("pool", "RAM", "disk")] == [10.0, 20.0, 5.0]
    assert float(line["end %"]) == 35.0
    # A pool and a disk stage that hold a part keep what is read anyway: half of it in an epoch.
    assert float(line["then %"]) == pytest.approx(20 + 15 / 2, abs=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_rates_are_those_of_ranks_that_keep_what_they_read(seed):
    num_samples, held, share = 4000, 1000, 0.25
    rng = np.random.default_rng(seed)
    there, found = np.zeros(num_samples, bool), []
    for _ in range(2):
        asked = rng.permutation(num_samples)[: int(num_samples * share)]
        found.append(there[asked].mean())
        there[asked[asked < held]] = True
    line = cells(
        by_title(
            absent(
                *("cluster.hosts=[{name: a, devices: 4}]", "job.num_samples=4000", "loader.readers=0"),
                *("loader.ram_max_usage=0.5", "job.host_ram=8_008_000"),
            )
        )["Uniform order, a RAM cache for each rank"]
    )["a"]
    assert float(line["first %"]) == found[0] == 0
    assert float(line["then %"]) == pytest.approx(100 * found[1], abs=3)
    assert float(line["end %"]) == 25.0


def simulated_idle(rows, speeds, noise, overhead_s):
    rng = np.random.default_rng(7)
    busy = (overhead_s + np.array(rows) / np.array(speeds)) * rng.lognormal(0, noise, (4000, len(rows)))
    return float((1 - busy.mean(axis=1) / busy.max(axis=1)).mean())


@pytest.mark.parametrize(("speeds", "measured"), [((1000, 1000, 2000), 0.183), ((500, 1000, 2000, 4000), 0.52)])
def test_idle_is_what_a_simulation_of_steps_finds(speeds, measured):
    global_batch = 96 * len(speeds)
    equal = Pace(equal_shares(global_batch, len(speeds), 1), speeds, 0.004)
    assert equal.mean_idle == pytest.approx(simulated_idle(equal.rows, speeds, 0.0, 0.004))
    # Noise, 5 % here, makes the slowest slower: two to four ranks that are alike wait for each other.
    assert simulated_idle(equal.rows, speeds, 0.05, 0.004) == pytest.approx(measured, abs=0.01)
    assert equal.mean_idle == pytest.approx(measured, abs=0.025)
    best, is_bound = best_shares(speeds, equal.rows, unit=1, max_rows=None)
    assert sum(best) == global_batch
    assert not is_bound
    assert Pace(best, speeds, 0.004).mean_idle < 0.02


def test_idle_of_each_way_to_share_is_told():
    sections = absent(
        "cluster.hosts=[{name: a, devices: 2, ratios: [3, 2]}, {name: b, ratios: [1]}]",
        *("loader.global_batch_size=48", "job.samples_per_s=[100, 100, 200]"),
    )
    step = cells(by_title(sections)["Step"])
    assert step["equal"]["a step"] == "160.0 ms"
    assert step["equal"]["idle % mean"] == "16.7"
    assert step["ratios (as configured)"]["a step"] == "240.0 ms"
    assert step["balance=auto"] == {
        "a step": "120.0 ms",
        "idle % mean": "0.0",
        "idle % most": "0.0",
        "samples a second": "400",
        "an epoch": "24.96 s",
    }
    idle = cells(by_title(sections)["Idle, waiting for the slowest rank"])
    assert [line["auto rows"] for line in idle.values()] == ["12", "12", "24"]
    assert list(idle) == ["a /0", "a /1", "b"]


def test_with_balance_auto_the_shares_are_those_it_ends_with():
    sections = absent("cluster.hosts=[{name: a}, {name: b}]", "cluster.balance=auto", "job.samples_per_s=[1, 3]")
    assert values(sections, "Cluster")["shares"].startswith("equal at first, then as measured (cluster.balance=auto)")
    assert values(sections, "Ranks")["0"].startswith("a: 5 rows a step")
    assert values(sections, "Ranks")["1"].startswith("b: 15 rows a step")


def test_hosts_of_two_entries_are_two_lines():
    assert set(values(absent("cluster.hosts=[{name: a, count: 2}, {name: b, count: 2}]"), "Ranks")) == {
        "0 .. 1",
        "2 .. 3",
    }


def test_a_bound_that_keeps_a_rank_waiting_is_told():
    given = ("cluster.hosts=[{name: a}, {name: b}]", "cluster.balance=auto", "job.samples_per_s=[1, 9]")
    assert values(absent(*given, "cluster.max_rows=12"), "Notes on the cluster")["cluster.max_rows"].startswith("12: ")
    assert "Notes on the cluster" not in by_title(absent(*given))


def test_what_must_be_read_for_no_rank_to_wait():
    given = ("cluster.hosts=[{name: a}, {name: b}]", "job.samples_per_s=1024", "job.sample_bytes=1KiB")
    sections = absent(*given, "job.read_bytes_per_s=[1MiB, 512KiB]")
    rates = cells(by_title(sections)["Bytes a second that hosts read where no rank waits"])
    assert rates["a"] == {"first epoch": "1.00 MiB", "can read": "1.00 MiB"}
    limits = values(sections, "Reading by the cluster")["epoch 1"]
    assert limits.startswith(
        "reading limits: b would have to read 1.00 MiB/s and can read 512 KiB/s; a step takes 19.5"
    )
    assert "2.0 x as long" in limits
    assert values(absent(*given, "job.read_bytes_per_s=2MiB"), "Reading by the cluster")["epoch 1"].startswith(
        "reading keeps up"
    )
    told = by_title(absent("cluster.hosts=[{name: a}]", "job.sample_bytes=1KiB"))
    assert cells(told["Bytes that each host reads in a step"])["a"] == {"first epoch": "10.0 KiB"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("job.samples_per_s=[1,2,3]", r"or a list of 2 .* or 6 .* or 12 \(for each rank\), in order; got a list of 3"),
        ("job.device_memory=[1GB,2GB,3GB]", "got a list of 3"),
        ("job.host_ram=[1GB,2GB,3GB]", r"or a list of 2 .* or 4 \(for each host\), in order; got a list of 3"),
        ("job.read_bytes_per_s=[1GB]", "got a list of 1"),
        ("job.samples_per_s=0", "must be a number above 0, or a list of such numbers, got 0"),
        ("job.samples_per_s=[1,nan]", "got nan"),
        ("job.samples_per_s=[1,-2]", "got -2"),
        ("job.samples_per_s=[]", "got an empty list"),
        ("job.samples_per_s=fast", "got 'fast'"),
        ("job.host_ram=8G", "ambiguous"),
        ("job.host_ram=0", "at least 1"),
        ("job.sample_bytes=null", r"sample_bytes: must be set too: num_samples stands in"),
        ("job.num_samples=null", r"num_samples: must be set too: sample_bytes stands in"),
        ("job.step_overhead_s=-1", "must be at least 0"),
    ],
)
def test_numbers_that_are_none_of_the_hosts_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        absent("cluster.hosts=[{name: a, devices: 4, count: 2}, {name: b, devices: 2, count: 2}]", given)


def test_lists_are_read_by_their_length():
    hosts = "cluster.hosts=[{name: a, devices: 2, count: 2}, {name: b, devices: 1}]"
    speeds = {
        "[4,2]": ["a-0 .. a-1", "b"],
        "[4,3,2]": ["a-0 .. a-1 /0", "a-0 .. a-1 /1", "b"],
        "[5,4,3,2,1]": ["a-0 /0", "a-0 /1", "a-1 /0", "a-1 /1", "b"],
    }
    for given, lines in speeds.items():
        sections = absent(hosts, f"job.samples_per_s={given}", "loader.global_batch_size=50")
        idle = by_title(sections)["Idle, waiting for the slowest rank"]
        assert [row[0] for row in idle.rows if row[2] == "10"] == lines


def test_keys_without_hosts_are_told(table, config):
    _, rows = table(main, config("job=plan", "job.host_ram=8GiB"))
    assert rows["job.host_ram"].endswith("no effect: cluster.hosts describes no host")
    with pytest.raises(ConfigError, match=r"planned for described hosts, and cluster\.hosts is empty"):
        main(composed(*ABSENT))


@pytest.mark.parametrize("count", [1, 2, 8, pytest.param(1024, marks=pytest.mark.full)])
def test_it_fits_into_80_columns(count, monkeypatch):
    name = "a-host-with-a-name-that-is-long"
    hosts = f"cluster.hosts=[{{name: {name}, devices: 8, count: {count}}}, {{name: b, devices: 4}}]"
    sections = absent(
        *(hosts, "job.num_samples=1e12", "job.host_ram=1TiB", "job.device_memory=[60GiB,20GiB]"),
        *("loader.disk_stage=1TiB", "job.samples_per_s=[2000,500]", "job.read_bytes_per_s=[2GB,999MB]"),
    )
    text = printed(sections, monkeypatch)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert text.count("\n") < 100


def test_a_cluster_16_times_as_large_takes_16_times_the_work():
    def planned_in_calls(count):
        config = composed(
            *(*ABSENT, f"cluster.hosts=[{{name: a, devices: 8, count: {count}}}]", "job.num_samples=1e12"),
            *("job.host_ram=1TiB", "job.samples_per_s=[1,2,3,4,5,6,7,8]", "sampling.drop_last=false"),
        )
        calls = []
        sys.setprofile(lambda frame, event, _: calls.append(None) if event == "call" else None)
        try:
            return cluster_sections(config, None), len(calls)
        finally:
            sys.setprofile(None)

    _, few = planned_in_calls(8)
    sections, many = planned_in_calls(128)
    assert many < 2 * 16 * few
    assert values(sections, "Cluster")["world"] == "1,024 ranks on 128 hosts"
    assert values(sections, "Cluster")["steps an epoch"] == "97,656,250"


def test_many_different_hosts_are_few_lines():
    ratios = ",".join(str(1 + rank % 7) for rank in range(200))
    sections = absent("cluster.hosts=[{name: a, count: 200}]", f"cluster.partition_ratios=[{ratios}]")
    ranks = by_title(sections)["Ranks"].rows
    assert len(ranks) == 12
    assert ranks[-2] == ("...", "189 hosts more")
    assert values(sections, "Cluster")["shares"] == "by cluster.partition_ratios"


def test_a_set_in_memory_reads_nothing(config, tmp_path):
    cfg = load_config("mnist", "job=plan", "cluster.hosts=[{name: a, devices: 2}]", "source.if_missing=sample")
    sections = by_title(planned(cfg))
    assert dict(sections["Kept by the cluster"].rows)["all"].startswith("not told: every rank has the whole set")
    assert "Reading by the cluster" not in sections


def test_a_stream_has_shares_and_no_epochs(config):
    cfg = load_config("text_stream", "job=plan", "cluster.hosts=[{name: a, devices: 2}]", "source.if_missing=sample")
    sections = by_title(planned(cfg))
    assert dict(sections["Ranks"].rows)["0 .. 1"] == "a: 2 x 32 rows"
    assert "Delivered in an epoch" not in sections
