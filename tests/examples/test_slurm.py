"""The batch file for SLURM, run by bash with stand-ins for SLURM's programs and torchrun."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flodl_pipe.cluster.launch import host_commands
from flodl_pipe.config.cluster import ClusterConfig

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "examples" / "slurm" / "train.sbatch"
NODES = {"gpu-07": 8, "gpu-09": 4}
WORDS = ("+recipe=mine", "data_dir='a b/$x'", "job=run")

STAND_INS = {
    "scontrol": """
        assert sys.argv[1:] == ["show", "hostnames", "gpu-[07,09]"], sys.argv
        print("gpu-07\\ngpu-09")
    """,
    "srun": """
        import subprocess
        assert sys.argv[1] == "--kill-on-bad-exit=1"
        for name, gpus in (("gpu-07", "8"), ("gpu-09", "4")):
            own = {"SLURMD_NODENAME": name, "SLURM_GPUS_ON_NODE": gpus}
            subprocess.run(sys.argv[2:], env={**os.environ, **own}, check=True)
    """,
    "torchrun": """
        import json
        names = ("FLODL_PIPE_HOST", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "OMP_NUM_THREADS")
        print(json.dumps([{name: os.environ[name] for name in names}, sys.argv[1:]]))
    """,
}

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


@pytest.fixture
def environment(tmp_path):
    for name, text in STAND_INS.items():
        lines = [line.removeprefix(" " * 8) for line in text.splitlines()]
        (tmp_path / name).write_text("\n".join([f"#!{sys.executable} -S", "import os, sys", *lines]))
        (tmp_path / name).chmod(0o755)
    return {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_NODELIST": "gpu-[07,09]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": "4711",
    }


def test_bash_reads_the_file():
    assert subprocess.run(["bash", "-n", FILE], capture_output=True, text=True).stderr == ""


def test_each_node_starts_what_a_launch_would_start_there(environment):
    done = subprocess.run(["bash", FILE, *WORDS], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    started = [json.loads(line) for line in done.stdout.splitlines()]
    hosts = [{"name": name, "devices": gpus} for name, gpus in NODES.items()]
    cluster = ClusterConfig(hosts=hosts, rendezvous={"id": "4711"})
    assert started == [
        [dict(command.environment), [*command.torchrun, *command.program]]
        for command in host_commands(cluster, WORDS, environment={})
    ]


def test_a_torchrun_that_fails_fails_the_job(environment, tmp_path):
    (tmp_path / "torchrun").write_text("#!/bin/sh\nexit 3\n")
    done = subprocess.run(["bash", FILE, *WORDS], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
