"""The program as a process: what it imports, how fast it answers, what the shell sees. Each test costs a start."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Prints the heavy modules that are loaded when the program ends, on the last line of stderr.
REPORT = """
import sys
from flodl_pipe.cli.main import main
try:
    main()
finally:
    print("loaded:", *sorted({"torch", "numpy", "rich"} & set(sys.modules)), file=sys.stderr)
"""
# Measured at 0.3 to 0.5 s on two shared cores; the bound leaves room for a busy machine and none for torch's import.
ANSWERS_WITHIN_S = 3.0


@pytest.mark.parametrize(
    ("argv", "status", "text"),
    [
        (["--help"], 0, "recipe: nanogpt_bin, olmo_shards, olmo_shards_npy"),
        (["+recipe=olmo_shards", "--cfg", "job"], 0, "seq_len: 1024"),
        (["+recipe=olmo_shards", "loader.batch_sise=3"], 2, "Did you mean 'batch_size'?"),
        (["job=schema"], 0, "http://json-schema.org/draft-07/schema#"),
    ],
)
def test_answers_come_fast_and_without_torch(spawn, argv, status, text):
    start = time.perf_counter()
    done = spawn(*argv, code=REPORT)
    took_s = time.perf_counter() - start
    assert done.returncode == status, done.stderr
    assert text in (done.stdout if status == 0 else done.stderr)
    assert done.stderr.splitlines()[-1] == "loaded:"
    assert took_s < ANSWERS_WITHIN_S


def test_completion_knows_recipes_and_keys(spawn):
    def complete(line):
        done = spawn("-sc", "query=bash", COMP_LINE=f"flodl-pipe {line}", COMP_POINT="99")
        return done.stdout.split()

    assert complete("+recipe=olmo") == ["+recipe=olmo_shards", "+recipe=olmo_shards_npy"]
    assert "loader.vram_max_usage=" in complete("+recipe=olmo_shards loader.v")


def test_the_schema_is_printed_whole_and_alone(spawn, tmp_path):
    done = spawn("job=schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["title"] == "flodl_pipe recipe"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_ends_with_130(tmp_path):
    code = (
        "import sys, time, types\n"
        "from flodl_pipe.cli.main import main\n"
        "job = types.ModuleType('flodl_pipe.jobs.run')\n"
        "def run(config):\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "job.main = run\n"
        "sys.modules['flodl_pipe.jobs.run'] = job\n"
        "main()\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", code, "+recipe=olmo_shards"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "flodl_pipe: interrupted\n")
