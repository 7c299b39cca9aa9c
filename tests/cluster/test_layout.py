"""The described hosts, and ranks held against them."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.cluster.layout import Layout, Slot, exact, ratios_for, require_world
from flodl_pipe.config.cluster import ClusterConfig, RendezvousConfig
from flodl_pipe.config.cluster_host import HostConfig
from flodl_pipe.errors import ClusterError

BIG = HostConfig(name="big", devices=[0, "xpu:1"], ratios=[3, 0.1], gpu_ram_share=0.7, data_dir="/scratch")
SMALL = HostConfig(name="small", ratios=[2])


def cluster(*hosts, least=None, **keys):
    return ClusterConfig(hosts=list(hosts), rendezvous=RendezvousConfig(min_hosts=least), **keys)


def require(members, config):
    require_world(members, config, Layout.of(config))


def test_places_are_in_order_of_hosts_and_local_ranks():
    layout = Layout.of(cluster(BIG, SMALL, gpu_ram_share=0.5))
    assert layout.slots == (
        Slot("big", 0, "cuda:0", Fraction(3), 0.7, "/scratch"),
        Slot("big", 1, "xpu:1", Fraction(1, 10), 0.7, "/scratch"),
        Slot("small", 0, None, Fraction(2), 0.5, None),
    )
    assert layout.hosts == ("big", "small")
    assert layout.members == (("big", 0), ("big", 1), ("small", 0))
    assert layout.slot("big", 1).device == "xpu:1"


def test_no_hosts_are_no_layout():
    assert Layout.of(ClusterConfig(partition_ratios=[1, 2])) is None


@settings(deadline=None)
@given(st.decimals(min_value="0.000000000001", max_value=10**12, places=12))
def test_ratios_are_what_their_digits_say(ratio):
    assert exact(float(ratio)) == Fraction(repr(float(ratio)))
    assert exact(0.1) + exact(0.2) == exact(0.3)


def test_ratios_of_the_cluster_go_by_order_of_places():
    layout = Layout.of(cluster(HostConfig(name="b", devices=2), HostConfig(name="a"), partition_ratios=[3, 2.5, 1]))
    assert [slot.ratio for slot in layout.slots] == [3, Fraction(5, 2), 1]


def test_several_hosts_alike_are_numbered():
    layout = Layout.of(cluster(HostConfig(name="head"), HostConfig(name="node", count=2, devices=2)))
    assert layout.members == (("head", 0), ("node-0", 0), ("node-0", 1), ("node-1", 0), ("node-1", 1))
    assert layout.min_hosts == 3


def test_thousands_of_hosts_are_no_trouble():
    """What took each rank and each other one together would take hours here."""
    config = cluster(HostConfig(name="node", count=8192, devices=8, ratios=list(range(1, 9))))
    layout = Layout.of(config)
    members = layout.members
    require_world(members, config, layout)
    ratios = ratios_for(members, config, layout)
    assert len(ratios) == 65_536
    assert ratios[-1] == 8


@pytest.mark.parametrize(
    ("host", "local_rank", "message"),
    [
        (
            "bg",
            0,
            r"host 'bg' is not among those of cluster.hosts: big, small. Did you mean 'big'\? Set FLODL_PIPE_HOS",
        ),
        ("small.lan", 0, "Did you mean 'small'. Set FLODL_PIPE_HOST=small there"),
        ("zzz", 0, "Set FLODL_PIPE_HOST=NAME there to say which of them it is, or describe it in cluster.hosts"),
        ("big", 2, r"LOCAL_RANK 2 is beyond the 2 devices of host big in cluster.hosts; start 2 ranks there"),
        ("small", 1, r"LOCAL_RANK 1 is beyond the 1 device of host small .* \(--nproc-per-node 1\)"),
        ("big", -1, "LOCAL_RANK -1 is beyond"),
    ],
)
def test_a_place_that_is_not_there_is_refused(host, local_rank, message):
    with pytest.raises(ClusterError, match=message):
        Layout.of(cluster(BIG, SMALL)).slot(host, local_rank)


def test_many_hosts_are_not_all_named():
    layout = Layout.of(cluster(HostConfig(name="node", count=5000)))
    with pytest.raises(ClusterError, match=r"node-0, .*, node-7 and 4,992 more\."):
        layout.slot("elsewhere", 0)


def test_an_only_localhost_is_whichever_host():
    config = cluster(HostConfig(name="localhost", devices=2, ratios=[1, 2]))
    layout = Layout.of(config)
    assert layout.slot("some-box", 1).ratio == 2
    require_world([("some-box", 1), ("some-box", 0)], config, layout)
    assert ratios_for([("some-box", 1), ("some-box", 0)], config, layout) == (2, 1)
    with pytest.raises(ClusterError, match="one host, localhost, and ranks came from 2: here, there; describe each"):
        require_world([("here", 0), ("there", 0)], config, layout)


@settings(deadline=None)
@given(st.permutations([("big", 0), ("big", 1), ("small", 0)]))
def test_shares_belong_to_places_and_not_to_global_ranks(members):
    config = cluster(BIG, SMALL)
    require(members, config)
    ratios = dict(zip(members, ratios_for(members, config, Layout.of(config)), strict=True))
    assert ratios == {("big", 0): 3, ("big", 1): Fraction(1, 10), ("small", 0): 2}


@settings(deadline=None)
@given(st.permutations([("node2", 0), ("node2", 1), ("node10", 0), ("a", 0)]))
def test_without_hosts_ratios_go_by_names_of_hosts(members):
    config = ClusterConfig(partition_ratios=[4, 3, 2, 1])
    ratios = dict(zip(members, ratios_for(members, config, None), strict=True))
    assert ratios == {("a", 0): 4, ("node2", 0): 3, ("node2", 1): 2, ("node10", 0): 1}


def test_nothing_said_is_equal_shares():
    assert ratios_for([("a", 0), ("b", 0)], ClusterConfig(), None) == (1, 1)
    require_world([("a", 0), ("b", 0), ("b", 1)], ClusterConfig(), None)


@pytest.mark.parametrize(
    ("config", "members", "message"),
    [
        (
            ClusterConfig(partition_ratios=[3, 2, 1]),
            [("a", 0), ("a", 1)],
            "cluster.partition_ratios has 3 numbers, and there are 2 ranks; give one for each rank, start 3 ranks, or",
        ),
        (ClusterConfig(), [("a", 0), ("b", 0), ("a", 0)], "ranks 0, 2 all say that they are a/0.*set FLODL_PIPE_HOST"),
        (
            cluster(BIG, SMALL),
            [("big", 0), ("big", 1)],
            r"2 ranks, but cluster.hosts describes 3; missing: small/0 .*set cluster.rendezvous.min_hosts if fewer",
        ),
        (
            cluster(BIG, SMALL),
            [("big", 1), ("small", 0)],
            r"2 ranks, but cluster.hosts describes 3; missing: big/0 .*describe as many devices as there are ranks",
        ),
        (cluster(BIG, SMALL), [("big", 0), ("big", 1), ("big", 2)], "LOCAL_RANK 2 is beyond the 2 devices of host big"),
        (cluster(BIG, SMALL), [("big", 0), ("big", 1), ("sml", 0)], "host 'sml' is not among those"),
        (
            cluster(BIG, SMALL, HostConfig(name="c", ratios=[1]), least=2),
            [("c", 0)],
            r"1 host came \(c\), and cluster.rendezvous.min_hosts is 2; start more of big, small, c, or lower it",
        ),
        (cluster(BIG, SMALL, least=1), [("big", 1)], r"missing: big/0 \(host/local rank\)"),
        (cluster(BIG, SMALL, least=2), [("big", 0), ("big", 1)], "missing: small/0"),
    ],
)
def test_ranks_that_are_not_those_described_are_refused(config, members, message):
    with pytest.raises(ClusterError, match=message):
        require(members, config)


@pytest.mark.parametrize("members", [[("small", 0)], [("big", 1), ("big", 0)]])
def test_hosts_may_be_missing_where_fewer_are_enough(members):
    config = cluster(BIG, SMALL, least=1)
    require(members, config)
    assert len(ratios_for(members, config, Layout.of(config))) == len(members)
