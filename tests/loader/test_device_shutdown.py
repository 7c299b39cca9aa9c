"""Shutdown of loaders that deliver on a device leaves no thread, descriptor, device memory or page-locked memory.

``FLODL_PIPE_SHUTDOWNS`` says how many endings are tried; the seed is fixed.
"""

import os
import random

import pytest

from flodl_pipe.loader.loader import Loader
from tests.loader.device_scenarios import MEMORY, Sentences, noise, records, small_pieces, tokens, write_data
from tests.loader.endings import ENDINGS, end_all, end_each
from tests.loader.sources import Numbers
from tests.loader.streams import Lanes

COUNT = int(os.environ.get("FLODL_PIPE_SHUTDOWNS", "250"))

KINDS = {
    "no pool": 3,
    "partial pool": 3,
    "complete pool": 2,
    "resident": 3,
    "promoting": 4,
    "made batches": 2,
    "stream": 2,
    "slow source": 1,
}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    small_pieces(monkeypatch)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "left").mkdir()
    write_data(tmp_path / "data")
    return tmp_path / "data"


def maker(folder):
    def make(kind, rng):
        options = {
            "device": "simulated",
            "simulated": MEMORY,
            "batch_size": rng.choice([4, 16, 60]),
            "readers": rng.choice([0, 1, 2, 3]),
            "prefetch": rng.choice(["auto", 1, 2, 5]),
            "keep_digest": rng.random() < 0.5,
            "transforms": rng.choice([None, noise]),
        }
        source = tokens(folder) if rng.random() < 0.3 else records(folder)
        match kind:
            case "no pool":
                options |= {"mode": "streaming", "vram_pool": False}
            case "partial pool":
                source = records(folder, "large")
                options |= {"mode": "streaming", "batch_size": 16, "prefetch": 2}
            case "complete pool":
                options |= {"mode": "streaming"}
            case "resident":
                options |= {"mode": "resident"}
            case "promoting":
                options |= {"mode": "auto"}
            case "made batches":
                source, options["collate"] = Sentences(), "pad"
            case "stream":
                source = Lanes(40, 55, 31, 60)
            case "slow source":
                source = Numbers(2_000, 30, delay_s=0.02)
        if not isinstance(source, type(records(folder))):
            options["transforms"] = None
        return Loader(source, seed=rng.randrange(1000), **options)

    return make


def test_every_ending_leaves_nothing_on_the_device(data):
    end_each(random.Random(4), KINDS, list(ENDINGS), maker(data), data.parent / "left")


@pytest.mark.full
def test_random_endings_leave_nothing_on_the_device(data):
    end_all(random.Random(5), COUNT, KINDS, list(ENDINGS), maker(data), data.parent / "left")
