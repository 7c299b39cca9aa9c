"""What a plan says of tiers, epochs, devices and speed, and of what has no effect."""

import threading
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.jobs.plan import main
from flodl_pipe.jobs.plan_probe import probe_reads
from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.pipeline import outline
from tests.jobs.composed import composed

ROW = 1024
SIM = ("loader.device=simulated", "loader.simulated.memory_bytes=16MiB")
RECORDS = (
    *("source=records", "source.path=data.rec", f"source.record_bytes={ROW}", "loader.batch_size=50"),
    f"source.fields={{x: {{offset: 0, dtype: uint8, shape: [{ROW}]}}}}",
)


@pytest.fixture
def plan(table, tmp_path):
    np.random.default_rng(0).integers(0, 256, 2000 * ROW, dtype=np.uint8).tofile(tmp_path / "data.rec")

    def rows(*words):
        return table(main, composed(*RECORDS, "job=plan", *words))[1]

    return rows


@pytest.fixture
def small_host(monkeypatch):
    memory = HostMemory(1 << 36, 4 << 20, "host")  # 2 MiB may be held
    monkeypatch.setattr("flodl_pipe.loader.host_budget.probe_host", lambda: memory)


def test_one_epoch_keeps_nothing_and_says_how_to_see_more(plan):
    rows = plan("loader.mode=streaming")
    assert rows["RAM cache"] == "off: the run has one epoch, in which no sample comes twice"
    assert "job.epochs=2 shows" in rows["later epochs"]
    assert "job.epochs=2" not in str(plan("loader.mode=streaming", "job.epochs=2"))


def test_the_ranges_of_tiers_are_told_from_both_ends(plan, small_host):
    words = ("loader.mode=streaming", "job.epochs=5", "loader.prefetch=4", "loader.disk_stage=200KiB")
    rows = plan(*words, "loader.disk_stage_dir=.")
    assert rows["RAM cache"].split(" .. ")[1].startswith("1,999, kept as they are read and read ahead")
    assert " of 2,000 samples" in rows["disk stage"]
    assert rows["source"].startswith("what no tier has: ")
    assert rows["ranked"].startswith("storage order")


def test_epochs_alike_are_one_line(plan):
    rows = plan("loader.mode=streaming", "job.epochs=30", "job.probe=false", *SIM)  # on no measured speed
    assert "2-30" in rows or "3-30" in rows
    (later,) = (text for name, text in rows.items() if name.endswith("-30"))
    assert later.split()[0] == "100.0"  # the pool


def test_the_mode_of_a_device_is_told(plan):
    assert plan("job.epochs=3", "loader.simulated.memory_bytes=64MiB", SIM[0])["mode"].startswith("resident: ")
    assert plan("job.epochs=3", *SIM)["mode"].startswith("streaming, then resident from the second batch on")
    assert plan("job.epochs=3", "loader.mode=streaming", *SIM)["mode"] == "streaming: loader.mode=streaming"


def test_what_a_device_grants_is_told_with_its_discount(plan):
    rows = plan("job.epochs=3", *SIM)
    assert "simulated, 16.0 MiB" in rows["device"]
    assert "1/3 of that before the first step" in rows["budget at first"]
    assert rows["budget later"].startswith("from the second batch on ")


@pytest.mark.parametrize(
    ("words", "why"),
    [(("loader.vram_pool=false",), "loader.vram_pool=false"), ((), "FLODL_VRAM_POOL=off in the environment")],
)
def test_a_pool_that_is_switched_off_says_by_what(plan, monkeypatch, words, why):
    if not words:
        monkeypatch.setenv("FLODL_VRAM_POOL", "off")
    assert plan("job.epochs=3", *SIM, *words)["sample pool"] == f"off: {why}"


def test_knobs_of_a_device_without_effect_are_told(plan, monkeypatch):
    monkeypatch.setenv("FLODL_VRAM_POOL", "off")
    rows = plan("loader.device=cpu", "loader.vram_pool=false", "loader.activation_reserve=1GiB")
    assert rows["loader.vram_pool"] == "false, no effect on a CPU"
    assert rows["loader.activation_reserve"] == "1.00 GiB, no effect on a CPU"
    assert rows["FLODL_VRAM_POOL"] == "off in the environment, no effect on a CPU"
    rows = plan("loader.gpu_ram_share=0.5", *SIM)
    assert rows["loader.gpu_ram_share"] == "0.5, no effect: simulated has memory of its own"
    assert "loader.vram_max_usage" not in rows
    rows = plan("loader.device=cpu", "loader.simulated.memory_bytes=1GiB")
    assert rows["loader.simulated"] == "no effect: loader.device=cpu"


def test_a_disk_stage_without_effect_is_told(plan):
    rows = plan("loader.mode=streaming", "job.epochs=3", "loader.disk_stage=1MiB", "loader.disk_stage_dir=.")
    assert rows["loader.disk_stage"] == "1.00 MiB, no effect: the RAM cache holds the whole set"
    assert rows["disk stage"] == "off: the RAM cache holds the whole set"


def test_what_sets_the_pace_is_told(plan):
    rows = plan("job.epochs=3", "job.step_time_s=0.5", *SIM)
    assert rows["read probe"].startswith("2,000 rows, ")
    assert rows["step time"] == "500.0 ms (job.step_time_s)"
    assert rows["epoch 1"].startswith("the loop runs at the speed of the step (reading ")
    assert "loader.simulated says" in rows["copy speed"]
    slow = plan("job.epochs=3", "job.step_time_s=0.000001", "loader.simulated.copy_bytes_per_s=1MB", *SIM)
    assert slow["epoch 1"].startswith("copying takes ")


def test_without_a_probe_nothing_is_read(plan, monkeypatch):
    from flodl_pipe.sources.records import Records

    def refuse(*args, **kwargs):
        raise AssertionError("a row was read")

    monkeypatch.setattr(Records, "read_into", refuse)
    rows = plan("job.epochs=3", "job.probe=false")
    assert rows["read probe"] == "not measured: job.probe=false"
    assert "epoch 1" not in rows
    assert plan("job.epochs=3")["read probe"] == "not measured: reading failed (a row was read)"


def test_a_probe_is_bounded_by_bytes_and_time_and_begins_with_one_row(plan, tmp_path):
    plan("job.probe=false")
    found = outline(composed(*RECORDS, "job=plan"))
    few = probe_reads(found, fills=False, max_bytes=100 * ROW)
    assert (few.num_rows, few.num_bytes) == (100, 100 * ROW)
    times = iter(range(100))
    slow = probe_reads(found, fills=False, clock=lambda: float(next(times)))  # a second a call
    assert slow.num_rows == 1
    assert probe_reads(found, fills=True, max_bytes=100 * ROW).num_rows == 50
    found.source.close()


def test_a_probe_leaves_no_file_open_and_starts_no_thread(plan, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a plan must not do this")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = sorted(str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    plan("job.epochs=3", *SIM)
    after = sorted(str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    assert [name for name in after if "data.rec" in name] == []
    assert len(after) <= len(before) + 1
