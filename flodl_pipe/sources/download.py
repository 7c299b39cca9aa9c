"""One file from one address, going on where an earlier try stopped.

::

    train.gz.part          the first bytes of the file
    train.gz.part.json     the address they came from and the validator it gave (ETag, or Last-Modified)

A later try asks the same address for the rest only, on condition that the validator still holds (``Range`` with
``If-Range``); a server that answers with the whole file, or with another validator, starts it over. Another address
cannot know the validator: there the published size must agree. In the end the digest decides, so bytes that do not
belong together never get through.

pooch checks the digest and moves the file to its name; it cannot resume, so the transfer is ours.
"""

import contextlib
import http.client
import json
import logging
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from flodl_pipe.errors import SourceError
from flodl_pipe.units import format_bytes, format_count

__all__ = ["Refused", "Transfer", "no_room"]

_log = logging.getLogger("flodl_pipe")

_CHUNK_BYTES = 1 << 18
_TIMEOUT_S = 30.0
# Tries without a new byte before an address is given up.
_TRIES = 4
_PAUSE_S = 1.0
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Refused(Exception):  # noqa: N818 - an answer of a server, which the caller turns into an error
    """An address does not have the file, or could not be made to give it."""


class _Cut(Exception):  # noqa: N818 - asks for another try
    """The connection ended early or was not to be had."""


def no_room(path: Path, error: OSError) -> SourceError:
    """Return the error for a file that cannot be written."""
    return SourceError(
        f"{path} cannot be written ({error.strerror}); make room, or set data_dir to a folder with room that you may "
        "write to. What is there so far is kept, and the same command goes on from it"
    )


@dataclass(frozen=True)
class _Origin:
    """Where the first bytes came from."""

    url: str
    validator: str | None


@final
class Transfer:
    """The download of a file into a partial file.

    Args:
        part: The partial file.
        num_bytes: Published size of the whole.
        progress: Told the bytes there so far.

    Attributes:
        resumed: Whether the bytes there came in several tries, or were there before.
    """

    def __init__(self, part: Path, num_bytes: int, progress: Callable[[int], None]) -> None:
        self._part = part
        self._note = part.with_name(f"{part.name}.json")
        self._num_bytes = num_bytes
        self._progress = progress
        self.resumed = False

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        """Download, and put the complete file at a path: what pooch calls a downloader.

        The partial file stays as a second name of it, so that nothing is lost if the process is ended before the
        digest is known. :meth:`discard` it then.
        """
        self.run(url)
        output = Path(output_file)
        output.unlink(missing_ok=True)
        try:
            output.hardlink_to(self._part)
        except OSError:  # a file system without second names
            self._part.replace(output)

    def discard(self) -> None:
        """Forget what is there."""
        self._part.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def run(self, url: str) -> None:
        """Bring the partial file to its published size.

        Raises:
            Refused: if this address does not help.
            SourceError: if the file cannot be written.
        """
        self.resumed = self._have() == self._num_bytes
        failures = 0
        while (have := self._have()) != self._num_bytes:
            if have > self._num_bytes:
                self.discard()
            try:
                self._try(url)
            except _Cut as cut:
                failures = 0 if self._have() > have else failures + 1
                if failures == _TRIES:
                    raise Refused(f"{cut} ({_TRIES} tries)") from cut
                _log.warning(
                    "%s: %s after %s of %s; trying again", url, cut, *map(format_bytes, (self._have(), self._num_bytes))
                )
                time.sleep(_PAUSE_S * failures)

    def _have(self) -> int:
        try:
            return self._part.stat().st_size
        except FileNotFoundError:
            return 0

    def _try(self, url: str) -> None:
        have = self._have()
        origin = self._origin() if have else None
        headers = {"Accept-Encoding": "identity", "User-Agent": "flodl_pipe"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if origin is not None and origin.url == url and origin.validator is not None:
                headers["If-Range"] = origin.validator
        # The address is of the registry or of job.mirror, both http or https.
        request = urllib.request.Request(url, headers=headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
                start = self._start(url, response, have, origin)
                if start is None:
                    self.discard()
                    return
                self._receive(response, start)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
                _log.warning("%s: cannot go on at byte %s; starting over", url, format_count(have))
                self.discard()
            elif error.code in (408, 425, 429) or error.code >= 500:
                raise _Cut(f"{error.code} {error.reason}") from error
            else:
                raise Refused(f"{error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise _Cut(str(getattr(error, "reason", None) or error) or type(error).__name__) from error

    def _start(self, url: str, response: http.client.HTTPResponse, have: int, origin: _Origin | None) -> int | None:
        """Return the byte a response begins with, None to ask anew for the whole; note where it comes from."""
        headers = response.headers
        entity = headers.get("ETag")
        strong = entity if entity and not entity.startswith("W/") else None
        validator = strong or headers.get("Last-Modified")
        start = 0
        if response.status == http.client.PARTIAL_CONTENT:
            span = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "").strip())
            if span is None or int(span[1]) != have:
                _log.warning("%s: answered with another range than asked for; starting over", url)
                return None
            self._require_size(span[3])
            known = origin.validator if origin is not None and origin.url == url else None
            if known is not None and validator is not None and known != validator:
                _log.warning("%s: has changed since the first bytes were read; starting over", url)
                return None
            start = have
            self.resumed = True
        else:
            self.resumed = False
            self._require_size(headers.get("Content-Length"))
            if have:
                _log.warning("%s: has changed, or does not go on at a byte; starting over", url)
        if start == 0 or origin is None or origin.url != url:
            self._write_note(_Origin(url, validator))
        return start

    def _require_size(self, stated: str | None) -> None:
        if stated is not None and stated.isdigit() and int(stated) != self._num_bytes:
            raise Refused(
                f"has {format_count(int(stated))} bytes under this name, published are {format_count(self._num_bytes)}"
            )

    def _receive(self, response: http.client.HTTPResponse, start: int) -> None:
        """Append a body from byte ``start`` on."""
        try:
            file = self._part.open("r+b" if start else "wb")
        except OSError as error:
            raise no_room(self._part, error) from error
        with contextlib.closing(file):
            file.seek(start)
            have = start
            self._progress(have)
            # What came is written at once. One byte more than there should be is enough to know.
            while chunk := response.read1(min(_CHUNK_BYTES, self._num_bytes + 1 - have)):
                have += len(chunk)
                if have > self._num_bytes:
                    self.discard()
                    raise Refused(f"gives more than the {format_count(self._num_bytes)} bytes published")
                try:
                    file.write(chunk)
                    file.flush()
                except OSError as error:
                    raise no_room(self._part, error) from error
                self._progress(have)
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise no_room(self._part, error) from error
        if have < self._num_bytes:
            raise _Cut("the connection ended")

    def _origin(self) -> _Origin | None:
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            url, validator = note["url"], note["validator"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return _Origin(url, validator) if isinstance(url, str) and isinstance(validator, str | None) else None

    def _write_note(self, origin: _Origin) -> None:
        try:
            self._note.write_text(json.dumps({"url": origin.url, "validator": origin.validator}), encoding="utf-8")
        except OSError as error:
            raise no_room(self._note, error) from error
