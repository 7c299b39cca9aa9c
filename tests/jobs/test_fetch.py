"""``job=fetch`` and what it is made of, against a server on this machine.

White box: pauses and time-outs of a download are made small, and the job is asked which sets it leads to.
"""

import errno
import gzip
import hashlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

from flodl_pipe.config.job import FetchJob
from flodl_pipe.errors import SourceError
from flodl_pipe.jobs import fetch as fetch_job
from flodl_pipe.sources import download, fetch_set
from flodl_pipe.sources.fetch_lock import fetch_lock
from flodl_pipe.sources.known_sets import KNOWN_SETS, Content, KnownFile, KnownSet
from tests.jobs.fetch_server import running
from tests.support.programs import Program, run

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
BIG = np.random.default_rng(0).bytes(1_000_003)
SMALL = b"seven, two, one, zero\n" * 100


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    pytest.importorskip("pooch", reason="the extra [fetch] is not installed")
    monkeypatch.setattr(download, "_PAUSE_S", 0.01)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    with running() as server:
        yield server


@pytest.fixture
def nobody():
    """An address at which nobody answers: its port is kept, and not listened on."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{kept.getsockname()[1]}"


def digest(content):
    return hashlib.sha256(content).hexdigest()


def known(*addresses, **contents):
    files = {name.replace("_", "."): content for name, content in contents.items()}
    return KnownSet(
        "toys", addresses, tuple(KnownFile(name, len(data), digest(data), "here") for name, data in files.items())
    )


def fetch(toys, folder, mirror=None, progress=lambda *_: None):
    return {found.name: found.how for found in fetch_set.fetch_set(toys, folder, mirror, progress)}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_set_is_downloaded_and_nothing_else_is_left(server, tmp_path):
    server.serve("a/big.bin", BIG)
    server.serve("a/small.bin", SMALL)
    seen = []
    toys = known(f"{server.address}/a/", big_bin=BIG, small_bin=SMALL)
    how = fetch(toys, tmp_path / "toys", progress=lambda *at: seen.append(at))
    assert how == dict.fromkeys(("big.bin", "small.bin"), f"downloaded from {server.address}/a/")
    assert (tmp_path / "toys/big.bin").read_bytes() == BIG
    assert names(tmp_path / "toys") == ["big.bin", "small.bin"]
    assert seen[0] == ("big.bin", 0, len(BIG))
    assert ("big.bin", len(BIG), len(BIG)) in seen


def test_nothing_is_downloaded_twice(server, tmp_path):
    server.serve("a/big.bin", BIG)
    toys = known(f"{server.address}/a/", big_bin=BIG)
    fetch(toys, tmp_path)
    assert fetch(toys, tmp_path) == {"big.bin": "kept: it was there"}
    assert len(server.requests) == 1


def test_only_what_is_missing_is_downloaded(server, tmp_path):
    server.serve("a/big.bin", BIG)
    (tmp_path / "small.bin").write_bytes(SMALL)
    toys = known(f"{server.address}/a/", big_bin=BIG, small_bin=SMALL)
    assert fetch(toys, tmp_path)["small.bin"].startswith("kept")
    assert [path for path, *_ in server.requests] == ["a/big.bin"]


def test_a_file_with_another_digest_is_an_error_and_stays(server, tmp_path):
    server.serve("a/big.bin", BIG)
    (tmp_path / "small.bin").write_bytes(b"my own work")
    toys = known(f"{server.address}/a/", big_bin=BIG, small_bin=SMALL)
    with pytest.raises(SourceError) as caught:
        fetch(toys, tmp_path)
    text = str(caught.value)
    assert digest(b"my own work") in text
    assert digest(SMALL) in text
    assert "move it away" in text
    assert (tmp_path / "small.bin").read_bytes() == b"my own work"
    assert server.requests == []


def test_every_wrong_file_is_named_at_once(nobody, tmp_path):
    for name in ("big.bin", "small.bin"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(SourceError, match=r"(?s)big\.bin is there.*small\.bin is there"):
        fetch(known(f"{nobody}/", big_bin=BIG, small_bin=SMALL), tmp_path)


@pytest.mark.parametrize("make", [lambda at: at.mkdir(), lambda at: at.symlink_to("nowhere")], ids=["folder", "link"])
def test_what_is_no_file_is_not_replaced(nobody, tmp_path, make):
    make(tmp_path / "big.bin")
    with pytest.raises(SourceError, match=r"big\.bin is (no regular file|a link that leads nowhere).*move it away"):
        fetch(known(f"{nobody}/", big_bin=BIG), tmp_path)


def test_a_cut_connection_is_continued_where_it_ended(server, tmp_path, caplog):
    served = server.serve("a/big.bin", BIG, cut_after=400_000, cuts=2)
    fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path)
    assert (tmp_path / "big.bin").read_bytes() == BIG
    assert [status for *_, status in server.requests] == [200, 206, 206]
    starts = [int(asked.removeprefix("bytes=").rstrip("-")) for asked in server.ranges("a/big.bin")[1:]]
    assert starts == [400_000, 800_000]
    assert [condition for _, _, condition, _ in server.requests[1:]] == [served.etag] * 2
    assert "trying again" in caplog.text


def test_a_connection_that_gives_nothing_any_more_is_given_up_and_kept(server, tmp_path):
    served = server.serve("a/big.bin", BIG, cut_after=400_000, cuts=1)
    served.etag = None

    def block(_, done, __):
        served.status = 503 if done >= 400_000 else None

    with pytest.raises(SourceError, match=r"(?s)big\.bin could not be downloaded.*503.*4 tries.*job\.mirror"):
        fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path, progress=block)
    assert (tmp_path / ".fetch/big.bin.part").stat().st_size == 400_000
    assert not (tmp_path / "big.bin").exists()
    served.status = None
    fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path)
    assert server.ranges("a/big.bin")[-1] == "bytes=400000-"
    assert names(tmp_path) == ["big.bin"]


def test_a_server_that_falls_silent_is_asked_again(server, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(download, "_TIMEOUT_S", 0.3)
    monkeypatch.setattr(download, "_TRIES", 1000)  # on a slow machine the server seems silent before it is
    served = server.serve("a/big.bin", BIG, hold_at=400_000)

    def heal(*_):
        if any(server.ranges("a/big.bin")):  # it was asked for the rest
            served.hold_at = None
            served.release.set()

    fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path, progress=heal)
    assert (tmp_path / "big.bin").read_bytes() == BIG
    assert "timed out" in caplog.text
    assert {status for *_, status in server.requests} == {200, 206}


def test_a_weak_validator_is_no_condition(server, tmp_path):
    server.serve("a/big.bin", BIG, cut_after=400_000, cuts=1, etag='W/"x"')
    fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path)
    assert server.requests[1] == ("a/big.bin", "bytes=400000-", None, 206)


def test_a_fetch_killed_while_the_digest_is_computed_loses_nothing(server, tmp_path):
    server.serve("a/big.bin", BIG)
    kill = "import os, pooch.hashes\npooch.core.hash_matches = lambda *a, **k: os.kill(os.getpid(), 9)"
    done = start(script(f"{server.address}/a/", tmp_path, f"import pooch.core\n{kill}"))
    done.communicate(timeout=60)
    assert done.returncode == -9
    fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path)
    assert len(server.requests) == 1
    assert names(tmp_path) == ["big.bin"]


def start_over(server, tmp_path, **faults):
    """Leave a partial file with other bytes than the rest, then change how the server answers."""
    served = server.serve("a/big.bin", BIG)
    staging = tmp_path / ".fetch"
    staging.mkdir()
    (staging / "big.bin.part").write_bytes(b"\0" * 300_000)
    (staging / "big.bin.part.json").write_text(f'{{"url": "{server.address}/a/big.bin", "validator": "\\"old\\""}}')
    for name, value in faults.items():
        setattr(served, name, value)
    fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path)
    assert (tmp_path / "big.bin").read_bytes() == BIG
    return [status for *_, status in server.requests]


def test_a_file_that_changed_meanwhile_is_downloaded_from_its_start(server, tmp_path, caplog):
    assert start_over(server, tmp_path) == [200]
    assert server.requests[0][1:3] == ("bytes=300000-", '"old"')
    assert "starting over" in caplog.text


def test_a_server_without_ranges_starts_over(server, tmp_path, caplog):
    assert start_over(server, tmp_path, ranges=False) == [200]
    assert "starting over" in caplog.text


def test_parts_that_do_not_belong_together_are_caught_by_the_digest(server, tmp_path):
    staging = tmp_path / ".fetch"
    staging.mkdir()
    (staging / "big.bin.part").write_bytes(b"\0" * 300_000)
    # No condition is sent without a note of the address; then only the digest can tell.
    server.serve("a/big.bin", BIG)
    fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path)
    assert (tmp_path / "big.bin").read_bytes() == BIG
    assert server.ranges("a/big.bin") == ["bytes=300000-", None]


def test_a_server_that_ignores_the_condition_is_caught_by_its_validator(server, tmp_path, caplog):
    staging = tmp_path / ".fetch"
    staging.mkdir()
    (staging / "big.bin.part").write_bytes(b"\0" * 300_000)
    (staging / "big.bin.part.json").write_text(f'{{"url": "{server.address}/a/big.bin", "validator": "\\"old\\""}}')
    server.serve("a/big.bin", BIG, conditions=False)
    fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path)
    assert [status for *_, status in server.requests] == [206, 200]
    assert "has changed since the first bytes were read" in caplog.text


def test_a_partial_file_that_is_too_long_or_complete_but_wrong_is_no_obstacle(server, tmp_path):
    server.serve("a/big.bin", BIG)
    toys = known(f"{server.address}/a/", big_bin=BIG)
    for size in (len(BIG) + 1, len(BIG)):
        folder = tmp_path / str(size)
        (folder / ".fetch").mkdir(parents=True)
        (folder / ".fetch/big.bin.part").write_bytes(b"\0" * size)
        fetch(toys, folder)
        assert (folder / "big.bin").read_bytes() == BIG


def test_addresses_are_tried_in_order_and_a_part_is_of_use_to_the_next(server, tmp_path, caplog):
    server.serve("gone/big.bin", BIG, status=404)
    server.serve("other/big.bin", b"<html>log in</html>")
    server.serve("wrong/big.bin", bytes(len(BIG)))
    first = server.serve("bad/big.bin", BIG, cut_after=400_000, cuts=1)
    server.serve("good/big.bin", BIG)
    bases = [f"{server.address}/{name}/" for name in ("gone", "other", "wrong", "bad", "good")]

    def block(_, done, __):
        if done == 400_000 and server.requests[-1][0] == "bad/big.bin":
            first.status = 500

    assert fetch(known(*bases, big_bin=BIG), tmp_path, progress=block) == {"big.bin": f"downloaded from {bases[-1]}"}
    assert server.requests[-1] == ("good/big.bin", "bytes=400000-", None, 206)
    for said in ("404", "has 19 bytes under this name, published are 1,000,003", "another digest", "500"):
        assert said in caplog.text


def test_wrong_bytes_never_get_the_name_and_leave_nothing(server, tmp_path):
    tmp_path /= "toys"
    server.serve("a/big.bin", bytes(len(BIG)))
    with pytest.raises(SourceError, match=f"another digest than the one published, sha256 {digest(BIG)}"):
        fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path)
    assert not tmp_path.exists()


def test_a_body_without_a_length_is_read_to_the_published_size_and_no_further(server, tmp_path):
    server.serve("long/big.bin", BIG + b"more", sized=False)
    server.serve("right/big.bin", BIG, sized=False)
    bases = [f"{server.address}/{name}/" for name in ("long", "right")]
    assert fetch(known(*bases, big_bin=BIG), tmp_path) == {"big.bin": f"downloaded from {bases[1]}"}


def test_a_mirror_replaces_the_addresses(server, nobody, tmp_path):
    server.serve("copy/toys/big.bin", BIG)
    toys = known(f"{nobody}/", big_bin=BIG)
    assert fetch(toys, tmp_path, f"{server.address}/copy/") == {
        "big.bin": f"downloaded from {server.address}/copy/toys/"
    }


def test_an_address_without_a_server_says_so(nobody, tmp_path):
    with pytest.raises(SourceError, match=rf"{re.escape(nobody)}/big\.bin: .*refused.*4 tries"):
        fetch(known(f"{nobody}/", big_bin=BIG), tmp_path)


def test_too_little_room_is_said_before_the_first_byte(server, tmp_path, monkeypatch):
    usage = fetch_set.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(fetch_set.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(SourceError, match=r"977 KiB are still to be written and 1000 B are free.*data_dir"):
        fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path)
    assert server.requests == []


def test_a_disk_that_fills_up_is_said_and_the_part_is_kept(server, tmp_path):
    server.serve("a/big.bin", BIG)
    # A limit on the size of files is met as a full disk is: by an error of write.
    limit = (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))"
    )
    code = script(f"{server.address}/a/", tmp_path, limit)
    done = run(["-c", code])
    assert done.returncode == 1
    assert "SourceError" in done.stderr
    assert f"({os.strerror(errno.EFBIG)}); make room" in done.stderr
    assert 0 < (tmp_path / ".fetch/big.bin.part").stat().st_size <= 600_000
    fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path)
    assert server.requests[-1][3] == 206


def test_a_folder_that_cannot_be_written_is_said(nobody, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match=r"cannot be written \(Not a directory\).*data_dir"):
        fetch(known(f"{nobody}/", big_bin=BIG), tmp_path / "file" / "toys")
    with pytest.raises(SourceError, match=r"/proc/toys cannot be written.*data_dir"):
        fetch(known(f"{nobody}/", big_bin=BIG), Path("/proc/toys"))


@pytest.fixture
def read_only(open_folder):
    """A folder without the right to write, and nobody special to look at it: root has every right."""
    folder = open_folder
    (folder / "there").mkdir()
    (folder / "there/big.bin").write_bytes(BIG)
    (folder / "empty").mkdir()
    for path in (folder / "there", folder / "empty", folder):
        path.chmod(0o555)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(was)
    for path in (folder, folder / "there", folder / "empty"):
        path.chmod(0o755)


def test_a_read_only_folder_is_said_and_a_complete_one_needs_no_right(nobody, read_only):
    toys = known(f"{nobody}/", big_bin=BIG)
    for name in ("empty", "new"):
        with pytest.raises(SourceError, match=r"cannot be written \(Permission denied\).*data_dir"):
            fetch(toys, read_only / name)
    assert fetch(toys, read_only / "there") == {"big.bin": "kept: it was there"}


def test_a_complete_set_is_not_touched(nobody, tmp_path, monkeypatch):
    (tmp_path / "big.bin").write_bytes(BIG)

    def never(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(fetch_set, "fetch_lock", never)
    assert fetch(known(f"{nobody}/", big_bin=BIG), tmp_path) == {"big.bin": "kept: it was there"}


def test_without_pooch_the_error_says_how_to_get_it(nobody, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(SourceError, match=r"pip install 'flodl-pipe\[fetch\]'"):
        fetch(known(f"{nobody}/", big_bin=BIG), tmp_path)


def test_pooch_is_imported_only_for_a_download():
    modules = "[name for name in ('pooch', 'requests', 'torch') if name in sys.modules]"
    # An interpreter of its own: what is imported is the question.
    code = f"import sys, flodl_pipe.jobs.fetch\nprint({modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_poochs_own_log_level_is_put_back(server, tmp_path):
    import pooch

    before = pooch.get_logger().level
    server.serve("a/big.bin", BIG)
    fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path)
    assert pooch.get_logger().level == before


# --- another gzip


def packed(content, mtime):
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=mtime, filename="x") as file:
        file.write(content)
    return buffer.getvalue()


@pytest.fixture
def zipped():
    published = packed(SMALL, 1)
    content = Content(len(SMALL), digest(SMALL))
    return KnownSet("toys", (), (KnownFile("x.gz", len(published), digest(published), "here", content),))


def test_the_same_content_packed_by_another_gzip_is_kept(zipped, tmp_path):
    (tmp_path / "x.gz").write_bytes(packed(SMALL, 2))
    assert fetch(zipped, tmp_path) == {"x.gz": "kept: it was there, packed by another gzip, the content right"}


def test_an_unpacked_copy_is_kept(zipped, tmp_path):
    (tmp_path / "x").write_bytes(SMALL)
    assert fetch(zipped, tmp_path) == {"x.gz": "kept: unpacked, as x"}


@pytest.mark.parametrize(
    ("name", "content"),
    [("x", SMALL + b"."), ("x.gz", packed(SMALL + b".", 2)), ("x.gz", packed(SMALL, 2)[:-9]), ("x.gz", b"no gzip")],
    ids=["unpacked", "other content", "truncated", "no gzip"],
)
def test_another_content_is_an_error(zipped, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match="is there and is another file"):
        fetch(zipped, tmp_path)


# --- interruptions


def script(address, folder, before=""):
    return f"""
import numpy as np
from pathlib import Path
from flodl_pipe.sources.fetch_set import fetch_set
from flodl_pipe.sources.known_sets import KnownFile, KnownSet
{before}
file = KnownFile("big.bin", {len(BIG)}, "{digest(BIG)}", "here")
toys = KnownSet("toys", ("{address}",), (file,))
print([found.how for found in fetch_set(toys, Path({str(folder)!r}), None, lambda *_: None)])
"""


def start(code):
    return Program(["-c", code], stdout=PIPE, stderr=PIPE, text=True)


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_download_goes_on_after_its_process_was_ended(server, tmp_path, number):
    served = server.serve("a/big.bin", BIG, hold_at=640_000)
    part = tmp_path / ".fetch/big.bin.part"
    process = start(script(f"{server.address}/a/", tmp_path))
    wait_for(lambda: part.exists() and part.stat().st_size >= 500_000)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number
    assert not (tmp_path / "big.bin").exists()
    had = part.stat().st_size
    served.hold_at = None
    served.release.set()
    assert fetch(known(f"{server.address}/a/", big_bin=BIG), tmp_path) == {
        "big.bin": f"downloaded from {server.address}/a/"
    }
    assert server.ranges("a/big.bin") == [None, f"bytes={had}-"]
    assert (tmp_path / "big.bin").read_bytes() == BIG
    assert names(tmp_path) == ["big.bin"]


def test_two_fetches_at_once_download_once(server, tmp_path):
    served = server.serve("a/big.bin", BIG, hold_at=640_000)
    code = script(
        f"{server.address}/a/", tmp_path, "import logging, sys\nlogging.basicConfig(level=20, stream=sys.stderr)"
    )
    first = start(code)
    wait_for((tmp_path / ".fetch/big.bin.part").exists)
    second = start(code)
    while "waiting for it" not in (heard := second.stderr.readline()):
        assert heard, second.communicate()
    served.release.set()
    assert "downloaded from" in first.communicate(timeout=60)[0]
    assert "kept: it was there" in second.communicate(timeout=60)[0]
    assert len(server.requests) == 1
    assert names(tmp_path) == ["big.bin"]


def test_a_lock_left_by_a_killed_fetch_is_no_obstacle(tmp_path):
    (tmp_path / ".fetch.lock").touch()
    with fetch_lock(tmp_path):
        assert (tmp_path / ".fetch.lock").exists()
    assert names(tmp_path) == []


# --- the program


def shared(name):
    if not (SHARED / name).exists():
        pytest.skip(f"{SHARED / name} is not there")
    return (SHARED / name).read_bytes()


def test_the_program_fetches_and_then_keeps(server, call, tmp_path):
    server.serve("shakespeare/input.txt", shared("tinyshakespeare_input.txt"))
    words = ("job=fetch", "job.datasets=shakespeare", f"job.mirror={server.address}")
    status, out, err = call(*words)
    assert status == 0, err
    assert f"downloaded from {server.address}/shakespeare/" in " ".join(out.split())
    assert "input.txt: 1.06 MiB of 1.06 MiB (100 %)" in err
    assert names(tmp_path) == ["data"]
    status, out, err = call(*words)
    assert (status, err) == (0, "")
    assert "kept: it was there" in " ".join(out.split())
    assert len(server.requests) == 1


def test_the_real_test_set_is_recognised_whoever_packed_it(call, nobody, tmp_path):
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for part in ("images-idx3", "labels-idx1"):
        (folder / f"t10k-{part}-ubyte.gz").write_bytes(shared(f"mnist_t10k-{part}-ubyte.gz"))
    status, _, err = call("job=fetch", "job.datasets=mnist", f"job.mirror={nobody}")
    assert status == 2
    assert "train-images-idx3-ubyte.gz could not be downloaded" in err
    assert "t10k" not in err


def test_a_truncated_file_of_the_test_set_is_an_error(call, nobody, tmp_path):
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(shared("mnist_t10k-labels-idx1-ubyte.gz")[:-100])
    status, _, err = call("job=fetch", "job.datasets=mnist", f"job.mirror={nobody}")
    assert status == 2
    assert KNOWN_SETS["mnist"].files[3].sha256 in err


@pytest.mark.full
def test_ctrl_c_keeps_the_part_and_says_so(server, program, tmp_path):
    content = shared("tinyshakespeare_input.txt")
    served = server.serve("shakespeare/input.txt", content, hold_at=600_000)
    words = ["job=fetch", "job.datasets=shakespeare", f"job.mirror={server.address}"]
    process = program(*words)
    part = tmp_path / "data/shakespeare/.fetch/input.txt.part"
    wait_for(lambda: part.exists() and part.stat().st_size > 500_000)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from it" in out
    assert err.endswith("flodl_pipe: interrupted\n")
    had = part.stat().st_size
    served.release.set()
    again = program(*words)
    _, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert server.ranges("shakespeare/input.txt")[1] == f"bytes={had}-"
    assert (tmp_path / "data/shakespeare/input.txt").read_bytes() == content
    assert names(tmp_path) == ["data"]


def test_a_source_leads_to_its_set():
    assert [known.name for known in fetch_job._sets(FetchJob(), "cifar10_disk")] == ["cifar10"]
    job = FetchJob(datasets=["shakespeare", "mnist", "shakespeare"])
    assert [known.name for known in fetch_job._sets(job, "records")] == ["shakespeare", "mnist"]


WRONG = {
    "job.datasets=imagenet": "must name data sets that can be downloaded (mnist, fashion_mnist",
    "job.datasets=[mnist,imagenet]": "got 'imagenet'",
    "job.datasets=[]": "got an empty list",
    "job.mirror=ftp://host/x": "must be the http or https address",
    "job.mirror=data": "must be the http or https address",
    "job.mirror=http://me:secret@host/x": "leave out the name and password",
    "job.datasets=null": "there is none to download for source kind 'token_shards'",
}


@pytest.mark.parametrize("word", WRONG)
def test_wrong_keys_are_refused(call, word, tmp_path):
    status, _, err = call("job=fetch", word)
    assert status == 2
    assert WRONG[word] in err
    assert "secret" not in err.partition("set at")[0]
    assert names(tmp_path) == []
