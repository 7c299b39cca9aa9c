"""A process that read remote data, or tried to, ends with the status it meant: the client's threads do not abort it.

Whether one does is a matter of microseconds, so each way to end is gone by many processes at once. Without the exit
hook some abort. Few processes go a few of the ways where not everything is tested.

White box: processes look at the requests that the hook still counts as open, and change the policy and the addresses of
objects that are open.
"""

import contextlib
import signal
from subprocess import PIPE

import numpy as np
import pytest

from tests.storage.servers import fault_process, kept_port, wait_until_asked
from tests.support.programs import Program, environment

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
LONG = dataclasses.replace(QUICK, connect_timeout_s=300, stall_timeout_s=300, request_timeout_s=300, deadline_s=900,
                           patience_s=900, opening_patience_s=900)

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
    while thread.is_alive() and not OPEN._flights:
        time.sleep(0.001)

def say():
    print("reading", flush=True)
    sys.stdin.readline()  # begin to end all at the same time
"""

ENDS = {
    "all read": "blobs = opened('ok', LONG); say(); read(blobs)",
    "a refusal": "blobs = opened('s403', QUICK); say()\ntry: read(blobs)\nexcept SourceError: pass",
    "nobody there": "say()\ntry: RemoteBlobs([sys.argv[2]], policy=QUICK)\nexcept SourceError: pass",
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
def processes(number, source, *addresses):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), PIPE)
    shape = environment(NO_PROXY="127.0.0.1")
    words = ["-c", f"{BEGIN}\n{source}", *addresses]
    running = [Program(words, env=shape, text=True, **pipes) for _ in range(number)]
    try:
        yield running
    finally:
        for one in running:
            one.kill()
            one.communicate()


# What the server is asked, for each process, before those that wait for an answer are ended.
ASKED = {"interrupt": ("/hang/", 1), "interrupt among answers": ("/ok/", 20), "server gone": ("/slow/", 1)}
FEW = ("exit among answers", "interrupt")


@pytest.mark.parametrize(
    ("how", "number"),
    [(how, 2) for how in FEW] + [pytest.param(how, 8, marks=pytest.mark.full) for how in ENDS],
)
def test_a_process_ends_with_the_status_it_meant(file, how, number):
    with (
        kept_port() as nobody,
        fault_process(file) as (server, address),
        processes(number, ENDS[how], f"{address}/ok/x.bin", f"http://127.0.0.1:{nobody}/x") as running,
    ):
        for one in running:
            assert one.stdout.readline() == "reading\n", one.communicate()[1]
        if how in ASKED:
            part, times = ASKED[how]
            wait_until_asked(address, part, times * number)
        if how == "server gone":
            server.kill()
        for one in running:
            if "interrupt" in how:
                one.send_signal(signal.SIGINT)
            elif how != "server gone":
                one.stdin.write("\n")
                one.stdin.flush()
        said = [one.communicate(timeout=120) for one in running]
    assert [one.returncode for one in running] == [0] * number, said
    assert {out for out, _ in said} == {"left 0 0\n"}
    allowed = "closed while it was read" if how.startswith("closed") else "about to exit" if "exit" in how else ""
    assert all(not text or (allowed and allowed in text) for _, text in said), said
