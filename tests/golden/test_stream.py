"""The stream of samples, pinned: a run that resumes after an upgrade must meet the same samples in the same batches.

If one of these values has to change, the tag of the order or the version of the cursor must change with it, and the
changelog must call it a breaking change.
"""

import tracemalloc

import pytest

from flodl_pipe.loader.loader import Loader
from flodl_pipe.sampling.orders import UniformOrder
from tests.loader.sources import Numbers, ids

FIRST_BATCHES = {
    0: [[58, 56, 42, 82, 9, 32, 93, 34], [87, 53, 85, 83, 67, 41, 21, 22]],
    1: [[1, 2, 12, 68, 80, 51, 98, 86], [59, 45, 15, 29, 19, 78, 40, 64]],
}
DIGEST = "4aa44ab3f5910cfaf3219becf2166c64"
ORDERS = {
    (10, 0, 0): [0, 3, 4, 6, 9],
    (100_000, 42, 3): [69983, 37779, 76856, 34261, 22475],
    (10**15, 42, 0): [849900136324454, 298901064714585, 733038129609193, 932633449477924, 6218511329892],
}


@pytest.mark.parametrize(("key", "picks"), ORDERS.items())
def test_orders(key, picks):
    num_picks, seed, epoch = key
    assert UniformOrder(num_picks, seed).epoch(epoch).at(num_picks // 2, num_picks // 2 + 5).tolist() == picks


def test_batches_and_digest():
    with Loader(Numbers(100), batch_size=8, seed=42, keep_digest=True) as loader:
        for epoch, first in FIRST_BATCHES.items():
            assert ids(loader.epoch(epoch))[: len(first)] == first
        assert loader.statistics().digest == DIGEST


def test_the_cursor():
    with Loader(Numbers(100), batch_size=8, seed=42) as loader:
        next(iter(loader))
        assert loader.state_dict() == {
            "epoch": 0,
            "position": 8,
            "global_batch": 8,
            "order": "uniform f6v1 picks=100 seed=42",
            "source": "numbers: 100 x 3 [0000006400000003]",
            "transforms": "",
            "shares": "",
            "mixture": "",
            "streams": "",
            "skipped": "",
            "version": 1,
        }


def test_an_order_of_10_to_the_15_takes_no_memory():
    tracemalloc.start()
    try:
        order = UniformOrder(10**15, 1).epoch(0)
        for start in range(0, 10**15, 10**13):
            order.at(start, start + 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
