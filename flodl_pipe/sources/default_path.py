"""Where a source looks when no path was given."""

from pathlib import Path

from flodl_pipe.errors import SourceError

__all__ = ["default_path"]


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
    if default.exists():
        return str(default)
    if if_missing == "sample":
        return None
    raise SourceError(
        f"source.path is not set and {default} does not exist; set source.path to your data, or "
        "source.if_missing=sample to try it with a small sample"
    )
