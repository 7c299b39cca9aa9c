"""Rank and world size come from torchrun's environment, or there is one process."""

import pytest

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ClusterError


def test_a_process_without_torchrun_is_alone():
    assert RunContext.from_environment({}) == RunContext(0, 1)


def test_torchrun_sets_both():
    assert RunContext.from_environment({"RANK": "2", "WORLD_SIZE": "4"}) == RunContext(2, 4)


@pytest.mark.parametrize("environment", [{"RANK": "0"}, {"WORLD_SIZE": "1"}])
def test_one_of_the_two_may_say_that_there_is_one_process(environment):
    assert RunContext.from_environment(environment) == RunContext(0, 1)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"rank 2 is outside a world of 2: ranks are 0 \.\. 1"),
        ({"RANK": "-1", "WORLD_SIZE": "1"}, "rank -1 is outside"),
        ({"WORLD_SIZE": "2"}, r"WORLD_SIZE=2, and RANK is not set: .* torchrun, .* or unset WORLD_SIZE to run one"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0, and RANK is not set"),
        ({"RANK": "1"}, r"RANK=1, and WORLD_SIZE is not set: .* or unset RANK"),
        ({"RANK": "-1"}, "RANK=-1, and WORLD_SIZE is not set"),
    ],
)
def test_an_impossible_environment_is_refused(environment, says):
    with pytest.raises(ClusterError, match=says):
        RunContext.from_environment(environment)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("0", 2), "rank must be an integer, got '0'"),
        ((0, "2"), "world_size must be an integer, got '2'"),
        ((0, 0), "world_size must be at least 1, got 0"),
        ((0, 2, (1,)), "must be one positive whole number or fraction for each of the 2 ranks"),
        ((0, 2, (1, 0)), "must be one positive whole number"),
    ],
)
def test_a_context_of_ones_own_is_checked(arguments, says):
    with pytest.raises(ClusterError, match=says):
        RunContext(*arguments)
