"""Window arithmetic, against a loop that anyone can check."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.sources.windows import Windows


def naive(tokens: list[int], seq_len: int, stride: int, keep: bool) -> tuple[list[tuple[int, int, int]], int, int]:
    """Return (shard, first token, tokens) of each window, tokens after the last windows, and tokens between windows."""
    found, tail, gap = [], 0, 0
    for shard, count in enumerate(tokens):
        at, used = 0, set()
        while at + seq_len + 1 <= count:
            found.append((shard, at, seq_len + 1))
            used.update(range(at, at + seq_len + 1))
            at += stride
        if keep and at + 1 < count and max(used, default=-1) < count - 1:
            found.append((shard, at, count - at))
            used.update(range(at, count))
        last = max(used, default=-1)
        tail += count - 1 - last
        gap += last + 1 - len(used)
    return found, tail, gap


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    seq_len=st.integers(1, 20),
    stride=st.integers(1, 30),
    keep=st.booleans(),
)
def test_windows_equal_a_naive_loop(tokens: list[int], seq_len: int, stride: int, keep: bool) -> None:
    windows = Windows(np.array(tokens), seq_len, stride, keep)
    found, tail, gap = naive(tokens, seq_len, stride, keep)
    assert len(windows) == len(found)
    assert windows.per_shard.tolist() == [sum(shard == s for shard, _, _ in found) for s in range(len(tokens))]
    assert (int(windows.tail_tokens.sum()), windows.gap_tokens) == (tail, gap)
    shards, first = windows.rows(np.zeros(len(windows.tokens), dtype=np.int64), 1).locate(np.arange(len(found)))
    assert list(zip(shards.tolist(), first.tolist(), strict=True)) == [(s, f) for s, f, _ in found]


def test_counts_are_exact_at_2_to_the_62() -> None:
    windows = Windows(np.array([2**61, 2**61 - 5]), 1, 1, False)
    assert len(windows) == 2**62 - 7
    shards, first = windows.rows(np.zeros(len(windows.tokens), dtype=np.int64), 1).locate(
        np.array([2**61 - 2, 2**61 - 1, 2**62 - 8])
    )
    assert (shards.tolist(), first.tolist()) == ([0, 1, 1], [2**61 - 2, 0, 2**61 - 7])


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_outside_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match=r"0 \.\. 1"):
        Windows(np.array([9]), 4, 4, False).rows(np.array([0]), 1).locate(np.array([index]))
