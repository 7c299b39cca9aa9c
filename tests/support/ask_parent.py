"""What stands for the interpreter where a launcher starts ranks: it asks the warm parent for each, and is its stand-in.

A launcher (torchrun takes the variable PYTHON_EXEC) starts this as ``python -u -m MODULE ...``. The rank is forked from
the warm parent with this process's descriptors, folder and variables; signals sent here are handed on to it, its exit
status becomes this one's, and if this process is killed, so is the rank.

It imports what begins fastest, and nothing of the tests or the package.
"""

import json
import os
import resource
import signal
import socket
import struct
import sys

NUMBER = struct.Struct("=q")


def main(address: str, words: list[str]) -> None:
    """Ask for a program, and end as it does."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(address)
    wanted = {"argv": words, "cwd": os.getcwd(), "env": dict(os.environ), "new_session": False}
    text = json.dumps(wanted).encode()
    handed_on = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
    signal.pthread_sigmask(signal.SIG_BLOCK, handed_on)  # none is lost before there is somebody to hand it on to
    socket.send_fds(line, [NUMBER.pack(len(text))], [0, 1, 2])
    line.sendall(text)
    pid = NUMBER.unpack(line.recv(NUMBER.size, socket.MSG_WAITALL))[0]
    for number in handed_on:
        signal.signal(number, lambda got, _: os.kill(pid, got))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
    status = NUMBER.unpack(line.recv(NUMBER.size, socket.MSG_WAITALL))[0]
    if status >= 0:
        os._exit(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
