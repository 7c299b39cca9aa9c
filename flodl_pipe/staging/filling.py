"""Filling ahead: a tier reads its range from the source, chunk by chunk, in a thread of the loader's."""

import logging
from collections.abc import Callable

__all__ = ["FILL_CHUNK_BYTES", "fill_ahead"]

_log = logging.getLogger("flodl_pipe")

FILL_CHUNK_BYTES = 4 << 20
"""Large enough for sequential disk speed, small enough that a batch waiting for the same disk goes soon."""


def fill_ahead(
    name: str, load: Callable[[int], bool], *, stop: Callable[[], bool], chunk_bytes: int, yields: Callable[[], None]
) -> None:
    """Load chunks until there are no more, ``stop`` says so, or one cannot be read.

    Args:
        name: The tier's.
        load: Reads one chunk of about as many bytes; returns whether there may be more.
        stop: Asked before each chunk.
        chunk_bytes: Bytes read at a time.
        yields: Called after each chunk, for readers to go first.
    """
    try:
        while not stop() and load(chunk_bytes):
            yields()
    except Exception as error:  # noqa: BLE001 - the reader that meets it again raises it in the loop
        _log.info("the %s is not filled ahead any further: reading ahead failed (%s)", name, error)
