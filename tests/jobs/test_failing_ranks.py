"""What ends a rank is said before the others can know that it has gone, for then torchrun ends it; it is said once."""

import os

import pytest
from torch import distributed

from flodl_pipe.config.cluster import ClusterConfig
from flodl_pipe.errors import ClusterError, SourceError
from flodl_pipe.jobs.ranks import Part, job_ranks
from flodl_pipe.reports.failure import say_failure, was_said
from tests.cluster.ranks import run_ranks

OURS = SourceError("record 7 of a.bin is torn; mend it")
THEIRS = ValueError("of somebody's own dataset")


def fail(errors):
    """Join the ranks of a job, and raise this rank's error; one without an error waits for the others."""
    rank = int(os.environ["RANK"])
    if errors[rank] is not None:
        # What torchrun may do as soon as the others know: nothing can be said any more.
        distributed.destroy_process_group = lambda: os._exit(9)
    with job_ranks(ClusterConfig()) as ranks:
        if errors[rank] is not None:
            raise errors[rank]
        ranks.meet(Part(1, 1, "0" * 32, 0.0, 0.0, stops=False))


def said_by(errors):
    return [rank.said for rank in run_ranks(fail, len(errors), errors, init=False, agent_store=True)]


@pytest.mark.parametrize(
    ("error", "says"),
    [(OURS, "flodl_pipe: record 7 of a.bin is torn; mend it\n"), (THEIRS, "\nValueError: of somebody's own dataset\n")],
    ids=["ours", "another's"],
)
def test_a_rank_says_why_before_it_leaves(error, says):
    first, second = said_by([None, error])
    assert says in second
    assert ("Traceback" in second) == (error is THEIRS)
    assert "it has ended, or given up; see what it says" in first


def test_what_all_would_say_is_said_by_one():
    assert sorted(said_by([OURS] * 3)) == ["", "", f"flodl_pipe: {OURS}\n"]


def test_different_reasons_are_all_said():
    said = said_by([ClusterError("of rank 0"), ClusterError("of rank 1"), ClusterError("of rank 1")])
    assert said[0] == "flodl_pipe: of rank 0\n"
    assert sorted(said[1:]) == ["", "flodl_pipe: of rank 1\n"]


def test_an_error_is_said_once(capsys):
    error = SourceError("torn")
    assert not was_said(error)
    for _ in range(2):
        say_failure(error)
    assert was_said(error)
    other = SourceError("said by another")
    say_failure(other, silently=True)
    say_failure(other)
    assert capsys.readouterr().err == "flodl_pipe: torn\n"
