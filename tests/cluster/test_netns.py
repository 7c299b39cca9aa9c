"""Two hosts that really are two, as far as the network goes: namespaces joined by one cable, with no way out.

The lines that a launch prints are given to a shell in each of them, as they are: interpreters start as on a host of
their own, and not from a parent that is outside of the namespace. Limits of time are for what hangs.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from flodl_pipe.cluster.launch import host_commands, torchrun_words
from flodl_pipe.config.cluster import ClusterConfig
from tests.support.programs import environment

pytestmark = pytest.mark.full

LIMIT_S = 400
JOIN_S = 300  # within which hosts, and then ranks, must find each other

RANK = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=300))
names = [None] * dist.get_world_size()
dist.all_gather_object(names, f"{os.environ['FLODL_PIPE_HOST']}/{os.environ['LOCAL_RANK']}")
if dist.get_rank() == 0:
    print("ranks:", *sorted(names), flush=True)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
for step in range(1_000_000):  # a few steps, or until rank 0 finds the file that says to end
    model(torch.ones(1, 8)).sum().backward()
    ends = torch.tensor([step > 3 and (sys.argv[1] == "few" or Path(sys.argv[1]).exists())])
    dist.broadcast(ends, 0)
    if ends:
        break
    time.sleep(0.01)
os.write(1, b"done\\n")  # in one piece: ranks share the pipe
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
"""


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=LIMIT_S)


class Hosts:
    """The two namespaces, and what runs in them."""

    def __init__(self, folder):
        mark = os.getpid()
        self.names = {"a": f"flodl-a-{mark}", "b": f"flodl-b-{mark}"}
        self.interfaces = {"a": f"fpa{mark}", "b": f"fpb{mark}"}
        self.script = folder / "rank.py"
        self.script.write_text(RANK)
        self.temporary = folder / "temporary"  # torchrun leaves folders for logs
        self.temporary.mkdir()
        self.running = []

    def set_up(self):
        """Make the namespaces; returns what went wrong."""
        steps = [("netns", "add", name) for name in self.names.values()]
        steps += [("link", "add", self.interfaces["a"], "type", "veth", "peer", "name", self.interfaces["b"])]
        for number, (host, name) in enumerate(self.names.items(), start=1):
            interface = self.interfaces[host]
            steps += [
                ("link", "set", interface, "netns", name),
                ("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", interface),
                ("-n", name, "link", "set", interface, "up"),
                ("-n", name, "link", "set", "lo", "up"),
            ]
        for step in steps:
            done = ip(*step)
            if done.returncode:
                return done.stderr.strip()
        return ""

    def kill(self, host):
        """End all that runs in a namespace, as when the plug is pulled."""
        for pid in ip("netns", "pids", self.names[host]).stdout.split():
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.kill(int(pid), signal.SIGKILL)

    def wait_until_it_connects(self, host):
        """Wait until something on a host has asked for a connection."""
        deadline = time.monotonic() + LIMIT_S
        while not self.counted(host)["ActiveOpens"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def counted(self, host):
        """What the kernel has counted of TCP in a namespace."""
        lines = ip("netns", "exec", self.names[host], "cat", "/proc/net/snmp").stdout.splitlines()
        names, values = (line.split()[1:] for line in lines if line.startswith("Tcp:"))
        return dict(zip(names, map(int, values), strict=True))

    def tear_down(self):
        for host, name in self.names.items():
            self.kill(host)
            ip("netns", "del", name)
        for process in self.running:
            process.communicate()
        ip("link", "del", self.interfaces["a"])  # where it never got into a namespace

    def commands(self, *words, **rendezvous):
        hosts = [
            {"name": "a", "address": "10.77.0.1", "interface": self.interfaces["a"], "devices": 2},
            {"name": "b", "address": "10.77.0.2", "interface": self.interfaces["b"], "devices": 1},
        ]
        rendezvous = {"join_timeout_s": JOIN_S, "max_restarts": 3, **rendezvous}
        cluster = ClusterConfig(hosts=hosts, rendezvous=rendezvous)
        return list(host_commands(cluster, words, program=[str(self.script)], environment={}))

    def start(self, host, line):
        """Give a line to a shell on a host."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], "sh", "-c", line],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(TMPDIR=str(self.temporary)),
            cwd=self.script.parent,
        )
        self.running.append(process)
        return process

    def start_command(self, command):
        return self.start(command.host, command.line(torchrun_words()))


@pytest.fixture
def hosts(tmp_path):
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux, root and iproute2")
    pair = Hosts(tmp_path)
    try:
        wrong = pair.set_up()
        if wrong:
            pytest.skip(f"no network namespaces here: {wrong}")
        yield pair
    finally:
        pair.tear_down()


@pytest.mark.parametrize(("backend", "late"), [("c10d", "a"), ("static", "b")])
def test_the_ranks_of_two_hosts_find_each_other_whoever_is_first(hosts, backend, late):
    commands = sorted(hosts.commands("few", backend=backend), key=lambda command: command.host == late)
    running = []
    for command in commands:
        running.append(hosts.start_command(command))
        hosts.wait_until_it_connects(command.host)
    ended = [process.communicate(timeout=LIMIT_S) for process in running]
    assert [process.returncode for process in running] == [0, 0], ended
    out = "".join(out for out, _ in ended)
    assert out.count("ranks: a/0 a/1 b/0\n") == 1
    assert out.count("done\n") == 3


def test_the_line_that_one_host_prints_is_all_that_the_other_needs(hosts):
    described = ",".join(
        f"{{name: {name}, address: 10.77.0.{number}, interface: {hosts.interfaces[name]}, devices: {devices}}}"
        for name, number, devices in (("a", 1, 2), ("b", 2, 1))
    )
    words = ["+recipe=olmo_shards", "source.seq_len=64", "loader.device=cpu", "loader.global_batch_size=12"]
    words += ["job.max_steps=10", "reports.progress=false", f"cluster.timeout_s={JOIN_S}"]
    alone = [sys.executable, "-m", "flodl_pipe", *words]
    first = hosts.start("a", f"FLODL_PIPE_HOST=a {shlex.join([*alone, f'cluster.hosts=[{described}]', 'job=launch'])}")
    assert first.stdout.readline() == "# host b, 1 rank:\n"
    second = hosts.start("b", first.stdout.readline())
    (out, err), (silence, _) = first.communicate(timeout=LIMIT_S), second.communicate(timeout=LIMIT_S)
    assert (first.returncode, second.returncode) == (0, 0), err
    assert [line.split()[0] for line in out.splitlines() if " of all; waited" in line] == ["a/0", "a/1", "b/0"]
    one = hosts.start("b", shlex.join(alone)).communicate(timeout=LIMIT_S)[0]
    (digest,) = re.findall(r"^  digest .*$", one, flags=re.MULTILINE)
    assert re.findall(r"^  digest .*$", out + silence, flags=re.MULTILINE) == [digest]


def impatient(command):
    arguments = [f"{word},last_call_timeout=3" if word.startswith("--rdzv-conf") else word for word in command.torchrun]
    return replace(command, torchrun=tuple(arguments))


def test_a_host_that_dies_leaves_the_others_to_go_on(hosts, tmp_path):
    """The first host keeps the meeting place, so it has to live.

    Half a minute of what this takes is torch's patience with hosts that might still come, which is cut short here. So
    the first host may begin alone, if the second is slow to start; ranks go on until they are told to end.
    """
    enough = tmp_path / "enough"
    commands = hosts.commands(str(enough), min_hosts=1)
    first, second = (hosts.start_command(impatient(command)) for command in commands)
    while (line := first.stdout.readline()) != "ranks: a/0 a/1 b/0\n":
        assert line == "ranks: a/0 a/1\n", first.communicate(timeout=LIMIT_S)
    hosts.kill("b")
    second.communicate(timeout=LIMIT_S)
    again = first.stdout.readline()
    enough.touch()
    out, err = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 0, err
    assert again + out == "ranks: a/0 a/1\ndone\ndone\n"


def test_nothing_is_left_of_the_hosts(tmp_path):
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux, root and iproute2")
    pair = Hosts(tmp_path)
    wrong = pair.set_up()
    pair.tear_down()
    if wrong:
        pytest.skip(f"no network namespaces here: {wrong}")
    left = ip("netns", "list").stdout + ip("link").stdout
    assert not [name for name in (*pair.names.values(), *pair.interfaces.values()) if name in left]
