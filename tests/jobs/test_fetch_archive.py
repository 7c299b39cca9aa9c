"""Data sets that come as an archive: what is wanted of it, and nothing else, ends in the folder."""

import hashlib
import io
import json
import os
import signal
import tarfile
from pathlib import Path

import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.sources import fetch_set
from flodl_pipe.sources.known_sets import KnownFile, KnownSet, Member
from flodl_pipe.sources.unpack import SMALL_BYTES, unpack
from tests.jobs.fetch_server import running
from tests.support.programs import run

ROOT = Path(__file__).resolve().parents[2]
ONE, TWO, TEXT = bytes(range(256)) * 700, b"\1" * 50_000, b"cat\ndog\n"
MEMBERS = (Member("box/one.bin", len(ONE)), Member("box/two.bin", len(TWO)), Member("box/names.txt", None))
PLAIN = {"box/one.bin": ONE, "box/two.bin": TWO, "box/names.txt": TEXT}


def digest(content):
    return hashlib.sha256(content).hexdigest()


def entry(name, kind=tarfile.REGTYPE, **more):
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in more.items():
        setattr(info, key, value)
    return info


def tarball(*extra, contents=PLAIN, first=()):
    """Pack contents; ``first`` and ``extra`` are (TarInfo, bytes or None) before and after them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        for info, data in [*first, *((entry(name), data) for name, data in contents.items()), *extra]:
            if data is not None:
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data) if data is not None else None)
    return buffer.getvalue()


@pytest.fixture
def server(monkeypatch):
    pytest.importorskip("pooch", reason="the extra [fetch] is not installed")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with running() as server:
        yield server


@pytest.fixture
def box(server):
    """Serve an archive; returns the set that knows it."""

    def make(packed):
        server.serve("a/box.tar.gz", packed)
        file = KnownFile("box.tar.gz", len(packed), digest(packed), "here")
        return KnownSet("box", (f"{server.address}/a/",), (file,), MEMBERS)

    return make


def fetch(known, folder):
    return {found.name: found.how for found in fetch_set.fetch_set(known, folder, None, lambda *_: None)}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


DONE = [".fetched.json", "names.txt", "one.bin", "two.bin"]


def test_the_wanted_files_are_there_and_the_archive_is_gone(box, tmp_path):
    how = fetch(box(tarball((entry("box/readme.html"), b"x"))), tmp_path)
    assert names(tmp_path) == DONE
    assert [(tmp_path / name).read_bytes() for name in DONE[1:]] == [TEXT, ONE, TWO]
    assert list(how) == ["one.bin", "two.bin", "names.txt"]
    assert how["one.bin"].startswith("unpacked from box.tar.gz, from http")


def test_a_second_fetch_knows_that_all_is_there(box, server, tmp_path):
    known = box(tarball())
    fetch(known, tmp_path)
    assert set(fetch(known, tmp_path).values()) == {"kept: it was there"}
    assert len(server.requests) == 1
    note = json.loads((tmp_path / ".fetched.json").read_text())
    assert note["files"]["one.bin"] == {"bytes": len(ONE), "sha256": digest(ONE)}


def test_a_file_that_changed_since_is_an_error_with_both_digests(box, server, tmp_path):
    known = box(tarball())
    fetch(known, tmp_path)
    changed = ONE[:-1] + b"!"
    (tmp_path / "one.bin").write_bytes(changed)
    with pytest.raises(SourceError) as caught:
        fetch(known, tmp_path)
    assert digest(ONE) in str(caught.value)
    assert digest(changed) in str(caught.value)
    assert (tmp_path / "one.bin").read_bytes() == changed
    assert len(server.requests) == 1


def test_a_file_that_was_removed_is_brought_back(box, tmp_path):
    known = box(tarball())
    fetch(known, tmp_path)
    (tmp_path / "two.bin").unlink()
    how = fetch(known, tmp_path)
    assert how["one.bin"] == "kept: it was there"
    assert how["two.bin"].startswith("unpacked")
    assert names(tmp_path) == DONE


@pytest.mark.parametrize("note", [b"", b"[]", b'{"files": {"one.bin": 3}}', b"\xff", b"[" * 100_000])
def test_a_damaged_note_is_said_and_the_files_are_compared_with_the_archive(box, server, tmp_path, caplog, note):
    known = box(tarball())
    fetch(known, tmp_path)
    (tmp_path / ".fetched.json").write_bytes(note)
    assert set(fetch(known, tmp_path).values()) == {"kept: it was there"}
    assert caplog.text.count("damaged or of another archive") == 1
    assert len(server.requests) == 2
    assert set(fetch(known, tmp_path).values()) == {"kept: it was there"}
    assert len(server.requests) == 2


def test_files_unpacked_by_hand_are_kept_once_compared(box, tmp_path):
    (tmp_path / "one.bin").write_bytes(ONE)
    inode = (tmp_path / "one.bin").stat().st_ino
    assert fetch(box(tarball()), tmp_path)["one.bin"] == "kept: it was there"
    assert (tmp_path / "one.bin").stat().st_ino == inode


def test_files_of_ones_own_are_never_replaced(box, tmp_path):
    (tmp_path / "names.txt").write_bytes(b"mine")
    with pytest.raises(SourceError, match=r"(?s)names\.txt is there and is another file.*in the published archive"):
        fetch(box(tarball()), tmp_path)
    assert (tmp_path / "names.txt").read_bytes() == b"mine"
    assert not (tmp_path / "one.bin").exists()


def test_a_file_of_another_size_is_an_error_before_the_download(box, server, tmp_path):
    (tmp_path / "one.bin").write_bytes(b"short")
    with pytest.raises(SourceError, match=r"(?s)it has 5 bytes.*published 179,200 bytes"):
        fetch(box(tarball()), tmp_path)
    assert server.requests == []


def test_an_archive_that_somebody_put_there_is_used_and_stays(box, server, tmp_path):
    packed = tarball()
    (tmp_path / "box.tar.gz").write_bytes(packed)
    known = box(packed)
    fetch(known, tmp_path)
    assert names(tmp_path) == [".fetched.json", "box.tar.gz", *DONE[1:]]
    assert server.requests == []
    (tmp_path / "box.tar.gz").write_bytes(packed[:-1])
    (tmp_path / "one.bin").unlink()
    with pytest.raises(SourceError, match=r"box\.tar\.gz is there and is another file"):
        fetch(known, tmp_path)


def test_a_fetch_killed_between_two_files_goes_on_without_a_download(box, server, tmp_path):
    known = box(tarball())
    code = f"""
from pathlib import Path
import os
from flodl_pipe.sources import fetch_set
from flodl_pipe.sources.known_sets import KnownFile, KnownSet, Member
install = fetch_set._install
def stop(path, final):
    install(path, final)
    os.kill(os.getpid(), {int(signal.SIGKILL)})
fetch_set._install = stop
fetch_set.fetch_set({known!r}, Path({str(tmp_path)!r}), None, lambda *_: None)
"""
    done = run(["-c", code])
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "one.bin").exists()
    assert not (tmp_path / "two.bin").exists()
    how = fetch(known, tmp_path)
    assert how["one.bin"] == "kept: it was there"
    assert len(server.requests) == 1
    assert names(tmp_path) == DONE


# --- what an archive may do


def test_members_that_are_not_wanted_are_never_written(tmp_path):
    target = tmp_path / "into"
    target.mkdir()
    packed = tarball(
        (entry("../evil"), b"x"),
        (entry("/tmp/evil-of-a-test"), b"x"),
        (entry("box/../../evil"), b"x"),
        (entry("box", tarfile.SYMTYPE, linkname="/etc"), None),
        (entry("box/hard", tarfile.LNKTYPE, linkname="/etc/passwd"), None),
        (entry("box/null", tarfile.CHRTYPE, devmajor=1, devminor=3), None),
        (entry("box/pipe", tarfile.FIFOTYPE), None),
        (entry("box/folder", tarfile.DIRTYPE), None),
        (entry("one.bin"), b"not the one in the box"),
        (entry("/box/one.bin"), b"nor this"),
        (entry("box/./one.bin"), b"nor this"),
    )
    (tmp_path / "a.tar.gz").write_bytes(packed)
    found = unpack(tmp_path / "a.tar.gz", MEMBERS, target)
    assert {name: content.sha256 for name, content in found.items()} == {
        "one.bin": digest(ONE), "two.bin": digest(TWO), "names.txt": digest(TEXT),
    }  # fmt: skip
    assert names(target) == DONE[1:]
    assert all(path.is_file() and not path.is_symlink() for path in target.iterdir())
    assert names(tmp_path) == ["a.tar.gz", "into"]
    assert not Path("/tmp/evil-of-a-test").exists()


REST = {name: data for name, data in PLAIN.items() if name != "box/one.bin"}


def instead(kind, linkname=""):
    """Pack something else under the name of a wanted file."""
    return tarball((entry("box/one.bin", kind, linkname=linkname), None), contents=REST)


BAD = {
    "a link": (instead(tarfile.SYMTYPE, "/etc/passwd"), "must be a plain file"),
    "a hard link": (instead(tarfile.LNKTYPE, "box/two.bin"), "must be a plain file"),
    "a device": (instead(tarfile.CHRTYPE), "must be a plain file"),
    "a folder": (instead(tarfile.DIRTYPE), "must be a plain file"),
    "another size": (tarball(contents={**PLAIN, "box/one.bin": ONE[:-1]}), "has 179,199 bytes, and must have 179,200"),
    "a long text": (tarball(contents={**PLAIN, "box/names.txt": bytes(SMALL_BYTES + 1)}), "may have 65,536"),
    "twice": (tarball((entry("box/one.bin"), ONE)), "comes twice"),
    "a hostile second": (tarball((entry("./box/one.bin"), ONE)), "comes twice"),
    "missing": (tarball(contents=REST), r"lacks box/one\.bin"),
    "a larger stranger": (tarball((entry("box/bomb"), bytes(400_000))), "more than all that is wanted"),
    "cut": (tarball()[:-2000], "damaged"),
    "no archive": (b"<html>", "damaged"),
    "not packed": (b"\x1f\x8b" + bytes(100), "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_an_archive_that_is_not_what_it_should_be_is_refused(tmp_path, case):
    packed, words = BAD[case]
    (tmp_path / "a.tar.gz").write_bytes(packed)
    (tmp_path / "into").mkdir()
    with pytest.raises(SourceError, match=words):
        unpack(tmp_path / "a.tar.gz", MEMBERS, tmp_path / "into")


@pytest.mark.parametrize("size", [len(ONE), 1 << 50])
def test_a_sparse_member_is_refused_without_being_unrolled(tmp_path, size):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        info = entry("box/one.bin", tarfile.GNUTYPE_SPARSE)
        header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        # Old GNU sparse header: no stored extent, and the size of the file when unrolled.
        header[386 : 386 + 24] = b"00000000000\0" + b"00000000000\0"
        header[483:495] = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        tar.fileobj.write(bytes(header))
        tar.offset += len(header)
    (tmp_path / "a.tar.gz").write_bytes(buffer.getvalue())
    (tmp_path / "into").mkdir()
    with pytest.raises(SourceError, match=r"must be a plain file|more than all that is wanted"):
        unpack(tmp_path / "a.tar.gz", MEMBERS, tmp_path / "into")
    assert os.listdir(tmp_path / "into") == []


def test_a_refused_archive_leaves_the_folder_as_it_was(box, tmp_path):
    with pytest.raises(SourceError, match="comes twice"):
        fetch(box(BAD["twice"][0]), tmp_path)
    assert names(tmp_path) == [".fetch"]


def test_progress_counts_to_the_end(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(tarball())
    (tmp_path / "into").mkdir()
    seen = []
    unpack(tmp_path / "a.tar.gz", MEMBERS, tmp_path / "into", seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == len(ONE) + len(TWO) + len(TEXT)
