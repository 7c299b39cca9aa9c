"""How a process finds its place: what torch.distributed and its environment say, and what cannot be."""

import pytest

from flodl_pipe.cluster import joining
from flodl_pipe.cluster.joining import join
from flodl_pipe.cluster.world import World
from flodl_pipe.config.cluster import ClusterConfig
from flodl_pipe.errors import ClusterError


class Joining(Exception):
    """Stands for the meeting with the other ranks."""


@pytest.fixture
def started(monkeypatch):
    """A process among two, up to where it would talk to the other; the local rank that it joins with is noted."""

    def meet(host, local_rank, timeout_s):
        raise Joining(local_rank)

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "FLODL_PIPE_HOST", "FLODL_PIPE_HOST_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(joining.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(joining.torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(World, "join", meet)


@pytest.mark.parametrize(("text", "number"), [(None, None), ("0", 0), ("12", 12)])
def test_the_local_rank_is_what_torchrun_says_or_left_to_the_order_of_ranks(started, monkeypatch, text, number):
    if text is not None:
        monkeypatch.setenv("LOCAL_RANK", text)
    with pytest.raises(Joining) as caught:
        join(ClusterConfig())
    assert caught.value.args == (number,)


@pytest.mark.parametrize("text", ["abc", "-1", "", " 1", "1.0", "\u0661"])
def test_a_local_rank_that_is_no_number_is_refused(started, monkeypatch, text):
    monkeypatch.setenv("LOCAL_RANK", text)
    with pytest.raises(ClusterError, match=r"must be a whole number from 0 on, .* or unset it") as caught:
        join(ClusterConfig())
    assert str(caught.value).startswith(f"LOCAL_RANK={text!r} ")


def test_the_environment_is_not_asked_where_torch_distributed_knows(started, monkeypatch):
    monkeypatch.setenv("RANK", "of a launcher of one's own")
    with pytest.raises(Joining):
        join(ClusterConfig())
