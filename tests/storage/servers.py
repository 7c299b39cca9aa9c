"""Servers that tests of remote data start for themselves: a web server, an S3-compatible store, one that misbehaves.

Each is a context manager that yields an address; what is not installed is a visible skip that names the package. Ports
are never free ones that somebody else may take in between: see :func:`kept_port`.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.programs import Program, environment

SHARED = Path(__file__).resolve().parents[2].parent / "shared"

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing-id", "AWS_SECRET_ACCESS_KEY": "testing-secret", "AWS_REGION": "us-east-1"}

_NGINX = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; {user}
events {{ worker_connections 512; }}
http {{
    log_format short '$request_method $uri $http_range $status';
    access_log {folder}/access.log short;
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
    uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
    {http}
    server {{ listen 127.0.0.1:{port}; root {root}; etag on; {server} }}
}}
"""


_LIMIT_S = 120.0  # of what takes a server no time; it is there for what hangs

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # loopback needs no proxy


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    """Keep a port of this host: bound, so that nobody else is given it, and open for a server that reuses addresses.

    While none does, nobody answers there.
    """
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


def wait_for(address: str, process: subprocess.Popen[Any]) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + _LIMIT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args}: ended with status {process.returncode}")
        try:
            _open(address, timeout=_LIMIT_S).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"{process.args}: did not answer at {address}")


@contextlib.contextmanager
def ending(process: subprocess.Popen[Any]) -> Iterator[None]:
    """End a server after the block."""
    with process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def nginx(root: Path, folder: Path, *, server: str = "", http: str = "") -> Iterator[str]:
    """Serve ``root``; config and logs lie in ``folder``. ``server`` and ``http`` are further lines of the config."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if not program:
        pytest.skip("needs a web server: apt-get install nginx-light")
    folder.mkdir(parents=True, exist_ok=True)
    user = "user root;" if os.getuid() == 0 else ""
    command = [program, "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", str(folder / "error.log")]
    with kept_port() as port:
        text = _NGINX.format(folder=folder, root=root, port=port, server=server, http=http, user=user)
        (folder / "nginx.conf").write_text(text)
        address = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with ending(process):
            wait_for(address, process)
            yield address


def requests_of(folder: Path, count: int = 0, *, heads: bool = False) -> list[str]:
    """Return the GETs that nginx was asked, ``/path bytes=a-b status`` each, once ``count`` of them have been written.

    Those that open an object (its first 16 KiB) are left out of the answer unless ``heads``.
    """
    end = time.monotonic() + _LIMIT_S
    while True:
        lines = (folder / "access.log").read_text().splitlines()
        found = [line.removeprefix("GET ") for line in lines if line.startswith("GET ") and "/ - " not in line]
        if len(found) >= count or time.monotonic() > end:
            return [line for line in found if heads or "bytes=0-16383 " not in line]
        time.sleep(0.02)


@contextlib.contextmanager
def s3_server(*, max_keys: int = 1000) -> Iterator[str]:
    """Run an S3-compatible store in memory; yields its endpoint. ``max_keys`` are listed in one answer at most."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        pytest.skip("needs an S3-compatible server: pip install 'moto[server]'")
    with kept_port() as port:
        address = f"http://127.0.0.1:{port}"
        # It has no access to the network, and its own credentials do not matter.
        process = Program(
            ["-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(MOTO_S3_DEFAULT_MAX_KEYS=str(max_keys)),
        )
        with ending(process):
            wait_for(f"{address}/moto-api/", process)
            yield address


def put(endpoint: str, path: str, body: bytes | None = None) -> None:
    """Store an object at ``bucket/key``, or make a bucket."""
    request = urllib.request.Request(f"{endpoint}/{path}", data=body, method="PUT")
    request.add_header("Content-Type", "application/octet-stream")
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=testing-id/20260101/us-east-1/s3/aws4_request")
    _open(request, timeout=_LIMIT_S).close()


def fault_module() -> ModuleType:
    """Load the misbehaving store."""
    file = SHARED / "cases" / "fault_http.py"
    if not file.is_file():
        pytest.skip(f"needs {file}")
    spec = importlib.util.spec_from_file_location("fault_http", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def fault_server(root: Path) -> Iterator[str]:
    """Run the misbehaving store in a process of its own."""
    with fault_process(root) as (_, address):
        yield address


@contextlib.contextmanager
def fault_process(root: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[Any], str]]:
    """Run the misbehaving store for a test that stops it, at a port that is kept, or at one that it takes itself."""
    fault_module()
    words = [SHARED / "cases" / "fault_http.py", root, str(port)]
    process = Program(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with ending(process):
        address = process.stdout.readline().strip()  # which it says once it listens
        assert address, "the misbehaving store has not begun"
        yield process, address


def asked(address: str, part: str = "") -> list[list[str]]:
    """Return what the misbehaving store was asked: method, path, range."""
    with _open(f"{address}/_log", timeout=_LIMIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return [found for found in map(json.loads, lines) if part in found[1]]


def wait_until_asked(address: str, part: str, count: int) -> None:
    """Wait until the misbehaving store was asked for something so often."""
    end = time.monotonic() + _LIMIT_S
    while len(asked(address, part)) < count:
        assert time.monotonic() < end, asked(address, part)
        time.sleep(0.01)
