"""How many processes read a dataset that is random on purpose never changes what it gives."""

import numpy as np
import pytest

from flodl_pipe.loader.process_readers import ProcessReaders
from flodl_pipe.sources.adapters import adapt
from tests.loader.process_sources import Random, RandomRagged
from tests.sources.test_impure import rows, states

ORDER = np.random.default_rng(0).permutation(1000)[:200]
REPEATS = np.arange(200) % 3
BATCH = 32


def steps(first=0):
    return [slice(start, start + BATCH) for start in range(first, len(ORDER), BATCH)]


def stacked(reader, spec, here, epoch):
    out = spec.empty(len(ORDER[here]))
    reader.read_picks(ORDER[here], REPEATS[here], epoch, 5, np.arange(len(ORDER[here])), out)
    return rows(out)


def ragged(reader, spec, here, epoch):
    return rows(reader.read_pick_rows(ORDER[here], REPEATS[here], epoch, 5))


@pytest.mark.parametrize(
    ("read", "make"),
    [
        (stacked, lambda: adapt(Random(), pure=False)),
        (ragged, lambda: adapt(RandomRagged(), ragged=["values"], pure=False)),
    ],
    ids=["stacked", "ragged"],
)
def test_bytes_are_the_same_with_any_number_of_processes_and_from_any_step_on(read, make):
    source = make()
    whole = {epoch: [read(source, source.spec, here, epoch) for here in steps()] for epoch in (0, 1)}
    assert whole[0] != whole[1]
    before = states()
    for num_processes, start in [(1, "forkserver"), (3, "forkserver"), (2, "fork")]:
        readers = ProcessReaders(make(), num_processes=num_processes, start=start, max_rows=BATCH)
        try:
            for epoch in (0, 1):
                assert [read(readers, source.spec, here, epoch) for here in steps()] == whole[epoch]
            resumed = [read(readers, source.spec, here, 0) for here in steps(3 * BATCH)]
            assert resumed == whole[0][3:]
        finally:
            readers.close()
    assert states() == before


def test_a_read_without_picks_is_the_sources():
    source = adapt(Random(), pure=False)
    readers = ProcessReaders(source, num_processes=2, start="forkserver", max_rows=BATCH)
    try:
        out, own = source.spec.empty(20), source.spec.empty(20)
        readers.read_into(np.arange(20), np.arange(20), out)
        source.read_into(np.arange(20), np.arange(20), own)
        assert rows(out) == rows(own)
    finally:
        readers.close()
