"""A disk stage gives back the bytes it was offered, to any number of readers, and holds a range of ranks."""

import contextlib
import os
import threading

import numpy as np
import pytest

from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import ConfigError
from flodl_pipe.staging.cascade import Cascade
from flodl_pipe.staging.disk_stage import rows_fitting
from tests.contract.tiers import TierContract
from tests.staging.disk_rows import SPECS, Reversed, Rows, fill, make_stage, open_descriptors, overwrite, read_through


@pytest.mark.parametrize("kind", SPECS)
def test_rows_come_back_as_they_were_offered(kind, tmp_path):
    row_bytes = SPECS[kind].row_bytes
    source = Rows(SPECS[kind], 700 if row_bytes < 1 << 16 else 7 if row_bytes < 2 << 20 else 3)
    stage = make_stage(source, tmp_path)
    order = np.random.default_rng(0).permutation(len(source))
    fill(stage, source, order)
    assert stage.is_full
    assert source.num_read == len(source)
    assert read_through(stage, source, order[::-1]) == len(source)
    assert read_through(stage, source, np.repeat(order[:2], 3)) == 6
    assert source.num_read == len(source)
    count = stage.count()
    assert (count.num_rows, count.num_hits, count.off) == (2 * len(source) + 6, len(source) + 6, None)
    assert count.hit_bytes == count.num_hits * source.spec.row_bytes
    assert count.held_bytes == len(source) * source.spec.row_bytes
    stage.close()


@pytest.mark.parametrize("seed", range(6))
def test_any_interleaving_of_reads_and_offers_gives_the_same_bytes(seed, tmp_path):
    draw = np.random.default_rng(seed)
    source = Rows(SPECS[list(SPECS)[seed]], 97)
    first, count = int(draw.integers(0, 50)), int(draw.integers(0, 47))
    ranking = Reversed(97) if seed % 2 else None
    stage = make_stage(source, tmp_path, first=first, count=count, ranking=ranking)
    for _ in range(60):
        read_through(stage, source, draw.integers(0, 97, size=int(draw.integers(0, 40))))
    held = read_through(stage, source, np.arange(97))
    assert held <= count
    read_through(stage, source, np.arange(97))
    assert read_through(stage, source, np.arange(97)) == count
    stage.close()


def test_only_ranks_in_range_are_held(tmp_path):
    source = Rows(SPECS["scalar"], 10)
    for ranking, held in ((None, [3, 4, 5, 6]), (Reversed(10), [3, 4, 5, 6])):
        stage = make_stage(source, tmp_path, first=3, count=4, ranking=ranking)
        fill(stage, source, np.arange(10))
        out = source.spec.empty(10)
        hits = stage.read_into(np.arange(10), np.arange(10), out)
        assert np.flatnonzero(hits).tolist() == held
        stage.close()
    stage = make_stage(source, tmp_path, first=7, count=3, ranking=Reversed(10))
    fill(stage, source, np.arange(10))
    assert np.flatnonzero(stage.read_into(np.arange(10), np.arange(10), source.spec.empty(10))).tolist() == [0, 1, 2]
    stage.close()


def test_hits_are_the_part_of_the_samples_that_it_holds(tmp_path):
    source = Rows(SPECS["words"], 1000)
    stage = make_stage(source, tmp_path, first=100, count=250)
    draw = np.random.default_rng(1)
    fill(stage, source, draw.permutation(1000))
    before = stage.count()
    assert before.num_hits == 0
    for _ in range(4):
        fill(stage, source, draw.permutation(1000))
    after = stage.count()
    assert (after.num_hits - before.num_hits, after.num_rows - before.num_rows) == (1000, 4000)
    stage.close()


def test_a_stage_of_no_rows_answers_with_misses(tmp_path):
    source = Rows(SPECS["scalar"], 5)
    stage = make_stage(source, tmp_path, count=0)
    assert stage.is_full
    assert (stage.num_bytes, stage.table_bytes) == (0, 0)
    assert read_through(stage, source, np.arange(5)) == 0
    assert read_through(stage, source, np.arange(5)) == 0
    stage.close()


def test_the_same_sample_offered_twice_takes_one_row(tmp_path):
    source = Rows(SPECS["words"], 8)
    stage = make_stage(source, tmp_path)
    for indices in ([3, 3, 3, 1], [1, 3, 2, 2]):
        out = source.rows(np.array(indices))
        stage.offer(np.array(indices), np.arange(len(indices)), out)
    assert stage.count().held_bytes == 3 * source.spec.row_bytes
    assert not stage.is_full
    assert read_through(stage, source, [1, 2, 3, 3]) == 4
    stage.close()


def test_threads_read_and_fill_one_stage_together(tmp_path):
    source = Rows(SPECS["fields"], 1500)
    stage = make_stage(source, tmp_path, first=250, count=1000)
    failures = []

    def work(seed: int) -> None:
        try:
            draw = np.random.default_rng(seed)
            for _ in range(2):
                fill(stage, source, draw.permutation(1500), batch=150)
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    count = stage.count()
    assert count.off is None
    assert count.held_bytes == 1000 * source.spec.row_bytes
    assert stage.is_full
    assert count.num_hits >= 6 * 1000
    assert read_through(stage, source, np.arange(250, 1250)) == 1000
    stage.close()


def test_what_fits_counts_the_check_and_whole_words():
    assert rows_fitting(Rows(SPECS["scalar"], 100), 16 * 9 + 15) == 9
    assert rows_fitting(Rows(SPECS["one byte"], 100), 160) == 10
    assert rows_fitting(Rows(SPECS["empty"], 100), 80) == 10
    assert rows_fitting(Rows(SPECS["words"], 100), 2056 * 3) == 3
    assert rows_fitting(Rows(SPECS["words"], 100), 1 << 40) == 100
    assert rows_fitting(Rows(SPECS["words"], 100), 2055) == 0


def test_its_memory_and_disk_are_told(tmp_path):
    source = Rows(SPECS["words"], 100)
    stage = make_stage(source, tmp_path, count=rows_fitting(source, 2056 * 10))
    assert (stage.num_bytes, stage.table_bytes, stage.name) == (20560, 40, "disk stage")
    assert 2056 < stage.scratch_bytes <= 2 << 20
    stage.close()


def test_rows_of_different_lengths_are_refused(tmp_path):
    source = Rows(SampleSpec((Field("text", "uint8", (), is_ragged=True),)), 4)
    with pytest.raises(ConfigError, match=r"loader.disk_stage: .*different lengths.*set loader.disk_stage=0"):
        make_stage(source, tmp_path)


def test_closing_gives_back_the_descriptor_and_leaves_misses(tmp_path):
    source = Rows(SPECS["words"], 300)
    before = None
    for _ in range(4):
        stage = make_stage(source, tmp_path)
        fill(stage, source, np.arange(300))
        stage.close()
        stage.close()
        assert stage.is_full
        assert stage.count().held_bytes == 0
        assert stage.count().off is None
        assert read_through(stage, source, np.arange(300)) == 0
        before = before or open_descriptors()
        assert open_descriptors() == before
    assert list(tmp_path.iterdir()) == []


def test_a_row_is_there_only_when_its_bytes_are(tmp_path, monkeypatch):
    source = Rows(SPECS["words"], 40)
    stage = make_stage(source, tmp_path)
    write, inside, go_on, written = os.pwrite, threading.Event(), threading.Event(), []

    def slow(descriptor, content, offset):
        written.append(len(content))
        if len(written) == 1:
            inside.set()
            assert go_on.wait(120)
        return write(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", slow)
    thread = threading.Thread(target=read_through, args=(stage, source, np.arange(20)))
    thread.start()
    assert inside.wait(120)
    # Meanwhile they are misses, are not written a second time, and others pass by.
    assert read_through(stage, source, np.arange(20)) == 0
    assert read_through(stage, source, np.arange(15, 30)) == 0
    assert read_through(stage, source, np.arange(40)) == 10
    go_on.set()
    thread.join()
    assert written == [20 * 2056, 10 * 2056, 10 * 2056]
    assert read_through(stage, source, np.arange(40)) == 40
    stage.close()


def test_two_offers_of_a_sample_at_the_same_moment_take_one_row(tmp_path):
    source = Rows(SPECS["words"], 10)
    indices, out = np.arange(6), source.rows(np.arange(6))

    class Meanwhile:
        num_calls = 0

        def ranks(self, indices):
            self.num_calls += 1
            if self.num_calls == 2:  # the first offer has found them absent, and has not taken them yet
                stage.offer(indices[:4], np.arange(4), out)
            return indices

    stage = make_stage(source, tmp_path, ranking=Meanwhile())
    stage.offer(indices, indices, out)
    assert stage.count().held_bytes == 6 * 2048
    assert read_through(stage, source, np.arange(10)) == 6
    assert read_through(stage, source, np.arange(10)) == 10
    assert stage.is_full
    stage.close()


def test_closing_while_a_row_is_written_leaves_misses(tmp_path, monkeypatch, caplog):
    source = Rows(SPECS["words"], 40)
    stage = make_stage(source, tmp_path)
    write = os.pwrite

    def closing(descriptor, content, offset):
        stage.close()
        return write(descriptor, content, offset)

    before = open_descriptors()
    monkeypatch.setattr(os, "pwrite", closing)
    assert read_through(stage, source, np.arange(20)) == 0
    assert read_through(stage, source, np.arange(20)) == 0
    assert open_descriptors() == before - 2  # the file, and what tells of reads ahead
    assert caplog.text == ""


def test_it_stands_in_a_cascade(tmp_path, caplog):
    source = Rows(SPECS["fields"], 200)
    stage = make_stage(source, tmp_path, first=50, count=100)
    cascade = Cascade(source, [stage], read_lock=contextlib.nullcontext())
    draw = np.random.default_rng(0)
    for epoch in range(4):
        if epoch == 3:
            overwrite(stage, 0, bytes(16))
        order = draw.permutation(200)
        for first in range(0, 200, 30):
            indices = order[first : first + 30]
            out = source.spec.empty(len(indices))
            cascade.read_into(indices, np.arange(len(indices)), out)
            for name, expected in source.rows(indices).items():
                assert out[name].tobytes() == expected.tobytes()
        if epoch < 3:
            assert source.num_read == 200 + 100 * epoch
    assert caplog.text.count("was switched off") == 1
    stage.close()


class TestDiskStage(TierContract):
    def make_tier(self, source, folder):
        return make_stage(source, folder)


class TestDiskStageOfHalf(TierContract):
    def make_tier(self, source, folder):
        return make_stage(source, folder, first=len(source) // 4, count=len(source) // 2)
