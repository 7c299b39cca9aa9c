"""``job=run`` under torchrun: real launches, one digest, one run folder, one save, whatever happens to the ranks."""

import json
import os
import re
import signal
from subprocess import PIPE, STDOUT

import pytest

from flodl_pipe.config.compose import load_config
from flodl_pipe.jobs import run
from tests.jobs import watched
from tests.support.programs import Program, launching

pytestmark = pytest.mark.full

# The sample corpus has 511 windows of 8,192 tokens: 21 steps of 24 rows an epoch.
WORDS = (
    *("+recipe=olmo_shards", "source.seq_len=8192", "loader.global_batch_size=24", "loader.device=cpu"),
    *("loader.readers=1", "reports.progress=false"),
)


@pytest.fixture
def start(tmp_path):
    """Start a command in a folder of its own; whatever is left of it at the end is killed."""
    started = []

    def begin(*command):
        own = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "FLODL_PIPE_HOST": "h"}
        process = Program(
            command,
            cwd=tmp_path,
            env=launching(tmp_path.parent, **own),
            text=True,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        watched.end(process)


def torchrun(num_ranks, *words, max_restarts=0):
    options = ("--standalone", f"--nproc-per-node={num_ranks}", f"--max-restarts={max_restarts}")
    return ("-m", "torch.distributed.run", *options, "-m", "flodl_pipe", *words)


def ended(process, status=0):
    said, _ = process.communicate(timeout=watched.LIMIT_S)
    assert process.returncode == status, said
    return said


@pytest.fixture
def alone(table):
    """Return the digest of a run of this process, of the recipe above."""
    return lambda *words: table(run.main, load_config(*WORDS, *words))[1]["digest"]


def test_unequal_ranks_print_one_table_with_the_digest_of_one_process(start, alone, tmp_path):
    said = ended(start(*torchrun(3, *WORDS, "cluster.partition_ratios=[3,2,1]", "job.epochs=2")))
    assert said.count(alone("job.epochs=2")) == 1
    for rank, rows in enumerate((504, 336, 168)):  # of 1,008
        assert re.search(rf"h/{rank} +{rows} rows", said), said
    assert "\nMemory of h/0\n" in said
    assert said.count("a small sample is used instead") == 1
    assert said.count("[WARNING]") == 1
    (folder,) = [file.parent for file in tmp_path.glob("outputs/*/*/.hydra")]
    assert (folder / "flodl_pipe.log").exists()
    assert not list(tmp_path.glob("*.log"))


def test_a_save_of_two_ranks_goes_on_on_three_and_on_one(start, alone, saved):
    more = (*WORDS, "job.epochs=3", "job.save=run.json", "job.resume=run.json")
    ended(start(*torchrun(2, *more, "job.max_steps=7")))
    assert saved("run.json")["num_steps"] == 7
    ended(start(*torchrun(3, *more, "job.max_steps=11", "cluster.partition_ratios=[1,4,2]")))
    assert saved("run.json")["num_steps"] == 11
    ended(start("-m", "flodl_pipe", *more))
    assert saved("run.json")["digest"] == alone("job.epochs=3")


RESUMED = (*watched.WORDS, "job.save=run.json", "job.resume=run.json")


@pytest.fixture
def undisturbed(start, tmp_path, saved):
    """Return the digest of the watched run by one process; what a run before it may have is given to it as well."""
    watched.write(tmp_path)

    def digest():
        watched.go_on(tmp_path)
        ended(start("-m", "flodl_pipe", *watched.WORDS, "job.save=alone.json"))
        return saved("alone.json")["digest"]

    return digest


def test_a_rank_that_is_killed_is_started_anew_with_the_others(start, undisturbed, tmp_path, saved):
    process = start(*torchrun(3, *RESUMED, "job.save_every_steps=2", max_restarts=2))
    file = tmp_path / "run.json"
    watched.await_(lambda: file.exists() and saved(file)["num_steps"] == 4, process)
    os.kill(watched.ranks_of(process.pid)[1], signal.SIGKILL)
    watched.go_on(tmp_path)
    said = ended(process)
    assert "torchrun has started the ranks anew; restart 1" in said
    assert "resumed from" in said
    assert saved(file)["num_steps"] == 16
    assert saved(file)["digest"] == undisturbed()


def test_torchrun_that_is_told_to_end_saves_and_other_ranks_go_on(start, undisturbed, tmp_path, saved):
    watched.go_on(tmp_path)
    # Steps of ten minutes: all ranks are in one when the signal comes, however late that is.
    process = start(*torchrun(3, *RESUMED, "job.step_time_s=600"))
    watched.await_(lambda: watched.are_reading(tmp_path, 3), process)
    process.terminate()
    process.communicate(timeout=watched.LIMIT_S)
    assert process.returncode != 0
    steps = saved("run.json")["num_steps"]
    assert steps == 1
    said = ended(start(*torchrun(2, *RESUMED)))
    assert f"after {steps} step" in said
    assert saved("run.json")["digest"] == undisturbed()


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
def test_ranks_count_a_sample_that_they_skip_once(start, tmp_path, saved, limit):
    (tmp_path / "photos.py").write_text(PHOTOS)
    words = ("source=custom", "source.factory=photos:Photos", "allow_import=[photos]", "source.on_error=skip")
    words += (f"source.max_skipped={limit}", "loader.batch_size=8", "loader.global_batch_size=8")
    words += ("loader.device=cpu", "loader.readers=1", "reports.progress=false", "job.epochs=3", "job.save=run.json")
    ranks = start(*torchrun(2, *words))
    if limit < 4:
        assert f"4 samples could not be read, and source.max_skipped is {limit}" in ended(ranks, status=1)
        return
    said = ended(ranks)
    assert "4 samples that could not be read: 5, 20, 37, 63" in re.sub(r"\s+", " ", said)
    (ledger,) = tmp_path.glob("outputs/*/*/skipped.jsonl")
    assert [json.loads(line)["sample"] for line in ledger.read_text().splitlines()] == [5, 20, 37, 63]
    record = saved("run.json")
    assert [sample for sample, _ in json.loads(record["loader"]["skipped"])] == [5, 20, 37, 63]
    ended(start("-m", "flodl_pipe", *words, "job.save=one.json"))
    assert saved("one.json")["digest"] == record["digest"]


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
    said = ended(start(*torchrun(2, *WORDS, *words)), status=1)
    assert says in said
    ours = re.split(r"torch.distributed.elastic", said, maxsplit=1)[0]  # torchrun's own lines name its module or file
    assert "Traceback (most recent call last)" not in ours
