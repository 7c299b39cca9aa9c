"""The program as a process: what it imports, how it ends, what the shell sees."""

import json
import os
import signal
import subprocess
import sys
from subprocess import PIPE

import pytest

from tests.support import programs

# Prints the heavy modules that are loaded when the program ends, on the last line of stderr.
REPORT = """
import sys
from flodl_pipe.cli.main import main
try:
    main()
finally:
    print("loaded:", *sorted({"torch", "numpy", "rich"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture
def cold(tmp_path):
    """Run code in an interpreter of its own, which has imported nothing: that, or its start, is the question."""

    def run(code, *argv):
        return subprocess.run(
            [sys.executable, "-c", code, *argv],
            cwd=tmp_path,
            env=programs.environment(),
            text=True,
            capture_output=True,
            timeout=120,
        )

    return run


@pytest.mark.parametrize(
    ("argv", "status", "text"),
    [
        (["+recipe=olmo_shards", "loader.batch_sise=3"], 2, "Did you mean 'batch_size'?"),
        pytest.param(["--help"], 0, "recipe: cifar10, cifar10_disk, custom, ", marks=pytest.mark.full),
        pytest.param(["+recipe=olmo_shards", "--cfg", "job"], 0, "seq_len: 1024", marks=pytest.mark.full),
        pytest.param(["--version"], 0, "flodl_pipe 0.", marks=pytest.mark.full),
        pytest.param(["job=schema"], 0, "http://json-schema.org/draft-07/schema#", marks=pytest.mark.full),
    ],
)
def test_answers_come_without_torch(cold, argv, status, text):
    """Importing it takes seconds; how fast the answers come is measured by ``tests/benchmarks/start.py``."""
    done = cold(REPORT, *argv)
    assert done.returncode == status, done.stderr
    assert text in (done.stdout if status == 0 else done.stderr)
    assert done.stderr.splitlines()[-1] == "loaded:"


@pytest.mark.full
def test_completion_knows_recipes_and_keys(spawn):
    def complete(line):
        done = spawn("-sc", "query=bash", COMP_LINE=f"flodl-pipe {line}", COMP_POINT="99")
        return done.stdout.split()

    assert complete("+recipe=olmo") == ["+recipe=olmo_shards", "+recipe=olmo_shards_npy"]
    assert "loader.vram_max_usage=" in complete("+recipe=olmo_shards loader.v")


@pytest.mark.full
def test_the_schema_is_printed_whole_and_alone(spawn, tmp_path):
    done = spawn("job=schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["title"] == "flodl_pipe recipe"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_ends_with_130(tmp_path):
    code = (
        "import sys, time, types\n"
        "from flodl_pipe.cli.main import main\n"
        "job = types.ModuleType('flodl_pipe.jobs.run')\n"
        "def run(config):\n    print('ready', flush=True)\n    time.sleep(600)\n"
        "job.main = run\n"
        "sys.modules['flodl_pipe.jobs.run'] = job\n"
        "main()\n"
    )
    words = ["-c", code, "+recipe=olmo_shards"]
    with programs.Program(words, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "flodl_pipe: interrupted\n")


@pytest.mark.parametrize(
    ("argv", "unbuffered"),
    [
        (["job=schema"], ""),
        pytest.param(["job=schema"], "1", marks=pytest.mark.full),
        pytest.param(["+recipe=olmo_shards", "--cfg", "job"], "", marks=pytest.mark.full),
        pytest.param(["+recipe=olmo_shards", "--cfg", "job"], "1", marks=pytest.mark.full),
    ],
)
def test_a_reader_that_leaves_ends_the_program_quietly(tmp_path, argv, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = programs.run(
            ["-m", "flodl_pipe", *argv],
            cwd=tmp_path,
            env=programs.environment(PYTHONUNBUFFERED=unbuffered),
            stdout=writing,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.full
def test_closed_streams_are_no_reason_to_fail(cold):
    start = "import os; os.execv(sys.executable, [sys.executable, '-m', 'flodl_pipe', *sys.argv[1:]])"
    assert cold(f"import os, sys; os.close(1); {start}", "job=schema").returncode == 0
    assert cold(f"import os, sys; os.close(1); os.close(2); {start}", "+recipe=none").returncode == 2


@pytest.mark.full
def test_a_warning_before_the_job_goes_to_standard_error(spawn):
    done = spawn("job=schema", FLODL_PIPE_CONFIG_PATH="/none/such")
    assert done.returncode == 0
    assert (
        done.stderr == "flodl_pipe: warning: /none/such of FLODL_PIPE_CONFIG_PATH is ignored: there is no such folder\n"
    )
