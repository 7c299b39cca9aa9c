"""The sample corpus: made once, the same each time, whole or not at all."""

import fcntl
import hashlib
import json
import logging
import multiprocessing
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.sources import sample_data
from flodl_pipe.sources.sample_data import sample_corpus
from flodl_pipe.sources.sample_folder import cache_folder, sample_folder
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
        monkeypatch.setattr(Path, "write_bytes", lambda *_: pytest.fail("made again"))
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


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def _make(begin: Any, sender: Any) -> None:
    begin.wait()
    sender.send(digests(sample_corpus("raw")))


def races(num_processes: int) -> list[dict[str, str]]:
    """Have processes make the sample at once; return what each found in it."""
    context = multiprocessing.get_context("fork")
    begin, children, receivers = context.Event(), [], []
    try:
        for _ in range(num_processes):
            receiver, sender = context.Pipe(duplex=False)
            receivers.append(receiver)
            children.append(context.Process(target=_make, args=(begin, sender)))
            children[-1].start()
            sender.close()  # so that the end of a child is heard: EOFError here, and its traceback in what it printed
        begin.set()
        assert [receiver.poll(120) for receiver in receivers] == [True] * num_processes, "one hangs"
        return [receiver.recv() for receiver in receivers]
    finally:
        for child in children:
            child.kill()
            child.join()
        for receiver in receivers:
            receiver.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_processes_that_race_all_end_well(cache: Path) -> None:
    found = races(3)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4
    assert sorted(path.name for path in cache.iterdir()) == [".lock", sample_corpus("raw").parent.name]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("no_locks")
def test_processes_that_race_without_locks_all_end_well(cache: Path) -> None:
    found = races(3)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4
    assert [path.name for path in cache.iterdir() if path.name.startswith((".b", ".d"))] == []


@pytest.mark.usefixtures("no_locks")
def test_one_that_comes_second_takes_what_the_first_has_made(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    about = {"what": "nothing much"}

    def slowly() -> Iterator[tuple[str, bytes]]:
        yield "a.bin", b"of the one that comes second"
        sample_folder("set-1", "a sample", lambda: [("a.bin", b"of the first")], about)

    folder = sample_folder("set-1", "a sample", slowly, about)
    assert (folder / "a.bin").read_bytes() == b"of the first"
    assert [path.name for path in cache.iterdir() if path.name.startswith((".b", ".d"))] == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.usefixtures("no_locks")
def test_a_folder_that_comes_while_it_is_looked_for_is_not_taken_for_a_damaged_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    about = {"what": "nothing much"}

    def misses(path: Path, *args: object, **options: object) -> str:
        """Find nothing, as one that looks a moment before the first process is ready."""
        monkeypatch.setattr(Path, "read_text", read_text)
        sample_folder("set-1", "a sample", lambda: [("a.bin", b"of the first")], about)
        raise FileNotFoundError(2, "No such file or directory", str(path))

    read_text = Path.read_text
    monkeypatch.setattr(Path, "read_text", misses)
    folder = sample_folder("set-1", "a sample", lambda: [("a.bin", b"of the second")], about)
    assert (folder / "a.bin").read_bytes() == b"of the first"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


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
