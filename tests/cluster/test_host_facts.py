"""What this machine says of itself."""

import socket

import pytest

from flodl_pipe.cluster.host_facts import HostFacts, host_facts
from flodl_pipe.config import host_file
from flodl_pipe.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_file_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(host_file, "DEFAULT_FILE", str(tmp_path / "none.yaml"))


def test_a_host_that_says_nothing_is_called_what_hostname_prints():
    assert host_facts({}) == HostFacts(socket.gethostname())


def test_the_environment_stands_over_the_file(tmp_path):
    file = tmp_path / "host.yaml"
    file.write_text("name: big\ngpu_ram_share: 0.5\ninterface: eth1\n")
    facts = host_facts({"FLODL_PIPE_HOST_FILE": str(file), "FLODL_PIPE_GPU_RAM_SHARE": "0.25"})
    assert facts == HostFacts("big", 0.25, None, "eth1")
    assert facts.places["interface"] == f"{file}:3"


def test_what_is_wrong_is_told_with_its_place():
    with pytest.raises(ConfigError, match="FLODL_PIPE_GPU_RAM_SHARE=lots"):
        host_facts({"FLODL_PIPE_GPU_RAM_SHARE": "lots"})
