"""Remote shards against local ones, in one run: does latency hide behind the loop's own work?

A web server in a process of its own answers each request 20 ms late, from memory, over loopback. First a batch is read
alone, from both places; then a loop runs over both whose steps take as long as the remote batch's read did. The rate
over the network must reach 85 % of the local one. ``sleep`` is a loop that waits for a device, ``python`` one that
computes in pure Python and so keeps the interpreter to itself.

    PYTHONPATH=. python tests/benchmarks/remote.py [--latency-ms 20] [--batch 32] [--seq-len 1024]
"""

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from timing import busy, check, machine, median

from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.tokens import TokenShards

SHARDS, TOKENS = 4, 10_000_000


class Server(asyncio.Protocol):
    """Just enough HTTP/1.1: HEAD and GET of one range, kept alive, each answer late by the same time."""

    files, delay_s = {}, 0.0

    def connection_made(self, transport):
        self.transport, self.text = transport, b""

    def data_received(self, data):
        self.text += data
        while b"\r\n\r\n" in self.text:
            request, self.text = self.text.split(b"\r\n\r\n", 1)
            asyncio.get_running_loop().call_later(self.delay_s, self.answer, request)

    def answer(self, request):
        method, path, _ = request.split(b" ", 2)
        body = self.files[path.decode()]
        head = f'ETag: "{len(body)}"\r\nAccept-Ranges: bytes\r\n'
        found = re.search(rb"range: bytes=(\d+)-(\d+)", request, re.IGNORECASE)
        if method == b"HEAD":
            self.transport.write(f"HTTP/1.1 200 OK\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode())
            return
        first, last = int(found[1]), min(int(found[2]), len(body) - 1)
        head += f"Content-Range: bytes {first}-{last}/{len(body)}\r\nContent-Length: {last - first + 1}\r\n\r\n"
        self.transport.write(f"HTTP/1.1 206 Partial Content\r\n{head}".encode() + body[first : last + 1])


async def serve(folder, delay_s):
    Server.files = {f"/{file.name}": file.read_bytes() for file in Path(folder).iterdir()}
    Server.delay_s = delay_s
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def read_s(source, batch, repeats=9):
    """Return the time of one batch's read, alone: median of some."""
    times, out = [], source.spec.empty(batch)
    rng = np.random.default_rng(0)
    for _ in range(repeats):
        picks = rng.integers(0, len(source), batch)
        began = time.perf_counter()
        source.read_into(picks, np.arange(batch), out)
        times.append(time.perf_counter() - began)
    return median(times)[0]


def loop_rate(loader, work, step_s, seconds):
    """Return steps per second of a loop that works ``step_s`` a step, and the share of time it waited."""
    iterator, waited, steps = iter(loader), 0.0, 0
    for _ in range(5):
        next(iterator)
        work(step_s)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        asked = time.perf_counter()
        next(iterator)
        waited += time.perf_counter() - asked
        steps += 1
        work(step_s)
    took = time.perf_counter() - began
    return steps / took, waited / took


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--latency-ms", type=float, default=20)
    arguments.add_argument("--batch", type=int, default=32)
    arguments.add_argument("--seq-len", type=int, default=1024)
    arguments.add_argument("--seconds", type=float, default=3)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--serve", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve, options.latency_ms / 1e3))
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        for number in range(SHARDS):
            ids = np.random.default_rng(number).integers(0, 50_000, TOKENS, dtype=np.uint16)
            ids.tofile(Path(folder) / f"shard-{number}.bin")
        command = [sys.executable, __file__, "--serve", folder, "--latency-ms", str(options.latency_ms)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                port = int(server.stdout.readline())
                return measure(folder, f"http://127.0.0.1:{port}", options)
            finally:
                server.kill()


def measure(folder, address, options):
    names = [f"shard-{number}.bin" for number in range(SHARDS)]
    places = {"local": [str(Path(folder) / name) for name in names], "remote": [f"{address}/{name}" for name in names]}
    open_s, alone, sources = {}, {}, {}
    for where, paths in places.items():
        began = time.perf_counter()
        sources[where] = TokenShards.open(paths, seq_len=options.seq_len, file_format="raw", dtype="uint16")
        open_s[where] = time.perf_counter() - began
        alone[where] = read_s(sources[where], options.batch)
        began = time.perf_counter()
        sources[where].fingerprint()
        print(
            f"{where}: opened in {open_s[where] * 1e3:.1f} ms, fingerprint in "
            f"{(time.perf_counter() - began) * 1e3:.1f} ms, a batch alone in {alone[where] * 1e3:.2f} ms"
        )
    rates = {}
    for _ in range(options.repeats):
        for name, work in (("sleep", time.sleep), ("python", busy)):
            for where, source in sources.items():
                with Loader(source, batch_size=options.batch, mode="streaming") as loader:
                    found = loop_rate(loader, work, alone["remote"], options.seconds)
                rates.setdefault((name, where), []).append(found)
    print("\nsteps/s, share of time waited        median     min     max   waited")
    for (name, where), found in rates.items():
        middle, low, high = median(rate for rate, _ in found)
        waited = median(wait for _, wait in found)[0]
        print(f"  {name:8s} {where:20s} {middle:12.1f} {low:7.1f} {high:7.1f} {waited:7.1%}")
    print("targets")
    met = [
        check(
            f"remote / local, {name}",
            median(r[0] / o[0] for r, o in zip(rates[name, "remote"], rates[name, "local"], strict=True))[0],
            0.85,
        )
        for name in ("sleep", "python")
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
