"""Progress of a download, as that of a run is shown: a bar on a terminal, plain lines elsewhere, or nothing.

It goes to standard error, and appears with the first byte, so a fetch that finds everything in place shows none.
"""

import contextlib
import logging
import sys
import time
from types import TracebackType
from typing import Literal, Protocol, Self, TextIO, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from flodl_pipe.reports.figures import clock
from flodl_pipe.reports.progress import LINE_EVERY_S, NoContext
from flodl_pipe.reports.tables import is_terminal
from flodl_pipe.units import format_bytes

__all__ = ["FetchView", "fetch_view"]

_REDRAWS_PER_S = 4


class FetchView(Protocol):
    """Shows how far a download is. A context manager: what it draws is finished when it exits."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, name: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` bytes of a file are there."""
        ...


def fetch_view(choice: Literal["auto"] | bool, file: TextIO) -> FetchView:
    """Return the view that a config asks for.

    Args:
        choice: ``True``: a bar, whatever ``file`` is; ``False``: nothing; ``"auto"``: a bar if ``file`` is a terminal,
            else a line now and then.
        file: Where to show it, standard error.
    """
    if choice is False:
        return _Silent()
    return _Bar(file) if choice is True or is_terminal(file) else _Lines(file)


@final
class _Silent(NoContext):
    def show(self, name: str, done: int, total: int) -> None:
        pass


@final
class _Pace:
    """Speed over one file, counted from where this process began."""

    def __init__(self, name: str, done: int) -> None:
        self.name = name
        self._start = done
        self._since = time.perf_counter()

    def per_s(self, done: int) -> float:
        """Return bytes per second."""
        return (done - self._start) / max(time.perf_counter() - self._since, 1e-9)

    def left(self, done: int, total: int) -> str:
        """Return the time left, as on a clock."""
        speed = self.per_s(done)
        return clock((total - done) / speed if speed > 0 else None)


@final
class _Lines(NoContext):
    """A plain line every few seconds, and one when a file is complete."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._pace: _Pace | None = None
        self._last_s = time.perf_counter()

    def show(self, name: str, done: int, total: int) -> None:
        if self._pace is None or self._pace.name != name:
            self._pace = _Pace(name, done)
        now = time.perf_counter()
        if now - self._last_s < LINE_EVERY_S and done < total:
            return
        self._last_s = now
        percent = 100 * done // total if total else 100
        self._file.write(
            f"{name}: {format_bytes(done)} of {format_bytes(total)} ({percent} %), "
            f"{format_bytes(self._pace.per_s(done))}/s, {self._pace.left(done, total)} left\n"
        )
        self._file.flush()


@final
class _Bar:
    """One bar a file."""

    def __init__(self, file: TextIO) -> None:
        # Printing is taken over by the bar only where it would meet it.
        self._shares_terminal = file.isatty() and sys.stdout.isatty()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[speed]}", justify="right"),
            TextColumn("{task.fields[left]}", justify="right"),
            console=Console(file=file, force_terminal=True),
            refresh_per_second=_REDRAWS_PER_S,
            redirect_stdout=self._shares_terminal,
            redirect_stderr=file.isatty(),
            expand=True,
        )
        self._pace: _Pace | None = None
        self._task: TaskID | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _begin(self) -> None:
        self._stack.enter_context(self._bar)
        if self._shares_terminal:
            for handler in logging.getLogger().handlers:
                if type(handler) is logging.StreamHandler and handler.stream.isatty():
                    before = handler.setStream(sys.stdout)
                    self._stack.callback(handler.setStream, before)

    def show(self, name: str, done: int, total: int) -> None:
        if self._pace is None:
            self._begin()
        if self._pace is None or self._pace.name != name:
            self._pace = _Pace(name, done)
            self._task = self._bar.add_task(name, total=total, speed="-", left="-:--")
        assert self._task is not None
        speed = f"{format_bytes(self._pace.per_s(done))}/s"
        self._bar.update(self._task, completed=done, speed=speed, left=self._pace.left(done, total))
