"""Where a source looks when no path was given."""

import logging
from pathlib import Path

from flodl_pipe.errors import OF_HOST, SourceError

__all__ = ["UNFINISHED", "default_path"]

_logger = logging.getLogger("flodl_pipe")

UNFINISHED = ".fetch"
"""Folder in a data set's folder where its download goes on until it is complete."""


def default_path(data_dir: str, kind: str, if_missing: str) -> str | None:
    """Return ``<data_dir>/<kind>`` if it exists; None where sample data is to be used instead.

    Args:
        data_dir: Folder of the user's data sets.
        kind: Name of the data set's folder.
        if_missing: ``sample`` or ``error``.

    Raises:
        SourceError: if it does not exist and ``if_missing`` is ``error``.
    """
    default = Path(data_dir, kind).absolute()
    if default.is_dir() and [path.name for path in default.iterdir()] == [UNFINISHED]:
        raise SourceError(
            f"{default} holds nothing but an unfinished download; run job=fetch again to complete it, or remove the "
            "folder"
        )
    if default.exists():
        return str(default)
    if if_missing == "sample":
        # Every time, and not only when the sample is made: a mistyped data_dir must not go unnoticed.
        _logger.warning(
            "%s does not exist: a small sample is used instead (source.if_missing=sample)", default, extra=OF_HOST
        )
        return None
    raise SourceError(
        f"source.path is not set and {default} does not exist; set source.path to your data, or "
        "source.if_missing=sample to try it with a small sample"
    )
