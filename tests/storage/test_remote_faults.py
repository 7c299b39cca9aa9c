"""A store that misbehaves in every way it can: what is read is right, or there is an error in good time that names it.

Waits before a request is made again pass at once, on a clock of the test's own; time-outs are those of the client, and
long where they are not what a test is about.

``opened`` opens an object where the store behaves and turns it to a fault afterwards, so that the fault meets a read.
White box: it changes the addresses of the list.
"""

import contextlib
import dataclasses
import logging
import os
import re
import signal
import threading

import numpy as np
import pytest

from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.sources.tokens import TokenShards
from flodl_pipe.storage.remote import RemoteBlobs
from flodl_pipe.storage.remote_patience import RemotePolicy
from tests.storage.servers import asked, fault_process, fault_server, kept_port, wait_until_asked
from tests.storage.waiting import Waiting, wait_until_let_go

QUICK = RemotePolicy(
    connect_timeout_s=60,
    stall_timeout_s=60,
    request_timeout_s=60,
    deadline_s=300,
    patience_s=0.2,
    opening_patience_s=0.3,
    client_retries=0,
    first_backoff_s=0.02,
    longest_backoff_s=0.05,
    gap_bytes=0,
)
# One more try after the first, and each ends in no time.
IMPATIENT = dataclasses.replace(
    QUICK, stall_timeout_s=0.1, request_timeout_s=0.1, patience_s=0.01, opening_patience_s=0.01, first_backoff_s=1
)
DATA = np.random.default_rng(0).integers(0, 256, 40_000, dtype=np.uint8)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(autouse=True)
def waiting(monkeypatch):
    return Waiting(monkeypatch)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def base(root):
    with fault_server(root) as address:
        yield address


@pytest.fixture
def name(root, request):
    """A file of its own for each test: the store counts requests by path."""
    name = f"{re.sub('[^a-z0-9]', '_', request.node.name.lower())}.bin"
    (root / name).write_bytes(DATA.tobytes())
    return name


@pytest.fixture
def opened(base, name):
    def turn(fault, policy=QUICK):
        blobs = RemoteBlobs([f"{base}/ok/{name}"], policy=policy)
        (good,) = blobs._addresses
        blobs._addresses = (dataclasses.replace(good, key=good.key.replace("ok/", f"{fault}/")),)
        blobs._names = (blobs._addresses[0].shown,)
        return blobs

    return turn


def rows_of(blobs, offsets=(30_000, 10, 20_000), row_bytes=100):
    out = np.zeros((len(offsets), row_bytes), np.uint8)
    blobs.read_rows(
        np.zeros(len(offsets), np.int64), np.array(offsets), row_bytes, np.arange(len(offsets))[::-1].copy(), out
    )
    return out[::-1]


def require_right(blobs, offsets=(30_000, 10, 20_000)):
    np.testing.assert_array_equal(rows_of(blobs, offsets), DATA[np.array(offsets)[:, None] + np.arange(100)])


def failing(action):
    with pytest.raises(SourceError) as caught:
        action()
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_a_store_that_behaves_is_read(base, name):
    blobs = RemoteBlobs([f"{base}/ok/{name}"], policy=QUICK)
    assert blobs.sizes.tolist() == [len(DATA)]
    require_right(blobs)
    blobs.check_unchanged()
    assert [method for method, _, _ in asked(base, name)] == ["GET", "GET", "GET", "GET", "HEAD"]
    assert sorted(span for method, _, span in asked(base, name) if method == "GET") == [
        "bytes=0-16383",
        "bytes=10-109",
        "bytes=20000-20099",
        "bytes=30000-30099",
    ]


def test_an_answer_that_breaks_off_is_resumed_and_then_an_error(opened, base, name):
    said = failing(
        lambda: rows_of(opened("cut", dataclasses.replace(QUICK, client_retries=2, patience_s=0.01)), [0], 10_000)
    )
    assert f"/cut/{name}, bytes 0 .. 10,000: the answer broke off before its end" in said
    gets = [span for method, _, span in asked(base, f"/cut/{name}")]
    once = ["bytes=0-9999", "bytes=5000-9999", "bytes=7500-9999"]
    assert gets[:6] == once * 2


def test_an_object_of_unknown_length_is_refused(base, name):
    said = failing(lambda: RemoteBlobs([f"{base}/cut_nolen/{name}"], policy=QUICK))
    assert f"/cut_nolen/{name}: the server does not say how long it is (no Content-Length)" in said


def test_an_object_that_is_shorter_than_its_header_says_is_an_error_of_the_format(base, root):
    np.save(root / "short.npy", np.arange(5_000, dtype="<u2"))
    with pytest.raises(SourceError, match=r"short_ok/short\.npy: truncated: .* expected 10,128 bytes, found 5,064"):
        TokenShards.open([f"{base}/short_ok/short.npy"], seq_len=8)


def test_a_flipped_byte_is_not_noticed_but_has_another_fingerprint(base, root):
    np.save(root / "flip.npy", np.arange(5_000, dtype="<u2"))
    good, bad = (TokenShards.open([f"{base}/{fault}/flip.npy"], seq_len=8) for fault in ("ok", "flip"))
    assert good.fingerprint(full=True) != bad.fingerprint(full=True)


def test_a_server_that_ignores_ranges_never_shifts_data(opened, caplog):
    blobs = opened("norange")
    with caplog.at_level(logging.WARNING):
        require_right(blobs)
        require_right(blobs, [39_900, 0])
    out = np.empty(500, np.uint8)
    blobs.read_range(0, 777, out)
    np.testing.assert_array_equal(out, DATA[777:1277])
    assert [record.message.partition(";")[0].partition(": ")[2] for record in caplog.records] == [
        "the server ignores ranges, so whole objects are fetched for every read, which is slow"
    ]


def test_a_server_that_ignores_ranges_is_refused_for_large_objects(opened):
    said = failing(lambda: require_right(opened("norange", dataclasses.replace(QUICK, whole_bytes=1000))))
    assert "the server ignores ranges and sends all of its 39.1 KiB" in said


def test_whole_objects_are_fetched_once_a_call(opened, base, name):
    blobs = opened("norange")
    require_right(blobs)
    before = len(asked(base, f"/norange/{name}"))
    require_right(blobs)
    assert len(asked(base, f"/norange/{name}")) == before + 1


def test_another_range_than_asked_for_is_an_error(opened):
    said = failing(lambda: rows_of(opened("wrongrange")))
    assert re.search(r"the server answered a request for bytes (\d+) \.\. \d+ with bytes (\d+) \.\. ", said)


@pytest.mark.parametrize("where", ["opening", "reading"])
def test_a_busy_server_is_asked_again(opened, base, name, where):
    blobs = RemoteBlobs([f"{base}/s503x2/{name}"], policy=QUICK) if where == "opening" else opened("s503x2")
    require_right(blobs, [10])
    assert [method for method, _, _ in asked(base, f"/s503x2/{name}")] == (["GET"] * (4 if where == "opening" else 3))


def test_retries_wait_longer_each_time(opened, waiting):
    slow_to_ask = dataclasses.replace(QUICK, first_backoff_s=20, longest_backoff_s=100, patience_s=300)
    require_right(opened("s503x2", slow_to_ask), [10])
    first, second = waiting.waits
    assert 10 <= first <= 30
    assert 20 <= second <= 60


@pytest.mark.parametrize("where", ["opening", "reading"])
def test_a_server_that_stays_busy_is_an_error(opened, base, name, where, waiting):
    """It does answer, so it is no wrong address, and waited for as long when it is opened as later on."""
    if where == "opening":
        said = failing(lambda: RemoteBlobs([f"{base}/s503/{name}"], policy=QUICK))
    else:
        said = failing(lambda: rows_of(opened("s503"), [10]))
        assert "(SlowDown)" in said
    assert f"/s503/{name}" in said
    num_tries = len(waiting.waits) + 1
    assert len(asked(base, f"/s503/{name}")) == num_tries > 4
    says = rf"the server still says 503 Service Unavailable.*; given up after {num_tries} tries in 201\.0 ms"
    assert re.search(says, said)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            "s403",
            "access refused: the server says 403 Forbidden (AccessDenied); http(s) addresses are read without a login",
        ),
        ("s404", "does not exist: the server says 404 Not Found (NoSuchKey); correct source.path"),
    ],
)
def test_a_refusal_names_address_status_and_remedy(base, name, fault, says):
    said = failing(lambda: RemoteBlobs([f"{base}/{fault}/{name}"], policy=QUICK))
    assert said.startswith(f"{base}/{fault}/{name}: {says}")
    assert len(asked(base, f"/{fault}/{name}")) == 1


def test_a_refusal_while_reading_names_the_range(opened, base, name):
    said = failing(lambda: rows_of(opened("s403"), [10]))
    assert said.startswith(f"{base}/s403/{name}, bytes 10 .. 110: access refused: the server says 403")
    assert "(AccessDenied)" in said


def test_an_object_that_is_gone_is_changed(opened):
    with pytest.raises(ChangedError, match=r"deleted or renamed after it was opened \(40,000 bytes, ETag"):
        rows_of(opened("s404"))


def test_a_web_page_is_no_data(base, name):
    blobs = RemoteBlobs([f"{base}/html200/{name}"], policy=QUICK)
    said = failing(lambda: blobs.read_range(0, 0, np.empty(20, np.uint8)))
    assert "the server sent a web page (a login?) and no data" in said
    with pytest.raises(SourceError, match="web page"):
        TokenShards.open([f"{base}/html200/{name}"], seq_len=2, dtype="uint16")


@pytest.mark.parametrize("where", ["opening", "reading"])
def test_a_server_that_says_nothing_is_an_error_in_time(opened, base, name, where):
    if where == "opening":
        said = failing(lambda: RemoteBlobs([f"{base}/hang/{name}"], policy=IMPATIENT))
    else:
        said = failing(lambda: rows_of(with_policy(opened("hang"), IMPATIENT), [10]))
    assert f"/hang/{name}" in said
    assert re.search(r"no answer within the time-out;.*; given up after 2 tries in", said)


def with_policy(blobs, policy):
    """Return the objects, which were opened with patience, to be read with less."""
    blobs.close()
    blobs._policy = policy
    return blobs


def test_a_call_as_a_whole_has_a_deadline(opened, base, name, capfd):
    """The server says nothing for a minute, which the client would wait for."""
    hurried = dataclasses.replace(QUICK, deadline_s=0.1)
    said = failing(lambda: rows_of(with_policy(opened("hang"), hurried)))
    assert "did not come within the deadline of 100.0 ms, for 3 requests" in said
    assert "within the deadline" in failing(lambda: RemoteBlobs([f"{base}/hang/{name}"], policy=hurried))
    wait_until_let_go()
    assert capfd.readouterr().err == ""


def test_an_interrupt_ends_a_read_at_once(opened, base, name, capfd):
    """It comes when the server has been asked, which says nothing for a minute; then the read would go on for more."""

    def interrupt(*_):
        raise KeyboardInterrupt

    def press():
        wait_until_asked(base, f"/hang/{name}", 3)
        os.kill(os.getpid(), signal.SIGALRM)

    blobs = opened("hang")
    before = signal.signal(signal.SIGALRM, interrupt)
    presses = threading.Thread(target=press)
    try:
        presses.start()
        with pytest.raises(KeyboardInterrupt):
            rows_of(blobs)
    finally:
        presses.join()
        signal.signal(signal.SIGALRM, before)
    assert len(asked(base, f"/hang/{name}")) == 3  # none was asked for again, as after an answer that did not come
    wait_until_let_go()
    assert capfd.readouterr().err == ""


def test_a_slow_server_is_a_time_out(opened, name):
    hurried = dataclasses.replace(IMPATIENT, stall_timeout_s=60)  # it does send something, every quarter of a second
    said = failing(lambda: rows_of(with_policy(opened("slow"), hurried), [0], 20_000))
    assert f"/slow/{name}, bytes 0 .. 20,000: the answer did not come within the time-out" in said


def test_a_slow_server_is_read_when_time_allows(opened):
    require_right(opened("slow"), [10])


def test_an_object_with_another_etag_is_changed(base, name):
    blobs = RemoteBlobs([f"{base}/etag/{name}"], policy=QUICK)
    with pytest.raises(ChangedError, match=rf'etag/{name}.*it was 40,000 bytes, ETag "40000-1", now it is .*"40000-\d'):
        rows_of(blobs)
    with pytest.raises(ChangedError, match=r'ETag "40000-1", now it is'):
        blobs.check_unchanged()


def test_a_packed_object_is_refused(base, name):
    said = failing(lambda: RemoteBlobs([f"{base}/gzip/{name}"], policy=QUICK))
    assert f"/gzip/{name}: the server sends it with Content-Encoding 'gzip'" in said


def test_a_redirect_is_followed(base, name):
    require_right(RemoteBlobs([f"{base}/redirect/{name}"], policy=QUICK))


def test_one_bad_object_of_many_is_named(base, name):
    said = failing(lambda: RemoteBlobs([f"{base}/ok/{name}", f"{base}/s404/{name}"], policy=QUICK))
    assert said.startswith(f"{base}/s404/{name}: does not exist")


def test_nobody_there_is_an_error_soon(waiting):
    with kept_port() as port:
        said = failing(lambda: RemoteBlobs([f"http://127.0.0.1:{port}/x.bin"], policy=QUICK))
    assert f"http://127.0.0.1:{port}/x.bin: the server cannot be reached; check its name" in said
    assert said.endswith(f"; given up after {len(waiting.waits) + 1} tries in 301.0 ms")


def test_a_server_that_is_started_again_is_read_on(root, name, waiting):
    with kept_port() as port, contextlib.ExitStack() as again:
        with fault_process(root, port) as (server, address):
            blobs = RemoteBlobs([f"{address}/ok/{name}"], policy=QUICK)
            server.kill()
            server.wait()
        waiting.meanwhile = lambda number: again.enter_context(fault_process(root, port)) if number == 5 else None
        require_right(blobs, [10])
        assert len(waiting.waits) == 5
        require_right(blobs)


def test_a_server_that_stays_away_is_waited_for_as_long_as_the_policy_says(root, name, waiting):
    policy = dataclasses.replace(QUICK, patience_s=100.0, longest_backoff_s=9.0)
    with kept_port() as port:
        with fault_process(root, port) as (server, address):
            blobs = RemoteBlobs([f"{address}/ok/{name}"], policy=policy)
            server.kill()
            server.wait()
        said = failing(lambda: rows_of(blobs, [10]))
    assert "the server cannot be reached" in said
    assert sum(waiting.waits) == pytest.approx(100.001)
