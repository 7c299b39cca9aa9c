"""A small HTTP server with ranges, validators and faults, for the tests of downloads."""

import hashlib
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """A file on the server and how it misbehaves."""

    content: bytes
    etag: str | None = None
    ranges: bool = True
    conditions: bool = True
    """Whether ``If-Range`` is heeded."""
    status: int | None = None
    cut_after: int | None = None
    """Bytes of a body after which the connection is closed ..."""
    cuts: int = 0
    """... this many times."""
    hold_at: int | None = None
    """Byte of the file at which the server waits until ``release`` is set."""
    sized: bool = True
    release: threading.Event = field(default_factory=threading.Event)


class Server:
    def __init__(self):
        self.files = {}
        self.requests = []
        """(path, Range, If-Range, status) of every request."""

    def serve(self, path, content, **faults):
        self.files[path] = Served(content, **{"etag": f'"{hashlib.md5(content).hexdigest()}"', **faults})
        return self.files[path]

    def ranges(self, path):
        return [asked for at, asked, _, _ in self.requests if at == path]


@contextmanager
def running():
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            path, asked, condition = self.path.lstrip("/"), self.headers["Range"], self.headers["If-Range"]
            served = server.files.get(path)
            status, start = 200, 0
            if served is None or served.status is not None:
                status = 404 if served is None else served.status
            elif asked and served.ranges and (condition in (None, served.etag) or not served.conditions):
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                status = 206 if start < len(served.content) else 416
            server.requests.append((path, asked, condition, status))
            self.send_response(status)
            if status not in (200, 206):
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if status == 206:
                last = len(served.content) - 1
                self.send_header("Content-Range", f"bytes {start}-{last}/{len(served.content)}")
            if served.etag:
                self.send_header("ETag", served.etag)
            if served.sized:
                self.send_header("Content-Length", str(len(served.content) - start))
            self.end_headers()
            self.body(served, start)

        def body(self, served, start):
            end = len(served.content)
            if served.cuts and served.cut_after is not None:
                served.cuts -= 1
                end = min(end, start + served.cut_after)
            step = 1 << 14
            try:
                for at in range(start, end, step):
                    if served.hold_at is not None and at >= served.hold_at:
                        self.wfile.flush()
                        served.release.wait(60)
                    self.wfile.write(served.content[at : min(end, at + step)])
            except OSError:
                pass  # the other side left
            self.close_connection = True

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.address = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        for served in server.files.values():
            served.release.set()
        http.shutdown()
        http.server_close()
        thread.join()
