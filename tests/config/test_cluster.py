"""Section cluster: what is refused, with its place; and the presets."""

import re

import pytest
import yaml
from pydantic import ValidationError

from flodl_pipe.config.cluster import ClusterConfig, RendezvousConfig
from flodl_pipe.config.cluster_host import HostConfig
from flodl_pipe.config.compose import load_config
from flodl_pipe.config.keys import key_names
from flodl_pipe.config.places import conf_dir, recipe_names
from flodl_pipe.errors import ConfigError

START = ("source.seq_len=8", "loader.batch_size=1")
PRESETS = sorted(file.stem for file in (conf_dir() / "cluster").glob("*.yaml"))
TWO = "{name: a, devices: 2}, {name: b}"


def one_problem(*words):
    with pytest.raises(ConfigError) as caught:
        load_config(*START, *words)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[]", r"must be a list of numbers above 0, such as \[3, 2, 1\], or null, got \[\]"),
        ("3", "must be a list .*, got 3"),
        ("[1, 0]", "must be numbers above 0, got 0 in the list; leave out a device that takes nothing"),
        ("[1, -2]", "above 0, got -2 in the list"),
        ("[1, -0.0]", "above 0, got -0.0 in the list"),
        ("[1, nan]", "above 0, got nan in the list"),
        ("[1, inf]", "must be numbers from 1e-12 to 1e12, got inf in the list; only proportions count"),
        ("[1, -inf]", "above 0, got -inf in the list"),
        ("[1, true]", "above 0, got true in the list"),
        ("[1, '2']", "above 0, got '2' in the list"),
        ("[1, null]", "above 0, got null in the list"),
        ("[1, [2]]", r"above 0, got \[2\] in the list"),
        (f"[1, {'9' * 400}]", "from 1e-12 to 1e12, got 9{57}... in the list"),
        ("[1, 1e-13]", "from 1e-12 to 1e12, got 1e-13 in the list"),
    ],
)
@pytest.mark.parametrize("place", ["command line", pytest.param("recipe", marks=pytest.mark.full)])
def test_ratios_are_numbers_above_zero(value, message, place, folder):
    if place == "recipe":
        value = value.replace("nan", ".nan").replace("-inf", "-.inf").replace("[1, inf]", "[1, .inf]")
        folder("recipes/mine.yaml", f"# @package _global_\ncluster:\n  timeout_s: 9.0\n  partition_ratios: {value}\n")
        problem = one_problem("+recipe=mine")
        assert problem.where == "recipes/mine.yaml:4"
    else:
        problem = one_problem(f"cluster.partition_ratios={value}")
        assert problem.where == f"command line: cluster.partition_ratios={value}"
    assert problem.key == "cluster.partition_ratios"
    assert re.search(message, problem.message), problem.message


@pytest.mark.parametrize(
    ("hosts", "more", "key", "message"),
    [
        ("{devices: 2}", "", "hosts[0].name", "required, but not set"),
        ("{name: -a}", "", "hosts[0].name", "must be a host's name: .*, got '-a'"),
        ("{name: a b}", "", "hosts[0].name", "got 'a b'"),
        ("{name: 12}", "", "hosts[0].name", "got 12; as text it is written '12'"),
        ("{name: a}, {name: b}, {name: a}", "", "hosts[2].name", r"'a' is the name of hosts\[0\] too; give each host"),
        ("{name: a, count: 3}, {name: a-1}", "", "hosts[1].name", r"'a-1' is the name of hosts\[0\] too"),
        (
            "{name: a, address: h}, {name: b, address: h}",
            "",
            "hosts[1].address",
            r"'h' is the address of hosts\[0\] too",
        ),
        ("{name: a, address: b}, {name: b}", "", "hosts[1].name", r"'b' is the address of hosts\[0\] too"),
        ("{name: a, count: 2, address: h}", "", "hosts[0].address", "'h' cannot be that of 2 hosts; leave it at null"),
        ("{name: a, address: 'h:29400'}", "", "hosts[0].address", "leave the port out, address: h; it is cluster.rend"),
        ("{name: a, address: 'tcp://h'}", "", "hosts[0].address", "got 'tcp://h'; leave out tcp://"),
        *(
            (
                f"{{name: a, address: '{address}'}}",
                "",
                "hosts[0].address",
                f"or IP address, got {re.escape(shown)}; {hint}",
            )
            for address, shown, hint in [
                ("...", "'...'", "an IPv4 address is four numbers from 0 to 255 without leading zeros: 10.0.0.1"),
                ("10.0.0.01", "'10.0.0.01'", "an IPv4 address is"),
                ("10.0.0.256", "'10.0.0.256'", "an IPv4 address is"),
                (":::", "':::'", "an IPv6 address is written like fd00::1, or fe80::1%eth0"),
                ("fe80::1::2", "'fe80::1::2'", "an IPv6 address is"),
                ("-x", "'-x'", "a host's name begins with a letter or digit"),
                ("a%b", "'a%b'", "a host's name .* has no %"),
            ]
        ),
        ("{name: 10.0.0.01}", "", "hosts[0].name", "'10.0.0.01' is where the others reach it, .*; an IPv4 address is"),
        ("{name: a}, {name: A}", "", "hosts[1].name", r"'A' is the name of hosts\[0\] too, written 'a' there; give"),
        (
            "{name: a, address: n.org}, {name: b, address: N.org}",
            "",
            "hosts[1].address",
            r"'N.org' is the address of hosts\[0\] too, written 'n.org' there",
        ),
        (
            "{name: a, address: 'FD00:0::1'}, {name: b, address: 'fd00::1'}",
            "",
            "hosts[1].address",
            r"'fd00::1' is the address of hosts\[0\] too, written 'FD00:0::1' there",
        ),
        ("{name: localhost}, {name: b}", "", "hosts[0].name", "localhost is each host to itself, and these are 2"),
        ("{name: localhost, count: 2}", "", "hosts[0].count", "2 with name localhost"),
        ("{name: a, interface: 'e th'}", "", "hosts[0].interface", "must be the name of a network interface.*'e th'"),
        ("{name: a, devices: 0}", "", "hosts[0].devices", "must be from 1 to 1024, got 0"),
        ("{name: a, devices: 2000}", "", "hosts[0].devices", "must be from 1 to 1024, got 2000"),
        ("{name: a, devices: true}", "", "hosts[0].devices", "must be how many there are, or a list.*got true"),
        ("{name: a, devices: []}", "", "hosts[0].devices", r"got \[\]"),
        ("{name: a, devices: [0, true]}", "", "hosts[0].devices", "got true in the list"),
        ("{name: a, devices: [-1]}", "", "hosts[0].devices", "got -1 in the list"),
        ("{name: a, devices: [gpu0]}", "", "hosts[0].devices", "got 'gpu0' in the list; did you mean 'cuda:0'"),
        (
            "{name: a, devices: [0, 1, 'cuda:0']}",
            "",
            "hosts[0].devices",
            "must name each device once, got cuda:0 2 tim",
        ),
        ("{name: a, devices: [cuda, 0]}", "", "hosts[0].devices", "got cuda:0 2 times; a device has one rank"),
        (
            "{name: a, devices: ['cuda:0', 'cuda:00']}",
            "",
            "hosts[0].devices",
            "'cuda:00' in the list; did you .*'cuda:0'",
        ),
        ("{name: a, devices: ['xpu:01']}", "", "hosts[0].devices", "'xpu:01' in the list; did you mean 'xpu:1'"),
        ("{name: a, devices: ['cuda:\u0660']}", "", "hosts[0].devices", "got 'cuda:\u0660' in the list"),
        ("{name: a, devices: [mps, mps]}", "", "hosts[0].devices", "got mps 2 times"),
        ("{name: a, devices: 2, ratios: [1]}", "", "hosts[0].ratios", "one number for each of the 2 devices of a, got"),
        ("{name: a, ratios: [0]}", "", "hosts[0].ratios", "must be numbers above 0, got 0"),
        ("{name: a, ratios: [1]}, {name: b}", "", "hosts[1].ratios", "must be set too: it is null for b and set for 1"),
        ("{name: a, gpu_ram_share: 50}", "", "hosts[0].gpu_ram_share", "must be at most 4.0, got 50"),
        ("{name: a, count: 0}", "", "hosts[0].count", "must be at least 1, got 0"),
        ("{name: a, count: 65536, devices: 2}", "", "hosts", "must have at most 65,536 devices together, got 131,072"),
        (
            TWO,
            "partition_ratios: [1, 1]",
            "partition_ratios",
            "one number for each of the 3 devices of the hosts, got 2",
        ),
        (
            "{name: a, ratios: [1]}",
            "partition_ratios: [1]",
            "partition_ratios",
            r"\[1\] is set, and so are ratios of ho",
        ),
        ("", "rendezvous: {min_hosts: 2}", "rendezvous.min_hosts", "2 has no meaning while no host is described"),
        (TWO, "rendezvous: {min_hosts: 3}", "rendezvous.min_hosts", "must be at most 2, the hosts .*, got 3"),
        (TWO, "rendezvous: {min_hosts: 0}", "rendezvous.min_hosts", "must be at least 1, got 0"),
        (
            TWO,
            "rendezvous: {min_hosts: 1, backend: static}",
            "rendezvous.min_hosts",
            "no meaning with backend=static, which needs all hosts; set backend=c10d",
        ),
        (TWO, "rendezvous: {id: a/b}", "rendezvous.id", "must be of letters, digits, .*, got 'a/b'"),
        (TWO, "rendezvous: {port: 0}", "rendezvous.port", "must be at least 1, got 0"),
        (TWO, "timeout_s: .inf", "timeout_s", "must be a finite number, got inf"),
        (TWO, "balance: atuo", "balance", "must be 'fixed' or 'auto', got 'atuo'. Did you mean 'auto'"),
        (TWO, "max_rows: 0", "max_rows", "must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_refused_at_its_line(hosts, more, key, message, folder):
    items = [item.strip(", ") for item in re.split(r"(?<=\}), ", hosts) if item]
    text = "# @package _global_\ncluster:\n  hosts:" + ("\n" if items else " []\n")
    text += "".join(f"    - {item}\n" for item in items) + (f"  {more}\n" if more else "")
    folder("recipes/mine.yaml", text)
    problem = one_problem("+recipe=mine")
    assert problem.key == f"cluster.{key}"
    assert re.search(message, problem.message), problem.message
    place = re.match(r"hosts\[(\d+)\]", key)
    line = 4 + int(place[1]) if place else 3 if key == "hosts" else 4 + len(items)
    assert problem.where == f"recipes/mine.yaml:{line}"


def test_a_global_batch_has_a_row_for_each_described_rank():
    words = ("loader.batch_size=4", "cluster.hosts=[{name: a, devices: 2}, {name: n, count: 3}]")
    problem = one_problem(*words, "loader.global_batch_size=4")
    assert problem.key == "loader.global_batch_size"
    assert problem.where == "command line: loader.global_batch_size=4"
    assert problem.message.startswith("4 is smaller than the 5 ranks of cluster.hosts")
    assert load_config(*START, *words, "loader.global_batch_size=5").cluster.num_ranks == 5


def test_all_faults_of_all_hosts_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        load_config(*START, "cluster.hosts=[{name: a, devices: 0, ratio: 3}, {nam: b}]", "cluster.balance=of")
    told = {problem.key: problem.message for problem in caught.value.problems}
    keys = ("balance", "hosts[0].devices", "hosts[0].ratio", "hosts[1].nam", "hosts[1].name")
    assert set(told) == {f"cluster.{key}" for key in keys}
    assert told["cluster.hosts[0].ratio"] == "unknown key. Did you mean 'ratios'?"
    assert all(problem.where.startswith("command line: cluster.") for problem in caught.value.problems)


def test_python_users_are_refused_likewise():
    with pytest.raises(ValidationError, match="must be numbers above 0, got true in the list"):
        ClusterConfig(partition_ratios=[True])
    with pytest.raises(ValidationError, match="one number for each of the 2 devices"):
        HostConfig(name="a", devices=[0, 1], ratios=[1])
    with pytest.raises(ValidationError, match="must be at most 1, the hosts that are described, got 2"):
        ClusterConfig(hosts=[HostConfig(name="a")], rendezvous=RendezvousConfig(min_hosts=2))


def test_what_may_be_said():
    host = HostConfig(name="a.b-c_d", address="fe80::1%eth0", devices=["cpu", "cpu", 3, "xpu:1"], ratios=[1, 0.5, 3, 2])
    assert host.device_names == ("cpu", "cpu", "cuda:3", "xpu:1")
    assert HostConfig(name="a", devices=2.0).device_names == (None, None)
    assert list(HostConfig(name="a", count=3).names()) == ["a-0", "a-1", "a-2"]
    cluster = ClusterConfig(hosts=[host, HostConfig(name="b", count=3, ratios=[1])])
    assert (cluster.num_hosts, cluster.num_ranks) == (4, 7)
    assert ClusterConfig(rendezvous=RendezvousConfig(min_hosts=1)).num_ranks is None


@pytest.mark.parametrize("address", ["10.0.0.1", "::1", "fe80::1%eth0", "::ffff:10.0.0.1", "3com.org", "a_b"])
def test_what_an_address_may_be(address):
    assert HostConfig(name="a", address=address).address == address


def test_a_number_is_a_hosts_name_and_no_address():
    assert HostConfig(name="7").name == "7"
    with pytest.raises(ValidationError, match="an IPv4 address is four numbers"):
        HostConfig(name="7", address="7")


def test_what_has_no_effect_is_noted():
    assert ClusterConfig().notes() == ()
    assert ClusterConfig(balance="auto", max_rows=9).notes() == ()
    assert ClusterConfig(max_rows=9, balance_every_steps=8).notes() == (
        ("balance_every_steps", "8, no effect: cluster.balance=fixed"),
        ("max_rows", "9, no effect: cluster.balance=fixed"),
    )


def test_a_host_is_changed_by_its_place_on_the_command_line():
    config = load_config(*START, "cluster=two_hosts", "cluster.hosts.1.devices=2", "cluster.hosts.1.ratios=[2,1]")
    assert [host.num_devices for host in config.cluster.hosts] == [2, 2]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("cluster.hosts[1].devices=2", "by points, not by brackets: write cluster.hosts.1.devices=2"),
        ("cluster.hosts.1.count=2", "not there yet: add it with a leading +, +cluster.hosts.1.count=..."),
    ],
)
def test_how_to_change_a_host_is_said(word, message):
    problem = one_problem("cluster=two_hosts", word)
    assert problem.key == f"cluster.hosts[1].{word.partition('=')[0].rpartition('.')[2]}"
    assert problem.message.endswith(message)
    assert problem.where == f"command line: {word}"


def test_a_preset_lists_keys_of_the_section_over_those_of_single():
    assert {"single", "one_host", "mixed_gpus", "two_hosts", "apu_farm"} == set(PRESETS)
    for name in set(PRESETS) - {"single"}:
        text = (conf_dir() / "cluster" / f"{name}.yaml").read_text()
        preset = yaml.safe_load(text)
        assert preset.pop("defaults") == ["single", "_self_"]
        assert set(preset) <= set(key_names(ClusterConfig))
        assert text.startswith("# "), "says what it is an example of"


@pytest.mark.parametrize(
    "recipe",
    [name if name in ("mnist", "custom") else pytest.param(name, marks=pytest.mark.full) for name in recipe_names()],
)
def test_presets_go_with_every_recipe(recipe):
    needed = {"remote_shards": ["source.path=http://h/a.npy"], "custom": ["allow_import=[squares]"]}
    found = {}
    for preset in PRESETS:
        cluster = load_config(recipe, f"cluster={preset}", *needed.get(recipe, [])).cluster
        found[preset] = cluster.num_ranks
        assert cluster.rendezvous.port == 29400, "what a preset does not say is there"
    assert found == {"single": None, "one_host": 2, "mixed_gpus": 3, "two_hosts": 3, "apu_farm": 7}
