"""The ranks of a run as rows of a table."""

import io
from fractions import Fraction

from flodl_pipe.cluster.layout import Layout
from flodl_pipe.cluster.layout_table import layout_rows
from flodl_pipe.config.cluster import ClusterConfig
from flodl_pipe.config.cluster_host import HostConfig
from flodl_pipe.reports.tables import Section, print_sections


def test_each_rank_is_a_row():
    config = ClusterConfig(
        hosts=[HostConfig(name="big", devices=[0, "cpu"], ratios=[3, 2]), HostConfig(name="s", ratios=[1])]
    )
    layout = Layout.of(config)
    ratios = [slot.ratio for slot in layout.slots]
    assert layout_rows(layout.members, ratios, layout, 48) == (
        ("rank 0", "big/0 on cuda:0: 24 of 48 rows, 50.0 %"),
        ("rank 1", "big/1 on cpu: 16 of 48 rows, 33.3 %"),
        ("rank 2", "s/0: 8 of 48 rows, 16.7 %"),
    )


def test_rows_are_by_global_rank_and_may_be_unknown():
    members, ratios = [("b", 0), ("a", 0)], [Fraction(1, 3), Fraction(2, 3)]
    assert layout_rows(members, ratios) == (("rank 0", "b/0: 33.3 % of a step"), ("rank 1", "a/0: 66.7 % of a step"))


def test_of_many_ranks_hosts_alike_are_one_row():
    hosts = [
        HostConfig(name="node", count=128, devices=8),
        HostConfig(name="big", devices=2),
        HostConfig(name="rack", count=2, devices=1),
    ]
    layout = Layout.of(ClusterConfig(hosts=hosts))
    rows = layout_rows(layout.members, [slot.ratio for slot in layout.slots], layout, 1030)
    assert rows == (
        ("ranks 0 .. 1023", "node-0 .. node-127: 128 hosts of 8 ranks, 1 to 2 rows each, together 99.6 % of a step"),
        ("ranks 1024 .. 1025", "big: 2 ranks, 1 row each, together 0.2 % of a step"),
        ("ranks 1026 .. 1027", "rack-0 .. rack-1: 2 hosts of 1 rank, 1 row each, together 0.2 % of a step"),
    )


def test_the_table_fits_a_terminal_of_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    layout = Layout.of(ClusterConfig(hosts=[HostConfig(name="node", count=1024, devices=8)]))
    rows = layout_rows(layout.members, [slot.ratio for slot in layout.slots], layout, 1 << 20)
    page = io.StringIO()
    print_sections([Section("Ranks", rows)], page)
    lines = page.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(page.getvalue().split()) == (
        "Ranks ranks 0 .. 8191 node-0 .. node-1023: 1,024 hosts of 8 ranks, 128 rows each, together 100.0 % of a step"
    )
