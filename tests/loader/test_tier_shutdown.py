"""Shutdown of loaders with tiers of the host leaves no thread, process, descriptor, file or grant.

``FLODL_PIPE_SHUTDOWNS`` says how many endings are tried; the seed is fixed.
"""

import os
import random
from pathlib import Path

import pytest

from flodl_pipe.loader import outline, stores
from flodl_pipe.loader.loader import Loader
from flodl_pipe.staging.ram_cache import RamCache
from flodl_pipe.staging.ram_ragged import RaggedCache
from tests.loader.device_scenarios import Sentences, records, tokens, write_data
from tests.loader.endings import ENDINGS, end_all
from tests.loader.process_sources import Faulty, Rows
from tests.loader.sources import Numbers
from tests.loader.streams import Lanes

COUNT = int(os.environ.get("FLODL_PIPE_SHUTDOWNS", "250"))

KINDS = {
    "RAM cache of files": 4,
    "RAM cache of a slow source": 4,
    "RAM cache of a dataset": 2,
    "resident": 2,
    "resident slowly": 2,
    "disk stage": 4,
    "RAM cache and disk stage": 4,
    "ragged": 2,
    "stream": 1,
}

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")


@pytest.fixture(autouse=True)
def _little_room(monkeypatch):
    """Give the tiers room for half of a set, and let them fill in many pieces."""
    real = outline.plan_tiers

    def plan_tiers(source, *args, room_bytes, **options):
        # Of ragged rows the size is not known before.
        half = 1_500 if source.spec.is_ragged else len(source) * source.spec.row_bytes // 2
        return real(source, *args, room_bytes=min(room_bytes, half), **options)

    monkeypatch.setattr(outline, "plan_tiers", plan_tiers)
    monkeypatch.setattr(stores, "CHUNK_BYTES", 4_000)
    for cache in (RamCache, RaggedCache):
        monkeypatch.setitem(cache.fill.__kwdefaults__, "chunk_bytes", 4_000)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "left").mkdir()
    write_data(tmp_path / "data")
    return tmp_path / "data"


def maker(folder):
    left = folder.parent / "left"
    seen = {}

    def make(kind, rng):
        options = {
            "device": "cpu",
            "mode": "streaming",
            "batch_size": rng.choice([4, 16, 60]),
            "readers": rng.choice([0, 1, 2, 3]),
            "prefetch": rng.choice(["auto", 1, 3]),
            "keep_digest": rng.random() < 0.5,
        }
        source = tokens(folder) if rng.random() < 0.3 else records(folder)
        match kind:
            case "RAM cache of a slow source":
                source = Numbers(2_000, 30, delay_s=0.003)
            case "RAM cache of a dataset":
                source = Rows(300)
            case "resident" | "resident slowly":
                options["mode"] = "resident"
                if kind == "resident slowly":
                    source = Numbers(2_000, 30, delay_s=0.003)
            case "disk stage":
                options |= {"sample_cache": False, "disk_stage": 1 << 20, "disk_stage_dir": str(left)}
            case "RAM cache and disk stage":
                source = records(folder)
                options |= {"disk_stage": 1 << 20, "disk_stage_dir": str(left)}
            case "ragged":
                source, options["collate"] = Sentences(), "pad"
            case "stream":
                source = Lanes(40, 55, 31, 60)
            case "reader processes":
                source = Rows(300, busy_us=500)
                options |= {"reader_kind": "process", "readers": rng.choice([1, 2])}
            case "stuck reader processes":
                source = Faulty(200)
                options |= {"reader_kind": "process", "readers": 2, "batch_size": 4, "shuffle": False}
        loader = Loader(source, seed=rng.randrange(1000), **options)
        seen[kind] = loader.granted()
        return loader

    return make, seen


def test_random_endings_leave_nothing_of_the_tiers(data):
    make, seen = maker(data)
    end_all(random.Random(7), COUNT, KINDS, list(ENDINGS), make, data.parent / "left")
    # The kinds are what their names say.
    assert COUNT < 100 or set(seen) == set(KINDS)
    for kind, granted in seen.items():
        purposes = {purpose for purpose, num_bytes in granted if num_bytes}
        assert ("disk stage" in purposes) == ("disk stage" in kind), kind
        assert "RAM cache" not in kind or "RAM cache" in purposes, (kind, granted)
        assert "resident" not in kind or "resident set" in purposes, (kind, granted)


def test_random_endings_leave_no_reader_process(data):
    make, _ = maker(data)
    with make("reader processes", random.Random(1)) as loader:
        next(iter(loader))  # the server of forks starts, and stays
    kinds = {"reader processes": 2, "stuck reader processes": 1}
    count = max(6, COUNT // 20)
    end_all(random.Random(9), count, kinds, [name for name in ENDINGS if name != "finish"], make, data.parent / "left")
