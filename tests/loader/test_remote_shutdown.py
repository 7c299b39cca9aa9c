"""A loader whose server has gone silent ends promptly all the same."""

import http.server
import threading
import time

import numpy as np
import pytest

from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.text_stream import TextStream
from flodl_pipe.sources.tokens import TokenShards

pytestmark = pytest.mark.full

pytest.importorskip("obstore")


class Store(http.server.BaseHTTPRequestHandler):
    """Serves one file in ranges; after ``silent`` is set, answers nothing more."""

    protocol_version = "HTTP/1.1"
    content = b""
    silent = threading.Event()
    end = threading.Event()

    def do_GET(self):
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        part = self.content[int(first) : int(last) + 1]
        if self.silent.is_set():
            self.end.wait(30)
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
        silent, end = threading.Event(), threading.Event()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Own, f"http://127.0.0.1:{server.server_address[1]}"
    Own.end.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("kind", ["rows", "stream"])
@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_silent_server_does_not_keep_the_loader(store, kind, how):
    server, address = store
    if kind == "rows":
        server.content = np.arange(1 << 20, dtype="<u2").tobytes()
        source = TokenShards.open(f"{address}/a.bin", seq_len=64, dtype="uint16", file_format="raw")
    else:
        server.content = b"a line of text, again and again\n" * (1 << 20)
        source = TextStream.open(f"{address}/a.txt", seq_len=64)
    loader = Loader(source, batch_size=8, mode="streaming", prefetch=4)
    batches = iter(loader)
    next(batches)
    server.silent.set()
    began_s = time.monotonic()
    threading.Timer(0.5, loader.close).start() if how == "close" else None
    with pytest.raises(Exception, match="closed") if how == "close" else pytest.MonkeyPatch.context():
        for _ in range(100_000):
            if how == "drop" and time.monotonic() - began_s > 0.5:
                break
            next(batches)
            if how == "drop":
                time.sleep(0.1)
                break
    del batches
    loader.close()
    assert time.monotonic() - began_s < 5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flodl_pipe")]
