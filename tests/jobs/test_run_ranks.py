"""``job=run`` under torchrun: real launches, one digest, one run folder, one save, whatever happens to the ranks."""

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from tests.support.programs import Program, launching

# The sample corpus has 511 windows of 8,192 tokens: 21 steps of 24 rows an epoch.
WORDS = (
    *("+recipe=olmo_shards", "source.seq_len=8192", "loader.global_batch_size=24", "loader.device=cpu"),
    *("loader.readers=1", "reports.progress=false"),
)
LIMIT_S = 120  # of a run that hangs


@pytest.fixture
def start(tmp_path):
    """Start a command in a folder of its own; whatever is left of it at the end is killed."""
    started = []

    def begin(*command):
        process = Program(
            command,
            cwd=tmp_path,
            env=launching(tmp_path.parent, OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"),
            text=True,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def torchrun(num_ranks, *words, max_restarts=0):
    options = ("--standalone", f"--nproc-per-node={num_ranks}", f"--max-restarts={max_restarts}")
    return ("-m", "torch.distributed.run", *options, "-m", "flodl_pipe", *WORDS, *words)


def ended(process, status=0):
    said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == status, said
    return said


def digest_in(said):
    found = re.findall(r"^ +digest +([0-9a-f]{32})", said, flags=re.MULTILINE)
    assert len(found) == 1, said
    return found[0]


@pytest.fixture
def alone(start):
    def run(*words):
        return digest_in(ended(start("-m", "flodl_pipe", *WORDS, *words)))

    return run


def test_unequal_ranks_print_one_table_with_the_digest_of_one_process(start, alone, tmp_path):
    said = ended(start(*torchrun(3, "cluster.partition_ratios=[3,2,1]", "job.epochs=2")))
    assert digest_in(said) == alone("job.epochs=2")
    rows = [int(count.replace(",", "")) for count in re.findall(r"^ +\S+/[012] +([\d,]+) rows", said, re.MULTILINE)]
    assert len(rows) == 3, said
    assert re.search(r"^Memory of \S+/0$", said, re.MULTILINE)
    assert rows[0] == 3 * rows[2]
    assert rows[1] == 2 * rows[2]
    assert said.count("a small sample is used instead") == 1
    assert said.count("[WARNING]") == 1
    folders = [file.parent for file in tmp_path.glob("outputs/*/*/.hydra")]
    assert len(folders) == 2, folders  # of the ranks, and of the process alone
    assert not list(tmp_path.glob("*.log"))


def test_a_save_of_two_ranks_goes_on_on_three_and_on_one(start, alone, tmp_path):
    more = ("job.epochs=3", "job.save=run.json", "job.resume=run.json")
    ended(start(*torchrun(2, *more, "job.max_steps=7")))
    assert json.loads((tmp_path / "run.json").read_text())["num_steps"] == 7
    ended(start(*torchrun(3, *more, "job.max_steps=11", "cluster.partition_ratios=[1,4,2]")))
    said = ended(start("-m", "flodl_pipe", *WORDS, *more))
    assert digest_in(said) == alone("job.epochs=3")


@pytest.mark.parametrize("how", ["torchrun is told to end", "a rank is killed"])
def test_what_was_interrupted_is_one_stream_in_the_end(start, alone, tmp_path, how):
    more = ("job.epochs=4", "job.save=run.json", "job.resume=run.json", "job.save_every_steps=5")
    more = (*more, "job.step_time_s=0.05")
    process = start(*torchrun(3, *more, max_restarts=2))
    await_steps(tmp_path / "run.json", process)
    if how == "a rank is killed":
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        said = ended(process)
        assert "torchrun has started the ranks anew; restart 1" in said
    else:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode != 0
        steps = json.loads((tmp_path / "run.json").read_text())["num_steps"]
        assert steps >= 5
        said = ended(start(*torchrun(2, *more)))
        assert f"after {steps} steps" in said
    assert digest_in(said) == alone("job.epochs=4")


PHOTOS = """
import numpy as np

class Photos:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index in (5, 20, 37, 63):
            raise OSError(f"photo {index} is cut off")
        return {"x": np.full(3, index, np.float32), "label": index % 4}
"""


@pytest.mark.parametrize("limit", [10, 3])
def test_ranks_count_a_sample_that_they_skip_once(start, tmp_path, limit):
    (tmp_path / "photos.py").write_text(PHOTOS)
    words = ("source=custom", "source.factory=photos:Photos", "allow_import=[photos]", "source.on_error=skip")
    words += (f"source.max_skipped={limit}", "loader.batch_size=8", "loader.global_batch_size=8")
    words += ("loader.device=cpu", "loader.readers=1", "reports.progress=false", "job.epochs=3", "job.save=run.json")
    options = ("--standalone", "--nproc-per-node=2", "--max-restarts=0")
    ranks = start("-m", "torch.distributed.run", *options, "-m", "flodl_pipe", *words)
    if limit < 4:
        assert f"4 samples could not be read, and source.max_skipped is {limit}" in ended(ranks, status=1)
        return
    said = ended(ranks)
    assert "4 samples that could not be read: 5, 20, 37, 63" in re.sub(r"\s+", " ", said)
    (ledger,) = tmp_path.glob("outputs/*/*/skipped.jsonl")
    assert [json.loads(line)["sample"] for line in ledger.read_text().splitlines()] == [5, 20, 37, 63]
    saved = json.loads((tmp_path / "run.json").read_text())["loader"]["skipped"]
    assert [sample for sample, _ in json.loads(saved)] == [5, 20, 37, 63]
    one = ended(start("-m", "flodl_pipe", *words, "job.save=one.json"))
    assert digest_in(said) == digest_in(one)


def await_steps(path, process):
    end = time.monotonic() + LIMIT_S
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.02)


def ranks_of(agent):
    """Return the processes that torchrun has started, by local rank."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == agent:
                words = (folder / "environ").read_bytes().split(b"\0")
                rank = [word.partition(b"=")[2] for word in words if word.startswith(b"LOCAL_RANK=")]
                if rank:
                    found[int(rank[0])] = int(folder.name)
    return [found[rank] for rank in sorted(found)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("loader.global_batch_size=1",), "the global batch of 1 is smaller than the 2 ranks"),
        (("cluster.partition_ratios=[1,1,1]",), "partition_ratios"),
        (("job=digest",), "job=digest is one process"),
    ],
    ids=["too small", "ratios", "digest"],
)
def test_what_ranks_cannot_do_is_refused_by_all_at_once(start, words, says):
    said = ended(start(*torchrun(2, *words)), status=1)
    assert says in said
    ours = re.split(r"torch.distributed.elastic", said, maxsplit=1)[0]  # torchrun's own lines name its module or file
    assert "Traceback (most recent call last)" not in ours
