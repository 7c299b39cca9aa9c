"""The sample corpus: made once, the same each time, whole or not at all."""

import hashlib
import json
import logging
import multiprocessing
import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.sources import sample_data, sample_folder
from flodl_pipe.sources.sample_data import sample_corpus
from flodl_pipe.sources.sample_folder import cache_folder
from flodl_pipe.sources.tokens import TokenShards


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLODL_PIPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_both_layouts_hold_the_same_real_text_in_their_true_format(cache: Path) -> None:
    raw, npy = sample_corpus("raw"), sample_corpus("npy")
    names = [f"part-{shard}-00000.npy" for shard in range(4)]
    assert list(digests(raw)) == list(digests(npy)) == names
    tokens = np.concatenate([np.fromfile(raw / name, "<u2") for name in names])
    np.testing.assert_array_equal(tokens, np.concatenate([np.load(npy / name) for name in names]))
    assert len(tokens) == sample_data.NUM_TOKENS
    assert tokens.max() == 256
    documents = np.split(tokens, np.flatnonzero(tokens == 256))
    root = Path(sysconfig.get_path("stdlib"))
    assert documents[0].astype(np.uint8).tobytes() == (root / "__future__.py").read_bytes()
    manifest = json.loads((raw.parent / "manifest.json").read_text())
    assert {name.removeprefix("shards/"): e["sha256"] for name, e in manifest["files"].items()} == digests(raw)


def test_the_source_reads_it_within_its_vocabulary(cache: Path) -> None:
    source = TokenShards.open(
        str(sample_corpus("raw")), seq_len=1024, dtype="uint16", vocab_size=sample_data.SAMPLE_VOCAB_SIZE
    )
    assert source.extents
    source.extents.read(0, np.empty(source.extents.num_bytes, dtype=np.uint8))
    assert not [fact for fact in source.facts() if fact.name == "not token files"]


def test_it_is_the_same_wherever_it_is_made(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = digests(sample_corpus("raw"))
    monkeypatch.setenv("FLODL_PIPE_CACHE", str(tmp_path / "other"))
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda root: ((a, b.reverse() or b, c[::-1]) for a, b, c in walk(root)))
    assert digests(sample_corpus("raw")) == first


def test_it_is_made_once(cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flodl_pipe"):
        folder = sample_corpus("raw")
        monkeypatch.setattr(sample_data, "_tokens", lambda: pytest.fail("made again"))
        assert sample_corpus("raw") == folder
    assert ["made a sample corpus" in record.getMessage() for record in caplog.records] == [True]
    assert sorted(path.name for path in cache.iterdir()) == [".lock", folder.parent.name]


@pytest.mark.parametrize("damage", ["cut", "lost", "surplus", "no manifest", "bad manifest"])
def test_a_damaged_cache_is_made_again_aloud(cache: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    folder = sample_corpus("raw")
    good = digests(folder)
    if damage == "cut":
        os.truncate(folder / "part-1-00000.npy", 100)
    elif damage == "lost":
        (folder / "part-1-00000.npy").unlink()
    elif damage == "surplus":
        (folder / "part-9-00000.npy").touch()
    elif damage == "no manifest":
        (folder.parent / "manifest.json").unlink()
    else:
        (folder.parent / "manifest.json").write_text("[1")
    assert digests(sample_corpus("raw")) == good
    assert ["is damaged" in record.getMessage() for record in caplog.records] == [True]
    assert sorted(path.name for path in cache.iterdir()) == [".lock", folder.parent.name]


def _make(queue, begin) -> None:
    begin.wait()
    try:
        queue.put(digests(sample_corpus("raw")))
    except BaseException as error:  # noqa: BLE001 - carried to the parent
        queue.put(repr(error))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("locks", [True, False])
def test_processes_that_race_all_end_well(cache: Path, monkeypatch: pytest.MonkeyPatch, locks: bool) -> None:
    if not locks:

        def refuse(*_: object) -> None:
            raise OSError(37, "No locks available")

        monkeypatch.setattr(sample_folder.fcntl, "flock", refuse)
    context = multiprocessing.get_context("fork")
    queue, begin = context.Queue(), context.Event()
    children = [context.Process(target=_make, args=(queue, begin)) for _ in range(3)]
    for child in children:
        child.start()
    begin.set()
    found = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4
    assert [path.name for path in cache.iterdir() if path.name.startswith((".b", ".d"))] == []


def test_an_installation_without_sources_says_what_to_do(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "python312.zip"))
    with pytest.raises(SourceError, match=r"python312\.zip holds 0 bytes of Python sources.*set source\.path"):
        sample_corpus("raw")
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLODL_PIPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(SourceError, match=r"cannot be written.*set FLODL_PIPE_CACHE"):
        sample_corpus("raw")


def test_an_unknown_layout_is_refused(cache: Path) -> None:
    with pytest.raises(SourceError, match="'llmc'"):
        sample_corpus("llmc")


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FLODL_PIPE_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says to ignore it
    assert cache_folder() == tmp_path / ".cache" / "flodl_pipe"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/flodl_pipe")
    monkeypatch.setenv("FLODL_PIPE_CACHE", "/y")
    assert cache_folder() == Path("/y")
