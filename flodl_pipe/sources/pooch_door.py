"""The door to pooch, which checks a downloaded file's digest and moves it to its name. Imported when first needed."""

import importlib
import logging
from pathlib import Path

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.download import Transfer

__all__ = ["retrieve"]


def retrieve(url: str, sha256: str, folder: Path, name: str, transfer: Transfer) -> bool:
    """Download a file, unless it is there already, and give it its name if its digest is right.

    Args:
        url: Its address.
        sha256: Its digest.
        folder: Where to, a folder for partial files: what is not the file is replaced.
        name: The name it gets there.
        transfer: Moves the bytes.

    Returns:
        Whether the digest was right; if not, the bytes are gone.

    Raises:
        Refused: if the address does not help.
        SourceError: if pooch is not installed.
    """
    try:
        pooch = importlib.import_module("pooch")
    except ImportError as error:
        raise SourceError(
            f"job=fetch needs the package pooch ({error}); install it with: pip install 'flodl-pipe[fetch]'"
        ) from error
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)  # it would tell of every temporary name
    try:
        pooch.retrieve(url, known_hash=f"sha256:{sha256}", fname=name, path=folder, downloader=transfer)
    except ValueError as error:
        if "does not match" not in str(error):
            raise
        right = False
    else:
        right = True
    finally:
        logger.setLevel(level)
    transfer.discard()
    return right
