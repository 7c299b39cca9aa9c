"""Rows read ahead are exactly the source's, however they lie, and by one read where they lie together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.staging.ram_reading import RowReading
from tests.contract.tiers import Stamped, raw
from tests.staging import real_sources


def require_read(reading: RowReading, source: Any, indices: Any) -> None:
    wanted = source.spec.empty(len(indices))
    source.read_into(indices, np.arange(len(indices)), wanted)
    found = reading.read(indices)
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(raw(found[name][: len(indices)]), raw(value), err_msg=name)


@pytest.mark.parametrize("kind", real_sources.KINDS)
def test_rows_are_the_sources_however_they_lie(tmp_path: Path, kind: str) -> None:
    source = real_sources.make(kind, tmp_path)
    reading = RowReading(source)
    everything = np.arange(len(source))
    rng = np.random.default_rng(0)
    for indices in (
        everything,
        everything[:1],
        everything[-2:],
        everything[::-1].copy(),
        everything[::2].copy(),
        np.delete(everything, [5, 11]),
        np.array([10, 11, 9]),
        np.array([4, 4, 5]),
        rng.permutation(len(source)),
        rng.integers(0, len(source), 20),
    ):
        require_read(reading, source, indices)


def test_a_source_without_extents_is_asked_for_rows() -> None:
    source = Stamped()
    require_read(RowReading(source), source, np.arange(7, 30))
    assert source.reads[-1] == list(range(7, 30))
