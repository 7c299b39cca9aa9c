"""docs/memory.md: the plan that it shows is the one that is printed, and it names every key about memory."""

import re
import shlex
from pathlib import Path

import pytest

from flodl_pipe.config.loader import LoaderConfig, SimulatedConfig
from flodl_pipe.loader.loader import Loader
from flodl_pipe.memory.probe import HostMemory

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "memory.md").read_text(encoding="utf-8")
COMMAND, OTHER = (line for line in PAGE.splitlines() if re.match(r"(python -m flodl_pipe|flodl-pipe) ", line))
(SHOWN,) = re.findall(r"^```text\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def host(monkeypatch):
    # What the page's machine had.
    memory = HostMemory(64 << 30, int(19.06 * (1 << 30)), "host")
    monkeypatch.setattr("flodl_pipe.loader.host_budget.probe_host", lambda: memory)


def test_the_plan_on_the_page_is_what_the_command_prints(call, host, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = call(*shlex.split(COMMAND)[3:], "loader.readers=1")
    assert status == 0, err
    # The epochs are estimates from a measurement of speed, and columns are as wide as they are.
    shown, printed = ([" ".join(line.split()) for line in text.splitlines()] for text in (SHOWN, out))
    missing = [line for line in shown if not line[:1].isdigit() and line not in printed]
    assert missing == []


def test_the_other_command_works(call):
    status, out, err = call(*shlex.split(OTHER)[1:])
    assert status == 0, err
    assert "simulated, 16.0 GiB" in out


def test_every_key_about_memory_is_on_the_page():
    about = ["device", "mode", "prefetch", "readers", "reader_kind", "activation_reserve", "gpu_ram_share"]
    about += [key for key in LoaderConfig.model_fields if re.search("vram|ram_|cache|disk", key)]
    about += [f"simulated.{key}" for key in SimulatedConfig.model_fields]
    assert [key for key in about if f"`loader.{key}`" not in PAGE] == []


def test_keys_on_the_page_exist():
    named = set(re.findall(r"`?loader\.([a-z_]+)", PAGE))
    assert named - set(LoaderConfig.model_fields) - set(dir(Loader)) == set()
