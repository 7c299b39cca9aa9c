"""A loader whose server has gone silent ends all the same, long before the client of remote data gives that up."""

import http.server
import threading

import numpy as np
import pytest

from flodl_pipe.errors import LoaderError
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.text_stream import TextStream
from flodl_pipe.sources.tokens import TokenShards
from tests.loader.waiting import HANG_S, joined, own_threads

pytest.importorskip("obstore")

FULL = pytest.mark.full
# Enough for the first step, and less than is read ahead.
FIRST_BYTES = 100_000


class Store(http.server.BaseHTTPRequestHandler):
    """Serves one file in ranges; after ``silent`` is set, only what begins among its first bytes."""

    protocol_version = "HTTP/1.1"
    content = b""
    silent, asked, end = threading.Event(), threading.Event(), threading.Event()

    def do_GET(self):
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        part = self.content[int(first) : int(last) + 1]
        if self.silent.is_set() and int(first) > FIRST_BYTES:
            self.asked.set()
            self.end.wait()
            self.close_connection = True
            return
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(self.content)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", '"one"')
        self.end_headers()
        self.wfile.write(part)

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.send_header("ETag", '"one"')
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def store():
    class Own(Store):
        silent, asked, end = threading.Event(), threading.Event(), threading.Event()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield Own, f"http://127.0.0.1:{server.server_address[1]}"
    Own.end.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("rows", "drop"),
        pytest.param("rows", "close", marks=FULL),
        pytest.param("stream", "drop", marks=FULL),
        ("stream", "close"),
    ],
)
def test_a_silent_server_does_not_keep_the_loader(store, kind, how):
    server, address = store
    if kind == "rows":
        server.content = np.arange(1 << 20, dtype="<u2").tobytes()
        source = TokenShards.open(f"{address}/a.bin", seq_len=4096, dtype="uint16", file_format="raw")
    else:
        server.content = b"a line of text, again and again\n" * (1 << 17)
        source = TextStream.open(f"{address}/a.txt", seq_len=1 << 15)
    loader = Loader(source, batch_size=8, mode="streaming", shuffle=False, prefetch=4, readers=1, sample_cache=False)
    server.silent.set()
    batches = [iter(loader)]
    next(batches[0])
    assert server.asked.wait(HANG_S)  # so a reader waits for an answer
    if how == "drop":
        ending = threading.Thread(target=batches.clear)
        ending.start()
    else:
        ending = threading.Thread(target=loader.close)
        ending.start()
        with pytest.raises(LoaderError, match="closed"):
            while True:
                next(batches[0])
    joined(ending)
    loader.close()
    assert not own_threads()
