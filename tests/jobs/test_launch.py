"""``job=launch`` as a user sees it: which lines it prints, what it starts, and what it refuses before it starts."""

import shlex
import socket

import pytest

from flodl_pipe.cli.main import main
from flodl_pipe.cluster.launch import host_commands
from flodl_pipe.cluster.local_ranks import RankFailure, require_free_port
from flodl_pipe.config.cluster import ClusterConfig
from flodl_pipe.errors import ConfigError
from flodl_pipe.jobs import launch
from tests.jobs.composed import composed

START = ("source.seq_len=8", "loader.batch_size=4", "job=launch")
HOSTS = [
    {"name": "a", "address": "127.0.0.1", "interface": "lo", "devices": 2},
    {"name": "b", "address": "10.0.0.2", "interface": "eth0", "devices": 1},
]
TWO = (
    "cluster.hosts=[{name: a, address: 127.0.0.1, interface: lo, devices: 2},"
    "{name: b, address: 10.0.0.2, interface: eth0, devices: 1}]"
)
OUTSIDE = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS", "HYDRA_FULL_ERROR"),
    *("FLODL_PIPE_HOST", "FLODL_PIPE_HOST_FILE", "FLODL_PIPE_INTERFACE", "FLODL_PIPE_CONFIG_PATH"),
)


@pytest.fixture(autouse=True)
def _outside(tmp_path, monkeypatch):
    """What this machine is does not matter, nor which of its ports are taken."""
    for name in OUTSIDE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "require_free_port", lambda port: None)


@pytest.fixture
def started(monkeypatch):
    """Note which commands would be run instead of running them; ``started.failure`` is how they end."""

    class Started(list):
        failure = None

    noted = Started()

    def run_ranks(command):
        noted.append(command)
        return noted.failure

    monkeypatch.setattr(launch, "run_ranks", run_ranks)
    return noted


@pytest.fixture
def call(capsys):
    def run(*argv):
        status = 0
        try:
            main([*START, *argv])
        except SystemExit as stop:
            status = stop.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return run


def words_of(line):
    """What a line gives to the program, as a shell reads it."""
    words = shlex.split(line)
    return words[words.index("flodl_pipe") + 1 :]


def accelerators(monkeypatch, count):
    kind = launch.KINDS[0].__class__("cuda", True, lambda: count, None, None, None, None)
    monkeypatch.setattr(launch, "KINDS", (kind,))
    monkeypatch.setattr(launch, "known_devices", lambda: ("cpu", *kind.names(), "simulated"))


def test_every_line_is_printed_and_nothing_started(call, started, tmp_path):
    status, out, err = call(TWO, "job.print_only=true", "job.max_steps=3", "data_dir='a b/$x'")
    assert (status, err, started) == (0, "", [])
    lines = out.splitlines()
    assert lines[0] == "# host a, 2 ranks:"
    assert lines[2] == "# host b, 1 rank:"
    words = [TWO, "job.max_steps=3", "data_dir='a b/$x'"]
    for line in (lines[1], lines[3]):
        assert words_of(line) == ["source.seq_len=8", "loader.batch_size=4", *words, "job=run"]
    assert len(lines) == 4
    assert list(tmp_path.iterdir()) == []


def test_the_others_lines_are_printed_and_this_host_started(call, started, monkeypatch):
    monkeypatch.setenv("FLODL_PIPE_HOST", "a")
    status, out, _ = call(TWO, "cluster.rendezvous.port=31234")
    assert status == 0
    (mine,) = started
    expected = list(host_commands(ClusterConfig(hosts=HOSTS, rendezvous={"port": 31234}), words_of(mine.line())))
    assert mine == expected[0]
    assert out.splitlines()[:2] == ["# host b, 1 rank:", expected[1].line(launch.torchrun_words())]
    assert "starting 2 ranks here; they wait up to 900 s for 1 other host" in out


@pytest.mark.full
def test_all_hosts_work_out_the_same_lines(call, started, monkeypatch):
    pages = {}
    for host in ("a", "b"):
        monkeypatch.setenv("FLODL_PIPE_HOST", host)
        assert call(TWO)[0] == 0
        pages[host] = started[-1].line()
        pages[f"{host} printed"] = call(TWO, "job.print_only=true")[1].replace(
            shlex.join(launch.torchrun_words()), "torchrun"
        )
    assert pages["a printed"] == pages["b printed"]
    assert pages["a"] in pages["a printed"]
    assert pages["b"] in pages["a printed"]


@pytest.mark.full
def test_a_host_says_its_own_interface(call, started, monkeypatch):
    monkeypatch.setenv("FLODL_PIPE_HOST", "b")
    monkeypatch.setenv("FLODL_PIPE_INTERFACE", "own0")
    assert call(TWO)[0] == 0
    assert started[0].environment["GLOO_SOCKET_IFNAME"] == "own0"


def test_the_status_of_a_rank_is_the_launchers(call, started):
    started.failure = RankFailure(1, 1, 5)
    status, _, err = call("job.nproc=2")
    assert status == 5
    assert "rank 1 (local rank 1) ended with exit status 5" in err


@pytest.mark.full
def test_a_host_that_is_not_described_is_refused(call, started, monkeypatch):
    monkeypatch.setenv("FLODL_PIPE_HOST", "c")
    status, _, err = call(TWO)
    assert (status, started) == (2, [])
    assert "this host is 'c', and cluster.hosts describes a, b" in err
    assert call(TWO, "job.print_only=true")[0] == 0  # a machine that only prepares the run


def test_launching_from_a_rank_is_refused(call, started, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    status, _, err = call("job.nproc=2")
    assert (status, started) == (2, [])
    assert "job=launch starts torchrun, and is itself a rank of it (LOCAL_RANK=0)" in err


@pytest.mark.full
def test_a_port_in_use_is_refused_on_the_host_that_would_open_it(call, started, monkeypatch):
    monkeypatch.setattr(launch, "require_free_port", require_free_port)
    with socket.create_server(("", 0)) as taken:
        port = f"cluster.rendezvous.port={taken.getsockname()[1]}"
        monkeypatch.setenv("FLODL_PIPE_HOST", "a")
        status, _, err = call(TWO, port)
        assert (status, started) == (2, [])
        assert f"{port} cannot be opened on this host (Address already in use)" in err
        monkeypatch.setenv("FLODL_PIPE_HOST", "b")
        assert call(TWO, port)[0] == 0


@pytest.mark.parametrize("host", ["a", pytest.param("b", marks=pytest.mark.full)])
def test_a_first_host_without_an_address_is_refused_where_its_name_means_nothing(call, started, monkeypatch, host):
    def unknown(*_):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("FLODL_PIPE_HOST", f"{host}.invalid")
    status, _, err = call("cluster.hosts=[{name: a.invalid},{name: b.invalid}]")
    assert (status, started) == (2, [])
    assert "'a.invalid' means nothing on this host" in err
    assert "set cluster.hosts[0].address to an IP address" in err


def test_as_many_ranks_as_accelerators(call, started, monkeypatch):
    accelerators(monkeypatch, 4)
    assert call()[0] == 0
    assert started[0].num_ranks == 4


@pytest.mark.full
def test_without_accelerators_the_number_has_to_be_said(call, started, monkeypatch):
    accelerators(monkeypatch, 0)
    status, _, err = call()
    assert (status, started) == (2, [])
    assert "job.nproc: auto means one rank for each accelerator, and this machine has none (here are cpu, sim" in err
    assert call("job.nproc=3")[0] == 0
    assert started[0].num_ranks == 3


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(
            ("job.nproc=3",),
            "3 ranks need a device each, and this machine has 2: cuda:0, cuda:1; start 2 ranks (job.np",
            marks=pytest.mark.full,
        ),
        (("cluster.hosts=[{name: h, devices: 3}]",), "start 2 ranks (cluster.hosts[].devices), or use loader.device"),
        pytest.param(
            ("cluster.hosts=[{name: h, devices: [0, 2]}]",),
            "cluster.hosts gives h the device cuda:2, and this machine",
            marks=pytest.mark.full,
        ),
    ],
)
def test_more_ranks_than_devices_are_refused(call, started, monkeypatch, argv, message):
    accelerators(monkeypatch, 2)
    monkeypatch.setenv("FLODL_PIPE_HOST", "h")
    status, _, err = call(*argv)
    assert (status, started) == (2, [])
    assert message in err
    if "job" in argv[0]:
        assert call(*argv, "loader.device=cpu")[0] == 0


@pytest.mark.full
@pytest.mark.parametrize("name", ["localhost", "h"])
def test_a_knob_of_the_loader_stands_over_the_devices_of_the_layout(call, started, monkeypatch, name):
    accelerators(monkeypatch, 0)
    monkeypatch.setenv("FLODL_PIPE_HOST", "h")
    layout = f"cluster.hosts=[{{name: {name}, devices: ['cuda:0', 'cuda:1']}}]"
    status, _, err = call(layout)
    assert (status, started) == (2, [])
    assert f"cluster.hosts gives {'h' if name == 'h' else 'this host'} the device cuda:0, and this machine has" in err
    assert err.endswith("see why torch does not find it, or set loader.device\n")
    assert call(layout, "loader.device=cpu")[0] == 0
    assert started[0].num_ranks == 2


@pytest.mark.full
@pytest.mark.parametrize("devices", ["[cuda, cpu]", "[0, 1]", "2", "[cpu, cpu, cpu, simulated]"])
def test_devices_that_are_there_are_taken(call, started, monkeypatch, devices):
    accelerators(monkeypatch, 2)
    monkeypatch.setenv("FLODL_PIPE_HOST", "h")
    assert call(f"cluster.hosts=[{{name: h, devices: {devices}}}]")[0] == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param((TWO, "job.nproc=2"), "job.nproc: 2 is for runs without cluster.hosts", marks=pytest.mark.full),
        (("job.nproc=2", "cluster.partition_ratios=[1,2,3]"), "one number for each of the 2 ranks that job.nproc=2 st"),
        (("job.nproc=0",), "must be 'auto' or an integer from 1 to 1024, got 0"),
        (("job.command=plan",), "job.command"),
        (("job.save_every_steps=2",), "needs save"),
    ],
)
def test_what_cannot_be_meant_is_refused(call, started, monkeypatch, argv, message):
    monkeypatch.setenv("FLODL_PIPE_HOST", "a")
    status, _, err = call(*argv)
    assert (status, started) == (2, [])
    assert message in err


@pytest.mark.full
def test_a_recipe_that_the_ranks_could_not_read_is_refused_here(call, started, tmp_path):
    (tmp_path / "recipes").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /job: launch\njob: {nproc: 2}\n"
    (tmp_path / "recipes" / "mine.yaml").write_text(text)
    status, _, err = call("recipe=mine")
    assert (status, started) == (2, [])
    assert "job.nproc: unknown key" in err


@pytest.mark.full
def test_a_launch_in_a_sweep_gives_each_point_its_folder(call, started, tmp_path):
    status, _, _ = call("job.nproc=2", "-m", "sampling.seed=1,2", "hydra.sweep.dir=s")
    assert status == 0
    assert [words_of(command.line())[-3:] for command in started] == [
        [f"sampling.seed={number + 1}", f"hydra.run.dir='{tmp_path}/s/{number}'", "job=run"] for number in (0, 1)
    ]


def test_nobody_can_launch_without_a_command_line():
    with pytest.raises(ConfigError, match="launch hands its command line on, and there is none"):
        launch.main(composed(*START, "job.nproc=2"))
