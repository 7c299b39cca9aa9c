"""The jobs as a user meets them: one clear message for bad input, the sample data, and output that pipes well."""

import os
import pty
import re
import subprocess
import sys

import numpy as np
import pytest

from flodl_pipe.errors import FlodlPipeError
from flodl_pipe.jobs import plan, run
from flodl_pipe.reports import progress
from tests.jobs.composed import composed
from tests.support.programs import environment

SMALL = ("source.format=raw", "source.seq_len=8", "loader.batch_size=4")
RAW = (*SMALL, "source.dtype=uint16", "source.path=part-0.bin")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@pytest.mark.full
def test_the_sample_data_runs_and_plans(call, monkeypatch, tmp_path):
    monkeypatch.setenv("FLODL_PIPE_CACHE", str(tmp_path / "cache"))
    status, out, err = call("+recipe=nanogpt_bin", "job.max_steps=5")
    assert status == 0, err
    assert "stopped at job.max_steps=5" in out
    assert "one token a byte" in out
    assert "made a sample corpus out of Python's standard library" in out
    status, out, err = call("+recipe=nanogpt_bin", "job=plan")
    assert (status, err) == (0, "")
    assert "one token a byte" in out


BAD_DATA = {
    "a path that is not there": (
        [*SMALL, "source.dtype=uint16", "source.path=nowhere.bin"],
        ["nowhere.bin", "source.path"],
    ),
    "an empty folder": ([*SMALL, "source.dtype=uint16", "source.path=empty"], ["empty"]),
    "a pattern without a match": ([*SMALL, "source.dtype=uint16", "source.path='*.nothing'"], ["*.nothing"]),
    "an odd number of bytes": (
        [*SMALL, "source.dtype=uint16", "source.path=odd.bin"],
        ["odd.bin", "2,001 bytes", "uint16"],
    ),
    "an empty file": ([*SMALL, "source.dtype=uint16", "source.path=void.bin"], ["void.bin"]),
    "a header of another dtype": (
        ["source.format=npy", "source.seq_len=8", "loader.batch_size=4", "source.dtype=uint32", "source.path=a.npy"],
        ["a.npy", "uint32", "uint16"],
    ),
    "a shard shorter than a window": ([*RAW, "source.seq_len=2000"], ["part-0.bin", "1,000 tokens", "2001", "seq_len"]),
    "an id beyond the vocabulary": ([*RAW, "source.vocab_size=100"], ["part-0.bin", "0 .. 99", "source.vocab_size"]),
    "a batch larger than the epoch": (
        [*RAW, "loader.batch_size=125"],
        ["loader.batch_size: the global batch of 125 is larger than the epoch of 124 samples", "drop_last=false"],
    ),
    "a resident set without memory": (
        [*RAW, "loader.mode=resident", "loader.ram_max_usage=0"],
        ["loader.mode=resident", "1.95 KiB", "loader.ram_max_usage"],
    ),
    "a missing file to resume from": ([*RAW, "job.resume=gone.json"], ["gone.json: no such file", "job.resume"]),
    "a file that is no save": ([*RAW, "job.resume=part-0.bin"], ["part-0.bin: damaged, 2000 bytes", "job.save"]),
    "a folder that is not there to save in": ([*RAW, "job.save=no/place.json"], ["job.save: there is no folder"]),
    "a window of no tokens": ([*RAW, "source.seq_len=0"], ["source.seq_len: must be at least 1, got 0", "set at"]),
    "no epochs": ([*RAW, "job.epochs=0"], ["job.epochs: must be at least 1, got 0"]),
    "a key that is not there": ([*RAW, "loader.batch_sise=2"], ["loader.batch_sise: unknown key", "batch_size"]),
    "a kind that is not there": ([*RAW, "source.kind=token_shard"], ["source.kind", "token_shards"]),
    "a job that is not there": ([*RAW, "job=rum"], ["rum", "run"]),
    "a recipe that is not there": (["+recipe=olmo_shard"], ["olmo_shard", "olmo_shards"]),
    "an unknown dtype": ([*RAW, "source.dtype=uint12"], ["source.dtype", "uint12", "uint16"]),
}


@pytest.fixture
def faulty(tokens, tmp_path):
    """Shards that are right, and some that are not."""
    tokens()
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd.bin").write_bytes(bytes(2001))
    (tmp_path / "void.bin").write_bytes(b"")
    np.save(tmp_path / "a.npy", np.arange(1000, dtype="<u2"))


# One of each that refuses: a source, the config when it is composed, the groups. The others are alike from here on.
QUICK = ("an odd number of bytes", "a key that is not there", "a job that is not there", "a recipe that is not there")


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[] if fault in QUICK else [pytest.mark.full]) for fault in BAD_DATA]
)
def test_bad_input_is_one_clear_message(call, fault):
    argv, words = BAD_DATA[fault]
    status, _, err = call("reports.progress=false", *argv)
    assert status == 2, err
    assert err.startswith("flodl_pipe: ")
    assert "Traceback" not in err
    assert err.count("flodl_pipe: ") == 1
    for word in words:
        assert word in err


def without_available(text):
    """Leave out how much memory the machine had at that moment."""
    return re.sub(r"[\d.]+ [KMGT]iB available", "... available", text)


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("fault", list(BAD_DATA)[:10])  # those of data
def test_a_plan_refuses_the_same_data_in_the_same_words(fault):
    argv, words = BAD_DATA[fault]
    with pytest.raises(FlodlPipeError) as caught:
        run.main(composed("reports.progress=false", *argv))
    assert all(word in str(caught.value) for word in words)
    if fault == "an id beyond the vocabulary":  # ids are looked at only when they are read
        plan.main(composed(*argv, "job=plan"))
        return
    with pytest.raises(type(caught.value)) as planned:
        plan.main(composed(*argv, "job=plan"))
    assert without_available(str(planned.value)) == without_available(str(caught.value))


@pytest.mark.parametrize(
    ("job", "says"),
    [
        pytest.param("run", "MASTER_ADDR", marks=pytest.mark.full),
        ("plan", "a plan is made by one process"),
    ],
)
def test_a_world_that_is_only_said_is_refused_in_one_line(call, tokens, monkeypatch, job, says):
    tokens()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, out, err = call(*RAW, f"job={job}")
    assert (status, out) == (2, "")
    assert err.startswith("flodl_pipe: ")
    assert says in err
    assert err.count("\n") == 1


def test_a_sweep_gets_the_rate_of_each_run(tokens):
    from flodl_pipe.cli.dispatch import run_job
    from flodl_pipe.config.compose import run_hydra

    tokens()
    value = run_hydra([*RAW, "reports.progress=false"], run_job)
    assert isinstance(value, float)
    assert value > 0


@pytest.mark.parametrize("job", [["job=plan"], ["job.epochs=2", "loader.readers=2"]])
def test_piped_output_is_plain_text_of_80_columns(call, tokens, tmp_path, monkeypatch, job):
    monkeypatch.setattr(progress, "LINE_EVERY_S", float("inf"))  # an epoch that takes long has more lines
    tokens(name=f"{'deep/' * 20}part-0.bin")
    (tmp_path / "part-0.bin").symlink_to(tmp_path / ("deep/" * 20) / "part-0.bin")
    status, out, err = call(*SMALL, "source.dtype=uint16", f"source.path={'deep/' * 20}part-0.bin", *job)
    assert status == 0, err
    assert not CONTROL.search(out + err)
    assert "…" not in out
    lines = [line for line in out.splitlines() if not line.startswith("[")]  # log lines are as long as they are
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)
    assert ("deep/" * 20) in "".join(line.strip() for line in lines)
    if job[0] != "job=plan":
        assert re.match(r"epoch 1 of 2: done: 31 steps in .*, [\d,]+ samples/s, waiting [\d.]+ %\n", err)
        assert err.count("\n") == 2


@pytest.mark.full
def test_a_terminal_of_80_columns_gets_a_bar_and_the_same_table(program, tokens):
    tokens()
    parent, child = pty.openpty()
    terminal = {"stdin": child, "stdout": child, "stderr": child, "text": False}
    shape = environment(TERM="xterm", COLUMNS="80", LINES="50")
    with open(parent, "rb", buffering=0) as screen:
        with program(*RAW, "job.step_time_s=0.02", env=shape, **terminal) as process:
            os.close(child)
            shown = b""
            while True:
                try:
                    read = screen.read(65536)
                except OSError:  # the other end is closed
                    break
                if not read:
                    break
                shown += read
        assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"epoch 1/1 .* 100 % .*samples/s waiting +\d+ % 0:00 left", text)
    assert "finished, 1 epoch" in text
    assert "…" not in text


def test_nothing_is_shown_on_the_way_when_it_is_not_wanted(call, tokens):
    tokens()
    status, out, err = call(*RAW, "reports.progress=false")
    assert (status, err) == (0, "")
    assert "finished, 1 epoch" in out


def test_reports_do_not_import_torch():
    # An interpreter of its own: what is imported is the question.
    code = (
        "import sys, flodl_pipe.reports.progress, flodl_pipe.reports.summary, flodl_pipe.reports.tables\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
