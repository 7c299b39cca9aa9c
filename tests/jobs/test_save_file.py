"""The save file: whole or not at all, and never believed when it is not what was written."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flodl_pipe.errors import ConfigError, ResumeError
from flodl_pipe.jobs.save_file import SavedRun, read_saved, require_writable, write_saved

ONE = SavedRun({"epoch": 0, "position": 4}, "0" * 31 + "1", 4, 1)
TWO = SavedRun({"epoch": 0, "position": 8}, "0" * 31 + "2", 8, 2)


def beside(path):
    return [file.name for file in Path(path).parent.iterdir()]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "place.json")


def test_what_was_written_is_read(path):
    write_saved(path, ONE)
    write_saved(path, TWO)
    assert read_saved(path) == TWO
    assert beside(path) == ["place.json"]


@pytest.mark.parametrize(("owner", "name"), [(json, "dump"), (os, "fsync"), (Path, "replace")])
@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_fault_at_any_moment_of_a_write_leaves_the_old_file_whole(path, monkeypatch, owner, name, fault):
    write_saved(path, ONE)
    before = Path(path).read_bytes()
    real = getattr(owner, name)

    def fail(*args, **kwargs):
        if name == "dump":
            args[1].write('{"kind": "flodl')  # half of it
            args[1].flush()
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(ResumeError if isinstance(fault, OSError) else KeyboardInterrupt):
            write_saved(path, TWO)
    assert getattr(owner, name) is real
    assert Path(path).read_bytes() == before
    write_saved(path, TWO)  # what the failed write left does not stand in the way
    assert read_saved(path) == TWO
    assert beside(path) == ["place.json"]


def test_content_reaches_the_disk_before_the_name_and_the_name_before_the_return(path, monkeypatch):
    done = []
    fsync, replace = os.fsync, Path.replace

    def note_fsync(descriptor):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_replace(self, target):
        done.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_replace)
    write_saved(path, ONE)
    assert done == ["file", "rename", "folder"]


def test_a_link_stays_a_link(path, tmp_path):
    real = tmp_path / "elsewhere" / "real.json"
    real.parent.mkdir()
    Path(path).symlink_to(real)
    write_saved(path, ONE)
    assert Path(path).is_symlink()
    assert read_saved(str(real)) == ONE


def good(**changes):
    record = {
        "kind": "flodl_pipe run", "version": 1, "loader": {}, "digest": "0" * 32, "num_rows": 0, "num_steps": 0,
    }  # fmt: skip
    record.update(changes)
    return json.dumps({name: value for name, value in record.items() if value is not ...})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "damaged, 0 bytes that are not JSON"),
        (good()[:-20], "bytes that are not JSON"),
        (b"\x80\x04\x95\xff\xfe", "damaged, 5 bytes that are not JSON"),
        (b"\0" * 500, "damaged, 500 bytes that are not JSON"),
        ("[" * 100_000, "bytes that are not JSON"),
        ("[1, 2]", "JSON, but not a save of a run"),
        ('{"epoch": 3}', "JSON, but not a save of a run"),
        ("null", "JSON, but not a save of a run"),
        (
            good(version=2),
            "has version 2, and this flodl_pipe reads version 1; resume with the flodl_pipe that wrote it",
        ),
        (good(version=None), "has version None"),
        (good(loader=...), "keys missing: loader, unknown: none"),
        (good(more=1), "keys missing: none, unknown: more"),
        (good(digest="xyz"), "digest must be 32 hexadecimal digits, got 'xyz'"),
        (good(digest=7), "digest must be 32 hexadecimal digits, got 7"),
        (good(num_steps=-1), "num_steps must be an integer of at least 0, got -1"),
        (good(num_steps=True), "num_steps must be an integer of at least 0, got True"),
        (good(num_rows=1.5), "num_rows must be an integer of at least 0, got 1.5"),
        (good(loader=[]), "loader must be a loader's state, got []"),
        (b" " * (2 << 20), "more than 1048576 bytes"),
    ],
)
def test_a_damaged_file_is_refused_in_one_sentence(path, content, text):
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ResumeError) as caught:
        read_saved(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert text in message
    assert "resume" in message.partition(text)[2] + text
    assert "\n" not in message


def test_a_folder_is_no_save(tmp_path):
    with pytest.raises(ResumeError, match=r"cannot be read \(Is a directory\)"):
        read_saved(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("{tmp}", "is not a regular file"),
        ("/dev/null", "is not a regular file"),
        ("{tmp}/nowhere/place.json", "there is no folder"),
        ("{tmp}/file/place.json", "cannot be written|there is no folder"),
        ("{tmp}/" + "x" * 252, "cannot be written"),
        ("s3://bucket/place.json", "is an address; saves go to a local file"),
    ],
)
def test_where_nothing_can_be_saved_is_known_beforehand(tmp_path, path, text):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=text) as caught:
        require_writable(path.format(tmp=tmp_path))
    assert [problem.key for problem in caught.value.problems] == ["job.save"]


def test_looking_leaves_nothing_behind(path):
    assert not require_writable(path)
    assert beside(path) == []
    write_saved(path, ONE)
    assert require_writable(path)
    assert read_saved(path) == ONE


@pytest.mark.parametrize(
    "content",
    [b"\x01\x02" * 40, b"source: {kind: records}\n", b"[1, 2]", b'{"epoch": 3}', b"[" * 100_000, b" " * (2 << 20)],
)
@pytest.mark.parametrize("linked", [False, True])
def test_a_file_that_is_no_save_is_not_replaced(path, tmp_path, content, linked):
    target = tmp_path / "part-0.bin"
    target.write_bytes(content)
    if linked:
        Path(path).symlink_to(target)
    with pytest.raises(ConfigError, match="is not a save of a run, so it is not replaced; save elsewhere") as caught:
        require_writable(path if linked else str(target))
    assert [problem.key for problem in caught.value.problems] == ["job.save"]
    assert target.read_bytes() == content


@pytest.mark.parametrize("content", ["", good(version=7)])
def test_an_empty_file_and_a_save_of_another_version_may_be_replaced(path, content):
    Path(path).write_text(content)
    assert require_writable(path) == bool(content)
    write_saved(path, ONE)
    assert read_saved(path) == ONE


def test_two_runs_may_save_to_one_file_at_once(path):
    runs = [SavedRun({"epoch": 0, "position": run}, "0" * 32, run, run) for run in range(4)]

    def save(run):
        for _ in range(50):
            write_saved(path, run)
            assert read_saved(path) in runs

    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(save, runs))
    assert beside(path) == ["place.json"]


def test_what_a_killed_run_left_long_ago_is_removed_and_nothing_else(path, tmp_path):
    old, new = tmp_path / ".place.json.12-0123abcd.part", tmp_path / ".place.json.13-0123abcd.part"
    others = [tmp_path / name for name in (".place.json.part", ".other.json.12-0123abcd.part", ".place.json.bak")]
    for file in (old, new, *others):
        file.write_text("half")
        os.utime(file, (0, 0))
    os.utime(new)
    require_writable(path)
    assert sorted(beside(path)) == sorted(file.name for file in (new, *others))
