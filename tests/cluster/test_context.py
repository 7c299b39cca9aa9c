"""Rank and world size come from torchrun's environment, or there is one process."""

import pytest

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ClusterError


def test_a_process_without_torchrun_is_alone():
    assert RunContext.from_environment({}) == RunContext(0, 1)


def test_torchrun_sets_both():
    assert RunContext.from_environment({"RANK": "2", "WORLD_SIZE": "4"}) == RunContext(2, 4)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is outside WORLD_SIZE=2"),
        ({"RANK": "-1"}, "RANK=-1"),
    ],
)
def test_an_impossible_environment_is_refused(environment, says):
    with pytest.raises(ClusterError, match=says):
        RunContext.from_environment(environment)
