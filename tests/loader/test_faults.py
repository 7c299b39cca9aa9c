"""What goes wrong in a reader reaches the loop: at its step, once, with its traceback."""

import logging
import os
import threading
import traceback

import numpy as np
import pytest

from flodl_pipe.errors import ChangedError, LoaderError, StagingError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.tokens import TokenShards
from tests.loader.inside import wait_until_filled
from tests.loader.sources import Numbers, ids
from tests.loader.waiting import HANG_S

WAYS = [{"readers": 0}, {"readers": 1}, {"readers": 3}]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [0, 13, 77, 159])
def test_an_error_stands_at_its_own_step_once(way, bad):
    source = Numbers(160, bad=[bad])
    with Loader(source, batch_size=2, shuffle=False, mode="streaming", **way) as loader:
        iterator, found = iter(loader), []
        with pytest.raises(OSError, match=f"record {bad} of numbers.bin is bad") as caught:
            for batch in iterator:
                found += batch["id"].tolist()
        assert found == list(range(bad // 2 * 2))
        assert "read_into" in "".join(traceback.format_exception(caught.value))
        with pytest.raises(StopIteration):
            next(iterator)
        source.bad = frozenset()
        assert ids(loader)[0] == [0, 1]  # a later pass is served


@pytest.mark.parametrize("way", WAYS)
def test_the_resident_set_gives_way_to_the_same_error(way, caplog):
    with (
        caplog.at_level(logging.INFO, logger="flodl_pipe"),
        Loader(Numbers(4000, bad=[3500]), batch_size=2, shuffle=False, mode="resident", **way) as loader,
    ):
        with pytest.raises(OSError, match="record 3500"):
            ids(loader)
        wait_until_filled(loader)
        assert loader.mode[0] == "streaming"
        assert "the resident set of" in caplog.text
        assert "given up: reading it failed" in caplog.text
        assert not [record for record in caplog.records if record.levelno > logging.INFO]  # the error says it all
        assert "resident set" not in dict(loader.granted())


def test_a_shortage_of_memory_ends_the_resident_set_not_the_run(monkeypatch, caplog):
    monkeypatch.setattr("flodl_pipe.loader.resident.floor_bytes", lambda _: 1 << 60)
    with Loader(Numbers(400), batch_size=4, mode="resident") as loader:
        expected = ids(loader)
        assert not wait_until_filled(loader)
        assert "is left alone" in caplog.text
        assert loader.mode[0] == "streaming"
        assert ids(loader.epoch(0)) == expected


def test_a_source_that_is_not_thread_safe_is_read_by_one_reader_at_a_time():
    source = Numbers(600, delay_s=0.001, thread_safe=False)
    with Loader(source, batch_size=2, readers=4, prefetch=8, mode="streaming") as loader:
        assert len(ids(loader)) == 300
    assert source.most_inside == 1


def test_a_source_that_is_thread_safe_is_read_by_several_at_once():
    met = threading.Event()

    class Meeting(Numbers):
        def read_into(self, indices, rows, out):
            with self.lock:
                here.append(threading.get_ident())
                if len(set(here)) > 1:
                    met.set()
            met.wait(HANG_S)
            super().read_into(indices, rows, out)

    here = []
    with Loader(Meeting(600), batch_size=2, readers=4, prefetch=8, mode="streaming") as loader:
        assert len(ids(loader)) == 300
    assert met.is_set()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["slots", "rows"])
def test_memory_that_the_system_refuses_is_an_error_in_the_loop(monkeypatch, way, what):
    source = Numbers(400)
    with Loader(source, batch_size=4, mode="streaming", **way) as loader:

        def refuse(*args, **kwargs):
            raise (OSError(12, "Cannot allocate memory") if what == "slots" else MemoryError("no memory"))

        if what == "slots":
            monkeypatch.setattr("flodl_pipe.loader.slots.mmap.mmap", refuse)
        else:
            source.spec = type("Spec", (), {"empty": refuse, "row_bytes": 11})()
        with pytest.raises(StagingError, match=r"lower loader\.batch_size"):
            ids(loader)


def test_a_thread_that_the_system_refuses_is_an_error(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    with Loader(Numbers(400), batch_size=4, readers=2) as loader:
        monkeypatch.setattr("threading.Thread.start", refuse)
        with pytest.raises(LoaderError, match="refuses to start reader 1 of 2"):
            iter(loader)
        monkeypatch.undo()
        assert len(ids(loader)) == 100


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "shard.bin"
    np.arange(200_000, dtype="<u2").tofile(path)
    os.utime(path, (1e9, 1e9))  # long ago: what changes it now has another time, however coarse times are
    return path


def tokens(path):
    return TokenShards.open(str(path), seq_len=16, file_format="raw", dtype="uint16")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["truncate", "half", "rewrite", "replace", "unlink"])
def test_a_file_that_changes_while_it_is_read_is_an_error_naming_it(shard, way, fault):
    with Loader(tokens(shard), batch_size=8, shuffle=False, mode="streaming", sample_cache=False, **way) as loader:
        found = []
        with pytest.raises(ChangedError, match=str(shard)):
            for number, (x, _) in enumerate(loader):
                found += x.tolist()
                if number == 5:
                    {
                        "truncate": lambda: os.truncate(shard, 0),
                        "half": lambda: os.truncate(shard, 200_000),
                        "rewrite": lambda: np.zeros(200_000, dtype="<u2").tofile(shard),
                        "replace": lambda: os.replace(_other(shard), shard),
                        "unlink": shard.unlink,
                    }[fault]()
        flat = np.array(found).ravel()
        assert np.array_equal(flat, np.arange(len(flat)) % 2**16), "wrong tokens were delivered before the error"


def _other(shard):
    other = shard.with_suffix(".new")
    np.ones(200_000, dtype="<u2").tofile(other)
    return other


@pytest.mark.parametrize("mode", ["streaming", "resident"])
def test_a_file_that_changed_between_epochs_is_an_error_in_every_mode(shard, mode):
    with Loader(tokens(shard), batch_size=8, mode=mode) as loader:
        for _ in loader:
            pass
        os.replace(_other(shard), shard)
        with pytest.raises(ChangedError, match=str(shard)):
            iter(loader)
