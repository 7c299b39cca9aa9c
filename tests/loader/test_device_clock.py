"""On the virtual clock of a simulated device: reading, copying and computing overlap, so the slowest decides."""

import pytest

from flodl_pipe.loader.loader import Loader
from tests.loader.device_cases import Fields, small_device

BATCH, STEPS, WIDTH = 4, 200, 5000
ROW_BYTES = Fields(width=WIDTH).spec.row_bytes
TICK_S = 0.005


def time_of(*, read_s, copy_s, step_s, readers=1, epochs=1, **options):
    """Return how long the steps take after the first batch is there, and how long that takes.

    The first batch is read, copied and handed over before anything can overlap with it.
    """
    rate = int(BATCH * ROW_BYTES / copy_s)
    with small_device(64 << 20, copy_bytes_per_s=rate, latency_s=0.0) as (device, get):

        def on_read(indices):
            get().clock.spend(read_s * len(indices) / BATCH)

        source = Fields(BATCH * STEPS, WIDTH, on_read=on_read)
        options = {"mode": "streaming", "vram_pool": False, "sample_cache": False, "check_purity": False, **options}
        with Loader(source, batch_size=BATCH, readers=readers, prefetch=8, **device, **options) as loader:
            clock = get().clock
            for epoch in range(epochs):
                begin_s, started_s, steps = clock.now(), None, 0
                for batch in loader.epoch(epoch):
                    if started_s is None:
                        started_s = clock.now()
                    clock.spend(step_s)
                    steps += 1
                    del batch
                assert steps == STEPS
            assert get().faults == []
            return clock.now() - started_s, started_s - begin_s


@pytest.mark.parametrize(
    ("read", "copy", "step"),
    [
        *((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)),
        *(
            pytest.param(*speeds, marks=pytest.mark.full)
            for speeds in ((2, 2, 1), (1, 2, 2), (2, 1, 2), (0.01, 0.01, 1), (1, 0.01, 0.01))
        ),
    ],
)
def test_the_slowest_part_sets_the_pace(read, copy, step):
    took_s, start_s = time_of(read_s=read * TICK_S, copy_s=copy * TICK_S, step_s=step * TICK_S)
    slowest_s = max(read, copy, step) * TICK_S
    assert took_s <= 1.05 * STEPS * slowest_s
    assert took_s >= (STEPS - 9) * slowest_s  # of which a few were read ahead
    assert start_s <= 2.5 * (read + copy) * TICK_S * 2


def test_several_readers_share_slow_reading():
    alone_s, _ = time_of(read_s=3 * TICK_S, copy_s=0.1 * TICK_S, step_s=TICK_S, readers=1)
    assert alone_s >= 2.8 * STEPS * TICK_S


def test_without_readers_nothing_overlaps():
    took_s, _ = time_of(read_s=TICK_S, copy_s=TICK_S, step_s=TICK_S, readers=0)
    assert took_s >= 2.9 * (STEPS - 1) * TICK_S


def test_a_later_epoch_begins_where_the_clock_stands():
    took_s, start_s = time_of(read_s=TICK_S, copy_s=TICK_S, step_s=TICK_S, epochs=2)
    assert took_s <= 1.05 * STEPS * TICK_S
    assert took_s >= (STEPS - 9) * TICK_S
    assert start_s >= 2 * TICK_S


def test_a_complete_pool_costs_no_copy():
    took_s, _ = time_of(
        read_s=TICK_S, copy_s=4 * TICK_S, step_s=TICK_S, epochs=3, vram_pool=True, mode="resident", drop_last=False
    )
    assert took_s <= 1.05 * STEPS * TICK_S
