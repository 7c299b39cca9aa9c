"""The table of epochs: hit rates and bytes, one line for those that are alike."""

from collections.abc import Callable

from flodl_pipe.reports.tables import Grid
from flodl_pipe.staging.expect import EpochWork
from flodl_pipe.units import format_bytes

__all__ = ["MOST_EPOCHS", "epoch_grid"]

MOST_EPOCHS = 64
"""Epochs that are worked out; tiers are full long before, and later epochs are like the last one."""
_MOST_LINES = 8


def epoch_grid(work: list[EpochWork], num_epochs: int, *, on_device: bool, title: str = "Epochs") -> Grid:
    """Return the table.

    Args:
        work: The first epochs, in order.
        num_epochs: Epochs of the run.
        on_device: Whether batches are copied to a device.
        title: Heading.
    """
    columns = [column for column in _COLUMNS if column[2](work, on_device)]
    header = ("epoch", *(name for name, _, _ in columns))
    lines: list[tuple[int, int, tuple[str, ...]]] = []
    for one in work:
        cells = tuple(text(one) for _, text, _ in columns)
        if lines and lines[-1][2] == cells:
            lines[-1] = (lines[-1][0], one.epoch, cells)
        else:
            lines.append((one.epoch, one.epoch, cells))
    if num_epochs > len(work):
        lines[-1] = (lines[-1][0], num_epochs - 1, lines[-1][2])
    if len(lines) > _MOST_LINES:
        blank = tuple("..." for _ in columns)
        lines = [*lines[: _MOST_LINES - 2], (-1, -1, blank), lines[-1]]
    rows = tuple((_label(first, last), *cells) for first, last, cells in lines)
    return Grid(title, header, rows)


def _label(first: int, last: int) -> str:
    if first < 0:
        return "..."
    return str(first + 1) if first == last else f"{first + 1}-{last + 1}"


def _rate(value: float) -> str:
    return f"{100 * value:.1f}"


def _size(value: float) -> str:
    return format_bytes(value) if value >= 0.5 else "0"


_Columns = tuple[tuple[str, Callable[[EpochWork], str], Callable[[list[EpochWork], bool], bool]], ...]

_COLUMNS: _Columns = (
    ("pool\n%", lambda one: _rate(one.pool_hit_rate), lambda _, on_device: on_device),
    ("RAM\n%", lambda one: _rate(one.ram_hit_rate), lambda work, _: any(one.ram_rows > 0 for one in work)),
    ("disk\n%", lambda one: _rate(one.disk_hit_rate), lambda work, _: any(one.disk_rows > 0 for one in work)),
    ("source\nread", lambda one: _size(one.source_bytes + one.fill_bytes), lambda *_: True),
    ("of that\nfills", lambda one: _size(one.fill_bytes), lambda work, _: any(one.fill_bytes > 0 for one in work)),
    ("disk\nread", lambda one: _size(one.disk_read_bytes), lambda work, _: any(one.disk_rows > 0 for one in work)),
    (
        "disk\nwritten",
        lambda one: _size(one.disk_written_bytes),
        lambda work, _: any(one.disk_written_bytes > 0 for one in work),
    ),
    ("to the\ndevice", lambda one: _size(one.link_bytes), lambda _, on_device: on_device),
)
