"""Tables of names and values, for a terminal and for a file alike.

Values wrap and are never cut. Text that is not for a terminal has no control characters and no trailing blanks; names
that cannot be printed (a file may be called anything) are shown with escapes.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO, final

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Grid", "Section", "is_terminal", "print_sections"]

# Long lines are hard to read even where there is room for them.
_MAX_WIDTH = 100


@final
@dataclass(frozen=True)
class Section:
    """A titled list of names and values.

    Attributes:
        title: Heading.
        rows: Pairs of name and value; an empty name continues the row above.
    """

    title: str
    rows: tuple[tuple[str, str], ...]


@final
@dataclass(frozen=True)
class Grid:
    """A titled table of columns: the first one to the left, numbers to the right.

    Attributes:
        title: Heading.
        header: Name of each column; may have several lines.
        rows: The lines, a text for each column.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def is_terminal(file: TextIO) -> bool:
    """Return whether a stream is a terminal that understands more than text."""
    return file.isatty() and not Console(file=file, force_terminal=True).is_dumb_terminal


def print_sections(sections: Sequence[Section | Grid], file: TextIO) -> None:
    """Print sections one below the other, with their values in one column; grids have columns of their own."""
    terminal = is_terminal(file)
    # A stream that cannot write every character gets escapes for what it lacks.
    encoding = file.encoding or "utf-8"
    paper = Console(file=file, force_terminal=terminal)
    width = min(paper.width, _MAX_WIDTH)
    lists = [section for section in sections if isinstance(section, Section)]
    label_width = max((len(name) for section in lists for name, _ in section.rows), default=0)
    if not terminal:
        paper = Console(file=io.StringIO(), force_terminal=False, color_system=None, width=width)
    with paper.capture() as captured:
        for section in sections:
            paper.print(Text(f"\n{section.title}", style="bold"))
            if isinstance(section, Grid):
                paper.print(_columns(section, encoding), width=width)
            else:
                paper.print(_grid(section, label_width, encoding), width=width)
    text = captured.get()
    if not terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    file.write(text)
    file.flush()


def _grid(section: Section, label_width: int, encoding: str) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(width=label_width + 2, no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    for name, value in section.rows:
        grid.add_row(Text(f"  {name}", style="cyan"), Text(_printable(value, encoding)))
    return grid


def _columns(grid: Grid, encoding: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="cyan")
    for number, name in enumerate(grid.header):
        text = Text(f"  {name}" if not number else name)
        table.add_column(text, justify="right" if number else "left", vertical="bottom", no_wrap=True)
    for row in grid.rows:
        table.add_row(*(Text(_printable(f"  {cell}" if not at else cell, encoding)) for at, cell in enumerate(row)))
    return table


def _printable(text: str, encoding: str) -> str:
    safe = "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape", "surrogatepass").decode("ascii")
        for char in text
    )
    return safe.encode(encoding, "backslashreplace").decode(encoding)
