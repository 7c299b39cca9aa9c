"""The files of a text stream: found, told apart, and read as runs of tokens."""

import logging
from collections.abc import Iterator, Sequence
from typing import final

from flodl_pipe.errors import OF_HOST, SourceError
from flodl_pipe.sources.protocol import Fact
from flodl_pipe.sources.stream_encode import Encoder
from flodl_pipe.sources.stream_estimate import Estimate, estimate_tokens
from flodl_pipe.sources.stream_formats import TextFormat, suffixes_of, tell_formats
from flodl_pipe.sources.stream_tokens import Run, byte_runs, document_runs
from flodl_pipe.sources.stream_unpack import read_content
from flodl_pipe.sources.stream_windows import Place
from flodl_pipe.sources.stream_zstd import require_zstd
from flodl_pipe.sources.token_files import named
from flodl_pipe.storage.listing import list_files
from flodl_pipe.storage.open import open_blobs
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_count

__all__ = ["TextFiles", "find_files"]

_logger = logging.getLogger("flodl_pipe")


def find_files(path: str | Sequence[str], file_format: str) -> tuple[Blobs, tuple[TextFormat, ...], tuple[Fact, ...]]:
    """Find the files, look at their first bytes, and say once what is left out.

    Args:
        path: A file, a folder, a glob pattern, or a list of them; see :mod:`flodl_pipe.storage.listing`.
        file_format: See :mod:`flodl_pipe.sources.stream_formats`.

    Returns:
        The files that hold anything, what each is, and facts about the rest.

    Raises:
        ConfigError: if there is no such format.
        SourceError: if files are missing, unreadable, all empty, or not what their names say.
    """
    listing = list_files(path, suffixes=suffixes_of(file_format))
    notes: tuple[Fact, ...] = ()
    if listing.foreign:
        notes = (Fact("not text files", named(listing.foreign)),)
        _logger.info("left out beside the text files: %s", named(listing.foreign))
    blobs = open_blobs(listing.files)
    formats = tell_formats(blobs, file_format)
    full = [blob for blob, size in enumerate(blobs.sizes.tolist()) if size]
    if len(full) == len(formats):
        return blobs, formats, notes
    empty = [name for name, size in zip(blobs.names, blobs.sizes.tolist(), strict=True) if not size]
    if not full:
        raise SourceError(f"{named(empty)}: empty, 0 bytes: there is no document; correct source.path")
    _logger.warning("empty, 0 bytes, so left out: %s", named(empty), extra=OF_HOST)
    notes = (*notes, Fact("empty files", named(empty)))
    return open_blobs([listing.files[blob] for blob in full]), tuple(formats[blob] for blob in full), notes


@final
class TextFiles:
    """Files as runs of tokens.

    Args:
        blobs: The files.
        formats: What each is.
        text_key: Key of the text in a JSON object.
        encoder: Tokenizer; None: bytes.

    Raises:
        SourceError: if there are zstd files and no library for them.
    """

    def __init__(self, blobs: Blobs, formats: Sequence[TextFormat], text_key: str, encoder: Encoder | None) -> None:
        self.blobs, self.formats, self.text_key = blobs, tuple(formats), text_key
        self.is_encoded = encoder is not None
        self._encoder = encoder
        self._said: set[int] = set()
        if any(kind.packing == "zst" for kind in self.formats):
            require_zstd()

    def __len__(self) -> int:
        return len(self.formats)

    def has_places(self, file: int) -> bool:
        """Return whether every token of a file has a byte of its own; see :mod:`flodl_pipe.sources.stream_tokens`."""
        return self._encoder is None and not self.formats[file].json

    def runs(self, files: Sequence[int], place: Place) -> Iterator[tuple[int, Run]]:
        """Yield the tokens of files, one file after the other, each run with the number of its file in ``files``.

        Args:
            files: Which files.
            place: Where to begin, but for its ``skip``.
        """
        for number in range(place.file, len(files)):
            offset, line = (place.offset, place.line) if number == place.file else (0, 1)
            num_tokens = 0
            for run in self._runs(files[number], offset, line, self._encoder):
                num_tokens += len(run.tokens)
                yield number, run
            if not num_tokens and not offset and files[number] not in self._said:
                self._said.add(files[number])
                _logger.warning("%s: holds no document, only empty lines", self.blobs.names[files[number]])

    def require_document(self) -> None:
        """Look for a first document.

        Raises:
            SourceError: if no file holds one, or what comes before the first one is damaged.
        """
        if not any(next(self._runs(file, 0, 1, None), None) for file in range(len(self))):
            raise SourceError(f"{named(self.blobs.names)}: no document, only empty lines; correct source.path")

    def where(self, file: int, place: Place) -> str:
        """Return file, line and byte of a document, as messages begin; lines are counted now where nobody has.

        Args:
            file: Which file.
            place: Where the document begins in it.

        Raises:
            SourceError: if the file cannot be read.
        """
        line = place.line
        if not line:
            line = 1
            for at, chunk in read_content(self.blobs, file, self.formats[file].packing, 0):
                line += chunk.count(b"\n", 0, max(place.offset - at, 0))
                if at + len(chunk) >= place.offset:
                    break
        return f"{self.blobs.names[file]}, line {format_count(line)} (byte {format_count(place.offset)})"

    def estimate(self) -> Estimate | None:
        """Return about how many documents and tokens all files hold; None where sizes do not tell.

        Raises:
            SourceError: if a file changed, cannot be read, or is packed and damaged at its begin.
        """
        found = estimate_tokens(self.blobs, self.formats, self.text_key)
        return found._replace(num_tokens=None) if found is not None and self._encoder else found

    def most_tokens(self) -> int | None:
        """Return a number of tokens that all files together cannot exceed; None where sizes do not tell."""
        if self._encoder or any(kind.packing for kind in self.formats):
            return None
        return int(self.blobs.sizes.sum()) + len(self)  # a last line without an end has an end of document

    def _runs(self, file: int, offset: int, line: int, encoder: Encoder | None) -> Iterator[Run]:
        kind, name = self.formats[file], self.blobs.names[file]
        chunks = read_content(self.blobs, file, kind.packing, offset)
        if encoder is None and not kind.json:
            return byte_runs(chunks, name, offset)
        return document_runs(chunks, name, line, text_key=self.text_key if kind.json else None, encoder=encoder)
