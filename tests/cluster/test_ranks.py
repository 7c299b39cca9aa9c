"""The harness itself: results, errors and statuses of real processes, and an end to those that hang."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.cluster import ranks
from tests.cluster.ranks import results, run_ranks
from tests.support.programs import Program

pytestmark = pytest.mark.full


def meet(scale):
    total = torch.tensor([float(scale * dist.get_rank())])
    dist.all_reduce(total)
    return total.item(), os.environ["LOCAL_RANK"], os.environ["FLODL_PIPE_HOST"]


def end_badly():
    rank = int(os.environ["RANK"])
    print(f"rank {rank} speaks")
    if rank == 0:
        raise ValueError("of rank 0")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(7)


def hang(folder):
    Path(folder, os.environ["RANK"]).touch()
    while True:
        time.sleep(60)


def test_ranks_talk_and_return():
    assert results(meet, 3, 10, hosts=["a", "b", "a"]) == [(30.0, "0", "a"), (30.0, "0", "b"), (30.0, "1", "a")]


def test_every_rank_ends_in_its_own_way(tmp_path):
    ended = run_ranks(end_badly, 4, init=False, absent=[3])
    assert [rank.status for rank in ended] == [1, -signal.SIGKILL, 7]
    assert [rank.error for rank in ended] == ["ValueError: of rank 0", None, "SystemExit: 7"]
    assert [rank.said.splitlines()[0] for rank in ended] == [f"rank {rank} speaks" for rank in range(3)]
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nprint(os.environ['RANK'], *sys.argv[1:])\nsys.exit(int(os.environ['RANK']))")
    assert [(rank.status, rank.said) for rank in run_ranks(script, 2, "word")] == [(0, "0 word\n"), (1, "1 word\n")]


def test_ranks_that_hang_are_ended_and_show_where(tmp_path, monkeypatch):
    """Their time is over when they have begun to hang, however long that takes."""

    class Watched(Program):
        def wait(self, timeout=None):
            while not all((tmp_path / str(rank)).exists() for rank in range(2)):
                time.sleep(0.01)
            return super().wait(timeout)

    monkeypatch.setattr(ranks, "Program", Watched)
    with pytest.raises(AssertionError, match=r"(?s)did not end within 0.1 s.*in hang.*in hang"):
        run_ranks(hang, 2, str(tmp_path), init=False, timeout_s=0.1)
