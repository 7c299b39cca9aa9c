"""Objects of a real web server: rows, requests, changes, threads, processes, and what may be seen of an address."""

import asyncio
import http.server
import logging
import multiprocessing
import os
import pickle
import threading
import traceback

import numpy as np
import pytest

from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.storage.remote import RemoteBlobs
from flodl_pipe.storage.remote_patience import RemotePolicy
from tests.storage.servers import nginx, requests_of
from tests.storage.waiting import Waiting

NUM, SIZE = 3, 300_000
DATA = np.random.default_rng(0).integers(0, 256, (NUM, SIZE), dtype=np.uint8)
QUICK = RemotePolicy(patience_s=0.3, client_retries=0, first_backoff_s=0.02, longest_backoff_s=0.05)


@pytest.fixture
def site(tmp_path_factory, monkeypatch):
    """A server with three objects of random bytes; yields root, log folder, and their addresses."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    root, folder = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("server")
    for number, data in enumerate(DATA):
        (root / f"part {number}.bin").write_bytes(data.tobytes())
    with nginx(root, folder) as address:
        yield root, folder, [f"{address}/part%20{number}.bin" for number in range(NUM)]


def read(blobs, places, row_bytes=100, rows=None, out=None):
    numbers, offsets = np.array(places, dtype=np.int64).T
    rows = np.arange(len(places)) if rows is None else rows
    out = np.zeros((len(places), row_bytes), np.uint8) if out is None else out
    blobs.read_rows(numbers, offsets, row_bytes, rows, out)
    return out


def right(places, row_bytes=100):
    return np.stack([DATA[number, offset : offset + row_bytes] for number, offset in places])


def test_rows_of_many_objects_go_to_the_rows_named(site):
    blobs = open_blobs(site[2])
    assert isinstance(blobs, RemoteBlobs)
    assert list(blobs.names) == site[2]
    assert blobs.sizes.tolist() == [SIZE] * NUM
    rng = np.random.default_rng(1)
    places = [(int(rng.integers(NUM)), int(rng.integers(SIZE - 99))) for _ in range(200)]
    rows = rng.permutation(300)[:200]
    out = read(blobs, places, rows=rows, out=np.full((300, 100), 7, np.uint8))
    np.testing.assert_array_equal(out[rows], right(places))
    assert (np.delete(out, rows, axis=0) == 7).all()


def test_the_ends_of_objects_and_long_ranges_are_read(site):
    blobs = RemoteBlobs(site[2], policy=RemotePolicy(range_bytes=70_000))
    whole = np.empty(SIZE, np.uint8)
    blobs.read_range(1, 0, whole)
    np.testing.assert_array_equal(whole, DATA[1])
    assert (
        requests_of(site[1], NUM + 5)
        == [f"/part 1.bin bytes={start}-{min(start + 70_000, SIZE) - 1} 206" for start in range(0, SIZE, 70_000)]
        or len(requests_of(site[1])) == 5
    )
    np.testing.assert_array_equal(read(blobs, [(2, SIZE - 1), (0, 0)], 1), right([(2, SIZE - 1), (0, 0)], 1))
    places = [(0, 0), (1, 100_000), (0, 50)]
    np.testing.assert_array_equal(read(blobs, places, 200_000), right(places, 200_000))
    nothing = np.empty(0, np.uint8)
    blobs.read_range(0, SIZE, nothing)
    read(blobs, np.empty((0, 2)))


def test_one_range_is_fetched_once_and_neighbours_share_a_request(site):
    blobs = open_blobs(site[2])
    places = [(0, offset) for offset in range(0, 20_000, 100)] + [(0, 500), (2, 0), (2, 290_000)]
    np.testing.assert_array_equal(read(blobs, places), right(places))
    assert sorted(requests_of(site[1], NUM + 3)) == [
        "/part 0.bin bytes=0-19999 206",
        "/part 2.bin bytes=0-99 206",
        "/part 2.bin bytes=290000-290099 206",
    ]


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ([(0, SIZE - 99)], r"bytes 299,901 \.\. 300,001 lie outside the object of 300,000"),
        ([(1, -1)], "lie outside"),
        ([(3, 0)], r"blobs 3 \.\. 3 do not exist"),
        ([(-1, 0)], "do not exist"),
    ],
)
def test_what_lies_outside_is_an_error_without_a_request(site, places, says):
    blobs = open_blobs(site[2])
    with pytest.raises(SourceError, match=says):
        read(blobs, places)
    with pytest.raises(SourceError, match=r"lie outside|does not exist"):
        blobs.read_range(places[0][0], places[0][1], np.empty(100, np.uint8))
    assert requests_of(site[1], NUM) == []


def test_opening_is_one_request_an_object_and_brings_its_header(site):
    blobs = open_blobs(site[2])
    for number in range(NUM):
        head = np.empty(16_384, np.uint8)
        blobs.read_range(number, 0, head)
        np.testing.assert_array_equal(head, DATA[number, :16_384])
    text = (site[1] / "access.log").read_text()
    assert text.count("bytes=0-16383") == text.count("part") == NUM
    blobs.close()
    blobs.read_range(0, 0, head)
    np.testing.assert_array_equal(head, DATA[0, :16_384])
    assert requests_of(site[1], NUM + 1, heads=True)[NUM:] == ["/part 0.bin bytes=0-16383 206"]


def test_small_and_empty_objects_are_opened(site):
    root, _, addresses = site
    (root / "part 0.bin").write_bytes(b"abc")
    (root / "part 1.bin").write_bytes(b"")
    blobs = open_blobs(addresses[:2])
    assert blobs.sizes.tolist() == [3, 0]
    out = np.empty(2, np.uint8)
    blobs.read_range(0, 1, out)
    assert out.tobytes() == b"bc"
    blobs.check_unchanged()


@pytest.mark.parametrize("change", ["rewritten", "shortened", "removed", "touched"])
def test_a_changed_object_is_an_error_in_reads_and_checks(site, change):
    root, _, addresses = site
    blobs = open_blobs(addresses)
    blobs.check_unchanged()
    file = root / "part 1.bin"
    before = file.stat().st_mtime
    if change == "removed":
        file.unlink()
    elif change == "touched":
        os.utime(file, (before + 5, before + 5))
    else:
        file.write_bytes(DATA[2, : SIZE if change == "rewritten" else 1000].tobytes())
        os.utime(file, (before + 5, before + 5))
    np.testing.assert_array_equal(read(blobs, [(0, 5), (2, 5)]), right([(0, 5), (2, 5)]))
    for look in (
        blobs.check_unchanged,
        lambda: read(blobs, [(0, 0), (1, 5_000)]),
        lambda: blobs.read_range(1, 5_000, np.empty(10, np.uint8)),
    ):
        with pytest.raises(
            ChangedError, match=r"part%201\.bin: deleted|part%201\.bin.*: it was 300,000 bytes, ETag .* now it"
        ):
            look()


def test_threads_read_at_once(site):
    blobs, wrong = open_blobs(site[2]), []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(5):
                places = [(int(rng.integers(NUM)), int(rng.integers(SIZE - 99))) for _ in range(50)]
                np.testing.assert_array_equal(read(blobs, places), right(places))
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_it_reads_in_a_thread_that_already_runs_a_loop(site):
    async def cell():
        blobs = open_blobs(site[2])
        found = read(blobs, [(0, 7)])
        await asyncio.sleep(0)
        assert asyncio.current_task() is not None
        return found

    np.testing.assert_array_equal(asyncio.run(cell()), right([(0, 7)]))


def send(blobs, queue):
    try:
        queue.put(read(blobs, [(1, 3)]).tobytes())
    except SourceError as error:
        queue.put(str(error))


@pytest.mark.full
def test_a_spawned_process_reads_the_same(site):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=send, args=(open_blobs(site[2]), queue))
    child.start()
    assert queue.get(timeout=120) == right([(1, 3)]).tobytes()
    child.join()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # on purpose: that is what is tested
def test_a_forked_process_is_told_why_it_cannot_read(site):
    blobs = open_blobs(site[2])
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=send, args=(blobs, queue))
    child.start()
    said = queue.get(timeout=120)
    child.join()
    assert "threads of the client do not follow a fork. Start processes by 'spawn'" in said
    np.testing.assert_array_equal(read(blobs, [(1, 3)]), right([(1, 3)]))


def test_it_pickles_small_and_opens_again_after_close(site):
    blobs = open_blobs(site[2])
    before = read(blobs, [(0, 0)])
    text = pickle.dumps(blobs)
    assert len(text) < 2_000
    blobs.close()
    for one in (blobs, pickle.loads(text)):
        np.testing.assert_array_equal(read(one, [(0, 0)]), before)
    assert repr(blobs).startswith("RemoteBlobs(http://127.0.0.1:")


def test_the_values_of_a_query_are_sent_and_seen_nowhere(site, caplog):
    root, _, (address, *_) = site
    asked_for = [f"{address}?id=hunter2"]
    with caplog.at_level(logging.DEBUG):
        blobs = open_blobs(asked_for)
        np.testing.assert_array_equal(read(blobs, [(0, 9)]), right([(0, 9)]))
        (root / "part 0.bin").unlink()
        with pytest.raises(SourceError) as caught:
            read(blobs, [(0, 9)])
        with pytest.raises(SourceError) as missing:
            open_blobs(asked_for)
    shown = [caplog.text, repr(blobs), *blobs.names]
    shown += ["".join(traceback.format_exception(error.value)) for error in (caught, missing)]
    assert not [text for text in shown if "hunter2" in text]
    assert "?id=..." in blobs.names[0]


class Bare(http.server.BaseHTTPRequestHandler):
    """A server without ETag and Last-Modified, whose bodies break off or are short for the first few times."""

    protocol_version = "HTTP/1.1"
    fault, times = "", 0

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(200, len(DATA[0]))
        self.end_headers()

    def do_GET(self):
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        body, cls = DATA[0, first : last + 1].tobytes(), type(self)
        broken, cls.times = cls.times > 0, cls.times - 1
        sent = body[: len(body) // 2] if broken else body
        self.answer(206, len(sent) if cls.fault == "short" else len(body))
        self.send_header("Content-Range", f"bytes {first}-{last}/{SIZE}")
        self.end_headers()
        self.wfile.write(sent)

    def answer(self, code, length):
        self.send_response(code)
        self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.close_connection = True


@pytest.fixture
def bare(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bare) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/x.bin"
        server.shutdown()
        thread.join()


def test_a_server_without_identities_is_said_so_once(bare, caplog):
    Bare.times = 0
    with caplog.at_level(logging.WARNING):
        blobs = RemoteBlobs([bare], policy=QUICK)
        np.testing.assert_array_equal(read(blobs, [(0, 9)]), right([(0, 9)]))
        blobs.check_unchanged()
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "the server gives neither ETag nor Last-Modified, so only a change of size will be noticed"
    ]


@pytest.mark.parametrize("fault", ["cut", "short"])
def test_a_body_that_is_not_whole_is_asked_for_again_and_then_an_error(bare, fault, monkeypatch):
    Waiting(monkeypatch)
    Bare.fault, Bare.times = fault, 2
    blobs = RemoteBlobs([bare], policy=QUICK)
    np.testing.assert_array_equal(read(blobs, [(0, 9)]), right([(0, 9)]))
    Bare.times = 1_000
    with pytest.raises(
        SourceError, match=r"x\.bin, bytes 9 \.\. 109: (the answer broke off|50 bytes came instead of 100)"
    ):
        read(blobs, [(0, 9)])
    assert 1_000 - Bare.times > 2
    Bare.times = 0
