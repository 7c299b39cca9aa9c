"""The command lines of a launch, as text: every host's part, quoted, and alike wherever it is worked out."""

import shlex
import tempfile

import pytest
from torch.distributed.run import config_from_args, parse_args

from flodl_pipe.cluster import launch
from flodl_pipe.cluster.launch import command_of, host_commands, local_command, rank_words, torchrun_words
from flodl_pipe.config.cluster import ClusterConfig
from flodl_pipe.errors import ClusterError

WORDS = ("+recipe=mnist", "job=run")
TWO = (
    {"name": "a", "address": "10.77.0.1", "interface": "va", "devices": 2},
    {"name": "b", "address": "10.77.0.2", "interface": "vb", "devices": 1},
)


@pytest.fixture(autouse=True)
def _torchruns_folders(tmp_path, monkeypatch):
    """Torch makes a folder for logs when it reads its words, and leaves it there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def commands(*hosts, words=WORDS, environment=None, **rendezvous):
    cluster = ClusterConfig(hosts=hosts or TWO, rendezvous=rendezvous)
    return list(host_commands(cluster, words, environment=environment or {}))


def test_the_line_of_each_host_is_the_one_that_was_measured():
    first, second = (command.line() for command in commands(id="r1", max_restarts=3))
    assert first == (
        "FLODL_PIPE_HOST=a TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=va "
        "NCCL_SOCKET_IFNAME=va torchrun --nnodes=2 --nproc-per-node=2 --max-restarts=3 --local-addr=10.77.0.1 "
        "--rdzv-backend=c10d --rdzv-endpoint=10.77.0.1:29400 --rdzv-id=r1 "
        "--rdzv-conf=is_host=1,join_timeout=900,read_timeout=300 -m flodl_pipe +recipe=mnist job=run"
    )
    assert second == (
        "FLODL_PIPE_HOST=b TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=vb "
        "NCCL_SOCKET_IFNAME=vb torchrun --nnodes=2 --nproc-per-node=1 --max-restarts=3 --local-addr=10.77.0.2 "
        "--rdzv-backend=c10d --rdzv-endpoint=10.77.0.1:29400 --rdzv-id=r1 "
        "--rdzv-conf=is_host=0,join_timeout=900,read_timeout=300 -m flodl_pipe +recipe=mnist job=run"
    )


AWKWARD = (
    "+recipe=mnist",
    "data_dir='a b/c'",
    'x="quoted"',
    "y=${oc.env:HOME}",
    "z=$(rm -rf .)`date`",
    "l=[1, 2]",
    "e=\\",
    "n=a\nb",
    "t=!1;&|<>*?#~",
    "--config-dir=/a b",
    "u=ü",
)


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_a_shell_and_torchrun_read_back_the_words_that_were_given(backend):
    for command in commands(words=AWKWARD, backend=backend):
        read = [word for word in shlex.split(command.line()) if word != "torchrun"]
        variables = len(command.environment)
        assert dict(word.split("=", 1) for word in read[:variables]) == command.environment
        config, _, rest = config_from_args(parse_args(read[variables:]))
        assert tuple(rest) == ("-u", *command.program)
        assert command.program == ("-m", "flodl_pipe", *AWKWARD)
        assert config.nproc_per_node == command.num_ranks


def test_static_hosts_are_numbered_and_share_a_master():
    for number, command in enumerate(commands(backend="static", port=4000, join_timeout_s=50)):
        config, *_ = config_from_args(parse_args([*command.torchrun, *command.program]))
        assert (config.rdzv_backend, config.rdzv_endpoint) == ("static", "10.77.0.1:4000")
        assert (config.min_nodes, config.max_nodes) == (2, 2)
        assert config.rdzv_configs == {"rank": number, "timeout": "50"}


def test_fewer_hosts_may_be_enough():
    for command in commands(min_hosts=1):
        assert "--nnodes=1:2" in command.torchrun
    for command in commands(min_hosts=2):
        assert "--nnodes=2" in command.torchrun


def test_a_short_patience_is_the_patience_for_the_store_too():
    assert all("join_timeout=20,read_timeout=20" in command.line() for command in commands(join_timeout_s=20))


def test_the_name_of_a_run_follows_its_words_and_hosts_alone():
    def run_id(command):
        return next(word for word in command.torchrun if word.startswith("--rdzv-id="))

    names = {run_id(command) for command in commands()}
    assert len(names) == 1
    assert {run_id(command) for command in commands(max_restarts=7, port=4000)} == names
    assert run_id(commands(words=(*WORDS, "sampling.seed=1"))[0]) not in names
    assert run_id(commands(TWO[0], TWO[1] | {"name": "c"})[0]) not in names
    # Pinned: launchers of two versions on two hosts have to meet.
    assert names == {"--rdzv-id=flodl-pipe-969154cbed93"}


def test_hosts_of_a_kind_are_numbered_and_known_by_name():
    found = commands(
        {"name": "apu", "devices": 1, "count": 3, "interface": "eth0"}, {"name": "z", "address": "10.0.0.9"}
    )
    assert [command.host for command in found] == ["apu-0", "apu-1", "apu-2", "z"]
    assert [command.address for command in found] == ["apu-0", "apu-1", "apu-2", "10.0.0.9"]
    assert all(
        "--rdzv-endpoint=apu-0:29400" in command.torchrun and "--nnodes=4" in command.torchrun for command in found
    )
    assert [command.port for command in found] == [29400, None, None, None]


def test_many_hosts_are_listed_in_a_moment():
    found = commands({"name": "n", "devices": 8, "count": 4096})
    assert len({command.line() for command in found}) == 4096


def test_an_address_of_version_6_stands_in_brackets_beside_its_port():
    found = commands({"name": "a", "address": "fd00::1"}, {"name": "b", "address": "fd00::2"})
    assert "--rdzv-endpoint=[fd00::1]:29400" in found[1].torchrun
    assert "--local-addr=fd00::2" in found[1].torchrun


def test_one_host_meets_itself_on_a_free_port():
    (command,) = commands({"name": "a", "address": "10.0.0.1", "devices": ["cuda:1", 0, "cpu"], "interface": "eth0"})
    assert command.environment["FLODL_PIPE_HOST"] == "a"
    assert command.environment["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "--rdzv-endpoint=127.0.0.1:0" in command.torchrun
    assert (command.num_ranks, command.port) == (3, None)
    assert command.devices == ("cuda:1", "cuda:0", "cpu")


def test_an_only_host_may_be_whichever_this_is():
    (command,) = commands({"name": "localhost", "devices": 2})
    assert "FLODL_PIPE_HOST" not in command.environment
    assert command_of([command], "any") is command


def test_ranks_of_a_host_that_is_not_described_have_no_name():
    command = local_command(2, ClusterConfig(), WORDS, environment={})
    assert "FLODL_PIPE_HOST" not in command.environment
    assert "--nproc-per-node=2" in command.torchrun
    assert command.host == ""


def test_what_the_person_has_set_goes_with_the_line_and_nothing_else():
    given = {"OMP_NUM_THREADS": "4", "FLODL_PIPE_CONFIG_PATH": "/my recipes", "FLODL_PIPE_ALLOW_IMPORT": "m", "X": "y"}
    for command in commands(environment=given):
        assert given.items() - command.environment.items() == {("X", "y")}
        assert "FLODL_PIPE_CONFIG_PATH='/my recipes'" in command.line()


def test_a_host_knows_its_own_interface_best():
    command = commands()[0].on_interface("own0")
    assert command.environment["GLOO_SOCKET_IFNAME"] == command.environment["NCCL_SOCKET_IFNAME"] == "own0"
    assert command.on_interface(None) is command


def test_a_host_that_is_not_described_is_told_who_is():
    assert command_of(commands(), "b").host == "b"
    with pytest.raises(ClusterError, match=r"this host is 'c', and cluster\.hosts describes a, b; start this on one"):
        command_of(commands(), "c")
    with pytest.raises(ClusterError, match=r"describes n-0, .*n-9, \.\.\.; start"):
        command_of(commands({"name": "n", "count": 12}), "c")


@pytest.mark.parametrize(
    "word",
    ["job=launch", "+job=launch", "++job.kind=launch", "job.nproc=2", "++job.print_only=true", "~job.command"],
)
def test_ranks_do_not_get_the_words_of_the_launcher(word):
    assert rank_words(["a=1", word, "job.epochs=2", "job_x=3"], "run") == ("a=1", "job.epochs=2", "job_x=3", "job=run")


def test_torchrun_is_called_by_its_name_only_if_it_belongs_to_this_python(monkeypatch, tmp_path):
    for folder in ("mine", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "torchrun").write_text("#!/bin/sh\n")
        (tmp_path / folder / "torchrun").chmod(0o755)
    python = str(tmp_path / "mine" / "python")
    monkeypatch.setattr(launch.sys, "executable", python)
    monkeypatch.setenv("PATH", str(tmp_path / "mine"))
    assert torchrun_words() == ("torchrun",)
    for path in (str(tmp_path / "other"), str(tmp_path)):
        monkeypatch.setenv("PATH", path)
        assert torchrun_words() == (python, "-m", "torch.distributed.run")
