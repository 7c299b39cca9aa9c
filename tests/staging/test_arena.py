"""Memory of tiers: zeroed, resident only where it was written, refused with a remedy."""

import numpy as np
import pytest

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import StagingError
from flodl_pipe.memory.probe import resident_set_bytes
from flodl_pipe.staging.arena import reserve
from flodl_pipe.staging.ranking import StorageOrder
from tests.contract.tiers import Stamped
from tests.staging.caches import cache_of

MIB = 1 << 20


def test_what_is_not_written_takes_no_memory() -> None:
    before = resident_set_bytes()
    memory = reserve(1 << 30)
    assert len(memory) == 1 << 30
    memory[: 4 * MIB] = 1
    assert resident_set_bytes() - before < 64 * MIB
    assert not memory[4 * MIB : 4 * MIB + 100].any()


def test_rows_taken_in_here_and_there_take_about_their_own_size() -> None:
    source = Stamped(200_000, SampleSpec.of(x=("uint8", (3_072,))))
    cache = cache_of(source, StorageOrder(200_000), 0, 200_000)
    some = np.random.default_rng(0).permutation(200_000)[:1_000]
    out = source.spec.empty(1_000)
    source.read_into(some, np.arange(1_000), out)
    before = resident_set_bytes()
    cache.offer(some, np.arange(1_000), out)
    assert cache.read_into(some, np.arange(1_000), out).all()
    assert resident_set_bytes() - before < 32 * MIB


def test_what_the_system_refuses_is_said_with_a_remedy() -> None:
    with pytest.raises(StagingError, match=r"no memory for a tier of .*; lower loader\.ram_max_usage"):
        reserve(1 << 62)
