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
        (["--help"], 0, "recipe: cifar10, cifar10_disk, custom, "),
        (["+recipe=olmo_shards", "--cfg", "job"], 0, "seq_len: 1024"),
        (["+recipe=olmo_shards", "loader.batch_sise=3"], 2, "Did you mean 'batch_size'?"),
        (["--version"], 0, "flodl_pipe 0."),
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


@pytest.mark.parametrize("argv", [["job=schema"], ["+recipe=olmo_shards", "--cfg", "job"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_ends_the_program_quietly(tmp_path, argv, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "flodl_pipe", *argv],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PYTHONUNBUFFERED": unbuffered},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_closed_streams_are_no_reason_to_fail(spawn):
    start = "import os; os.execv(sys.executable, [sys.executable, '-m', 'flodl_pipe', *sys.argv[1:]])"
    assert spawn("job=schema", code=f"import os, sys; os.close(1); {start}").returncode == 0
    assert spawn("+recipe=none", code=f"import os, sys; os.close(1); os.close(2); {start}").returncode == 2


def test_a_warning_before_the_job_goes_to_standard_error(spawn):
    done = spawn("job=schema", FLODL_PIPE_CONFIG_PATH="/none/such")
    assert done.returncode == 0
    assert (
        done.stderr == "flodl_pipe: warning: /none/such of FLODL_PIPE_CONFIG_PATH is ignored: there is no such folder\n"
    )
