"""The config as one rank uses it."""

import logging
from typing import NamedTuple

import pytest

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.cluster.host_facts import HostFacts
from flodl_pipe.cluster.layout import Layout
from flodl_pipe.cluster.placement import local_config
from flodl_pipe.config.compose import load_config
from flodl_pipe.devices.choose import Kind
from flodl_pipe.errors import ClusterError

START = ("source.seq_len=8", "loader.batch_size=4", "data_dir=/data", "source.path=/data/a.npy")
HOSTS = "cluster.hosts=[{name: big, devices: %s, gpu_ram_share: 0.6, data_dir: /hosts}, {name: small}]"


class Place(NamedTuple):
    context: RunContext
    layout: Layout | None
    facts: HostFacts


def kind(name, count):
    return Kind(name, name != "mps", lambda: count, None, None, None, None)


def placed(*words, host="big", local_rank=0, several=True, facts=None, kinds=()):
    config = load_config(*START, *words)
    context = RunContext(0, 1, host=host, local_rank=local_rank, world=object() if several else None)
    place = Place(context, Layout.of(config.cluster), facts or HostFacts(host))
    return local_config(config, place, kinds)


CUDA = (kind("cuda", 2), kind("xpu", 1))


@pytest.mark.parametrize(
    ("words", "local_rank", "kinds", "device"),
    [
        ([], 0, (), "auto"),
        ([], 1, CUDA, "cuda:1"),
        ([], 0, (kind("cuda", 0), kind("xpu", 2)), "xpu:0"),
        ([], 0, (kind("mps", 1),), "mps"),
        (["loader.device=cuda"], 1, CUDA, "cuda"),
        (["loader.device=cpu"], 5, CUDA, "cpu"),
        ([HOSTS % 2], 1, CUDA, "cuda:1"),
        ([HOSTS % 2], 1, (), "auto"),
        ([HOSTS % "[1, 'xpu:0']"], 0, CUDA, "cuda:1"),
        ([HOSTS % "[1, 'xpu:0']"], 1, CUDA, "xpu:0"),
        ([HOSTS % "[cpu, cpu]"], 1, CUDA, "cpu"),
        ([HOSTS % "[cuda]"], 0, CUDA, "cuda"),
        ([HOSTS % "[1, 0]", "loader.device=simulated"], 0, (), "simulated"),
    ],
)
def test_each_rank_has_its_own_device(words, local_rank, kinds, device):
    assert placed(*words, local_rank=local_rank, kinds=kinds).loader.device == device


@pytest.mark.parametrize(
    ("words", "local_rank", "kinds", "message"),
    [
        (
            [],
            2,
            CUDA,
            r"LOCAL_RANK 2 of host big .* sees 2 \(cuda:0, cuda:1\); start 2 .* loader.device=cpu",
        ),
        ([], 1, (kind("mps", 1),), r"LOCAL_RANK 1 of host big has no device: this process sees 1 \(mps\)"),
        ([HOSTS % 3], 2, CUDA, "LOCAL_RANK 2 of host big has no device"),
        (
            [HOSTS % "[0, 5]"],
            1,
            CUDA,
            r"cluster.hosts gives cuda:5 to big/1 \(host/local rank\), and big has cpu, cuda:0, cuda:1, xpu:0",
        ),
        ([HOSTS % "[cuda]"], 0, (), "cluster.hosts gives cuda to big/0 .*, and big has cpu, simulated"),
        ([HOSTS % 2], 2, CUDA, "LOCAL_RANK 2 is beyond the 2 devices of host big in cluster.hosts"),
    ],
)
def test_more_ranks_or_devices_than_there_are_is_refused(words, local_rank, kinds, message):
    with pytest.raises(ClusterError, match=message):
        placed(*words, local_rank=local_rank, kinds=kinds)


def test_one_process_alone_keeps_its_config():
    words = ("loader.global_batch_size=8",)
    assert placed(*words, several=False, kinds=CUDA) == load_config(*START, *words)


def test_one_process_alone_has_its_place_in_the_layout():
    words = ("cluster.hosts=[{name: localhost, devices: [1]}]",)
    assert placed(*words, host="any", several=False, kinds=CUDA).loader.device == "cuda:1"
    with pytest.raises(ClusterError, match=r"host 'other' is not among those of cluster.hosts: big, small"):
        placed(HOSTS % 1, host="other", several=False)


@pytest.mark.parametrize(
    ("words", "host", "own", "share"),
    [
        ([], "big", None, None),
        (["cluster.gpu_ram_share=0.5"], "big", None, 0.5),
        ([HOSTS % 1, "cluster.gpu_ram_share=0.5"], "small", None, 0.5),
        ([HOSTS % 1, "cluster.gpu_ram_share=0.5"], "big", None, 0.6),
        ([HOSTS % 1], "small", None, None),
        ([HOSTS % 1], "big", 0.8, 0.8),
        ([HOSTS % 1, "loader.gpu_ram_share=0.9"], "big", 0.8, 0.9),
    ],
)
def test_who_decides_about_the_memory_of_integrated_gpus(words, host, own, share):
    assert placed(*words, host=host, facts=HostFacts(host, own)).loader.gpu_ram_share == share


@pytest.mark.parametrize(
    ("words", "host", "own", "folder"),
    [
        ([], "big", None, "/data"),
        ([HOSTS % 1], "small", None, "/data"),
        ([HOSTS % 1], "big", None, "/hosts"),
        ([HOSTS % 1], "big", "/own", "/own"),
        ([], "big", "/own", "/own"),
    ],
)
def test_who_decides_where_the_data_lie(words, host, own, folder):
    config = placed(*words, host=host, facts=HostFacts(host, data_dir=own))
    assert (config.data_dir, config.source.path) == (folder, f"{folder}/a.npy")


def test_a_folder_of_the_hosts_own_is_said(caplog):
    caplog.set_level(logging.INFO, "flodl_pipe")
    placed(facts=HostFacts("big", data_dir="/own", places={"data_dir": "/etc/host.yaml:3"}))
    placed(HOSTS % 1)
    assert caplog.messages == [
        "data_dir is /own on this host (/etc/host.yaml:3), not /data",
        "data_dir is /hosts on this host (cluster.hosts, big), not /data",
    ]
