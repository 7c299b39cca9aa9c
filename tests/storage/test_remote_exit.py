"""A process that read remote data, or tried to, ends with the status it meant: the client's threads do not abort it.

Whether one does is a matter of microseconds, so each way to end is gone by many processes at once. Without the exit
hook some abort.
"""

import contextlib
import signal
import time
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

from tests.storage.servers import fault_process, free_port
from tests.support.programs import Program, environment

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 8

BEGIN = """
from tests.support.last_words import LAST
LAST.append(lambda: print("left", len(OPEN._flights), len(OPEN._requests)))
import dataclasses, signal, sys, threading, time
import numpy as np
from flodl_pipe.errors import SourceError
from flodl_pipe.storage.remote import RemoteBlobs
from flodl_pipe.storage.remote_patience import RemotePolicy
from flodl_pipe.storage.remote_exit import OPEN

QUICK = RemotePolicy(connect_timeout_s=0.5, stall_timeout_s=0.4, patience_s=0.3, opening_patience_s=0.2, deadline_s=5,
                     first_backoff_s=0.05, gap_bytes=0)
LONG = dataclasses.replace(QUICK, stall_timeout_s=30, request_timeout_s=30, deadline_s=30, opening_patience_s=30)

def read(blobs, rows=6):
    out, rows = np.empty((rows, 100), np.uint8), np.arange(rows)
    blobs.read_rows(rows * 0, rows * 6000, 100, rows, out)

def opened(fault, policy):
    blobs = RemoteBlobs([sys.argv[1]], policy=LONG)
    blobs.close()
    blobs._policy = policy
    address, = blobs._addresses
    blobs._addresses = dataclasses.replace(address, key=address.key.replace("ok/", fault + "/")),
    return blobs

def behind(blobs):
    def go():
        try:
            read(blobs)
        except SourceError as error:
            print(error, file=sys.stderr)
    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    time.sleep(0.05)

def say():
    print("reading", flush=True)
    sys.stdin.readline()  # begin to end all at the same time
"""

ENDS = {
    "all read": "blobs = opened('ok', QUICK); say(); read(blobs)",
    "a refusal": "blobs = opened('s403', QUICK); say()\ntry: read(blobs)\nexcept SourceError: pass",
    "nobody there": "say()\ntry: RemoteBlobs(['http://127.0.0.1:9/x'], policy=QUICK)\nexcept SourceError: pass",
    "no answer": "blobs = opened('hang', QUICK); say()\ntry: read(blobs)\nexcept SourceError: pass",
    "closed by another thread": "blobs = opened('hang', LONG); behind(blobs); say(); blobs.close()",
    "exit": "blobs = opened('hang', LONG); behind(blobs); say(); sys.exit(0)",
    "exit among answers": "blobs = opened('ok', LONG); say(); [behind(blobs) for _ in '1234']; read(blobs)",
    "interrupt": (
        "blobs = opened('hang', LONG)\ntry: print('reading', flush=True); read(blobs)\nexcept KeyboardInterrupt: pass"
    ),
    "interrupt among answers": (
        "blobs = opened('ok', LONG)\ntry:\n    print('reading', flush=True)\n    while True: blobs.check_unchanged()\n"
        "except KeyboardInterrupt: pass"
    ),
    "server gone": (
        "blobs = opened('slow', dataclasses.replace(QUICK, gap_bytes=10_000))\n"
        "try: print('reading', flush=True); read(blobs)\nexcept SourceError: pass"
    ),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    np.zeros(40_000, np.uint8).tofile(folder / "x.bin")
    return folder


@contextlib.contextmanager
def processes(source, address):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), PIPE)
    shape = environment(NO_PROXY="127.0.0.1")
    words = ["-c", f"{BEGIN}\n{source}", address]
    running = [Program(words, env=shape, text=True, **pipes) for _ in range(PROCESSES)]
    try:
        yield running
    finally:
        for one in running:
            one.kill()
            one.communicate()


@pytest.mark.parametrize("how", ENDS)
def test_a_process_ends_with_the_status_it_meant(file, how):
    port = free_port()
    address = f"http://127.0.0.1:{port}/ok/x.bin"
    with fault_process(file, port) as server, processes(ENDS[how], address) as running:
        for one in running:
            assert one.stdout.readline() == "reading\n", one.communicate()[1]
        if "interrupt" in how or how == "server gone":
            time.sleep(0.3)
        if how == "server gone":
            server.kill()
        for one in running:
            if "interrupt" in how:
                one.send_signal(signal.SIGINT)
            elif how != "server gone":
                one.stdin.write("\n")
                one.stdin.flush()
        said = [one.communicate(timeout=20) for one in running]
    assert [one.returncode for one in running] == [0] * PROCESSES, said
    assert {out for out, _ in said} == {"left 0 0\n"}
    allowed = "closed while it was read" if how.startswith("closed") else "about to exit" if "exit" in how else ""
    assert all(not text or (allowed and allowed in text) for _, text in said), said
