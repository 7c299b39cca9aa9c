"""Handing a memory file from one process of a host to others: over a unix socket that has no place in any folder.

The socket's name can be seen by everybody on the host, so it proves nothing. Whoever comes must be of the same user,
and know a secret that only the ranks of the run were told; whoever is not is turned away, and the others waited for.
"""

import contextlib
import errno
import hmac
import os
import secrets
import socket
import struct
import sys
import time
from typing import Self, final

__all__ = ["Line", "Listener"]

_HALF = 32
_PLACE = struct.Struct("=I")
_CREDENTIALS = struct.Struct("=iII")
# Somebody who connects and says nothing must not keep the ranks waiting.
_GREETING_S = 5.0


@final
class Listener:
    """Gives a memory file away. Others may connect as soon as it is made.

    Attributes:
        token: What the others need to know: where it is, and the secret.

    Raises:
        OSError: where there are no such sockets, or they are refused.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, "this system has no abstract unix sockets")
        self.token = secrets.token_hex(_HALF)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.bind(_address(self.token))
            self._socket.listen(1024)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def hand_over(self, descriptor: int, places: set[int], timeout_s: float) -> None:
        """Give a file to some others, in whatever order they come.

        Args:
            descriptor: The file.
            places: Which of the host's ranks have to have it.
            timeout_s: How long they are waited for.

        Raises:
            OSError: if not all of them came.
        """
        missing, deadline = set(places), time.monotonic() + timeout_s
        while missing:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                peer, _ = self._socket.accept()
            except TimeoutError:
                raise OSError(
                    errno.ETIMEDOUT, f"{len(missing)} ranks of this host did not come for the memory in {timeout_s:g} s"
                ) from None
            with peer:
                try:
                    place = self._greet(peer, max(0.001, min(_GREETING_S, deadline - time.monotonic())))
                    if place in missing:
                        socket.send_fds(peer, [b"\0"], [descriptor])
                        missing.discard(place)
                except OSError:
                    continue  # gone again, or a stranger: others are waited for

    def _greet(self, peer: socket.socket, timeout_s: float) -> int | None:
        """Return which rank has come; None for somebody else."""
        if _user(peer) != os.getuid():
            return None
        peer.settimeout(timeout_s)
        message = peer.recv(_HALF + _PLACE.size)
        if len(message) != _HALF + _PLACE.size or not hmac.compare_digest(message[:_HALF], _secret(self.token)):
            return None
        return int(_PLACE.unpack(message[_HALF:])[0])


@final
class Line:
    """A line to the listener, on which a memory file will come. It is there at once, whatever the listener does now.

    Args:
        token: The listener's.
        place: Which of the host's ranks this is.

    Raises:
        OSError: if there is no such listener, or it is another user's.
    """

    def __init__(self, token: str, place: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(_GREETING_S)  # where more have come than the system lets wait
            self._socket.connect(_address(token))
            _require_own(self._socket)
            # Who is turned away before it could speak is told so where it asks for the file, like any other.
            with contextlib.suppress(ConnectionError):
                self._socket.send(_secret(token) + _PLACE.pack(place))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def receive(self, timeout_s: float) -> int:
        """Get the file, and return its descriptor, which is the caller's.

        Args:
            timeout_s: How long it is waited for.

        Raises:
            OSError: if none comes.
        """
        self._socket.settimeout(timeout_s)
        descriptors: list[int] = []
        with contextlib.suppress(ConnectionError):
            _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        if not descriptors:
            raise OSError(errno.ECONNRESET, "the first rank of this host turned this one away, or has ended")
        os.set_inheritable(descriptors[0], False)  # recv_fds of Python 3.11 forgets the flag for it
        return descriptors[0]


def _require_own(line: socket.socket) -> None:
    if _user(line) != os.getuid():
        raise OSError(errno.EPERM, "the socket of the host's ranks belongs to another user")


def _address(token: str) -> str:
    return f"\0flodl_pipe-{token[:_HALF]}"


def _secret(token: str) -> bytes:
    return token[_HALF:].encode("ascii")


def _user(line: socket.socket) -> int:
    return int(_CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])
