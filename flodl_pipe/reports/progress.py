"""Progress of a run: a bar on a terminal, plain lines elsewhere, or nothing.

The bar is drawn on standard error. Log messages that go to the same terminal are sent through it meanwhile, so that
they stand above the bar instead of tearing it.
"""

import contextlib
import logging
import sys
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TextIO, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from flodl_pipe.reports.figures import clock, plural, rate, share, short_rate
from flodl_pipe.reports.metrics import Moment, Recent
from flodl_pipe.reports.tables import is_terminal
from flodl_pipe.units import format_duration

__all__ = ["LINE_EVERY_S", "NoContext", "ProgressView", "progress_view"]

LINE_EVERY_S = 5.0
"""Seconds between two plain lines, at least."""
_REDRAWS_PER_S = 4


class ProgressView(Protocol):
    """Shows how far a run is. A context manager: what it draws is finished when it exits."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, moment: Moment) -> None:
        """Show a moment; called some times a second."""
        ...

    def epoch_done(self, moment: Moment) -> None:
        """Note that an epoch was handed out to its end."""
        ...


def progress_view(
    choice: Literal["auto"] | bool, file: TextIO, *, start: Moment, num_epochs: int, last_step: int | None
) -> ProgressView:
    """Return the view that a config asks for.

    Args:
        choice: ``True``: a bar, whatever ``file`` is; ``False``: nothing; ``"auto"``: a bar if ``file`` is a terminal,
            else a line now and then.
        file: Where to show it, standard error.
        start: Where the run stands when its loop begins.
        num_epochs: Epochs of the whole run.
        last_step: Steps of the whole run when it will be done; None where nobody knows (streams).
    """
    if choice is False:
        return _Silent()
    if choice is True or is_terminal(file):
        return _Bar(file, start, num_epochs, last_step)
    return _Lines(file, start, num_epochs, last_step)


def _left_s(recent: Recent, moment: Moment, last_step: int | None) -> float | None:
    steps_per_s = recent.steps_per_s
    if last_step is None:
        return None
    return (last_step - moment.num_steps) / steps_per_s if steps_per_s else None


class NoContext:
    """A view that has nothing to begin or to finish."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


@final
class _Silent(NoContext):
    def update(self, moment: Moment) -> None:
        pass

    def epoch_done(self, moment: Moment) -> None:
        pass


@final
class _Lines(NoContext):
    """Plain lines: one every few seconds, and one for each epoch."""

    def __init__(self, file: TextIO, start: Moment, num_epochs: int, last_step: int | None) -> None:
        self._file = file
        self._num_epochs = num_epochs
        self._last_step = last_step
        self._recent = Recent(start)
        self._epoch_start = start
        self._last_line_s = start.at_s

    def update(self, moment: Moment) -> None:
        self._recent.add(moment)
        if moment.at_s - self._last_line_s < LINE_EVERY_S:
            return
        recent, last = self._recent, self._last_step
        of, left = "", ""
        if last is not None:
            of = f" of {last:,} ({100 * moment.num_steps // last} %)"
            left = f", {clock(_left_s(recent, moment, last))} left"
        speed = f"{rate(recent.samples_per_s)} samples/s, waiting {share(recent.wait_s, recent.span_s)}"
        self._say(moment, f"step {moment.num_steps:,}{of}, {speed}{left}")

    def epoch_done(self, moment: Moment) -> None:
        begin = self._epoch_start
        took_s = moment.at_s - begin.at_s
        num_samples = moment.num_samples - begin.num_samples
        self._say(
            moment,
            f"done: {plural(moment.num_steps - begin.num_steps, 'step')} in {format_duration(took_s)}, "
            f"{rate(num_samples / took_s if took_s > 0 else 0)} samples/s, "
            f"waiting {share(moment.wait_s - begin.wait_s, took_s)}",
        )
        self._epoch_start = moment

    def _say(self, moment: Moment, text: str) -> None:
        self._file.write(f"epoch {moment.epoch + 1} of {self._num_epochs}: {text}\n")
        self._file.flush()
        self._last_line_s = moment.at_s


@final
class _Bar:
    """One bar over the whole run."""

    def __init__(self, file: TextIO, start: Moment, num_epochs: int, last_step: int | None) -> None:
        self._num_epochs = num_epochs
        self._last_step = last_step
        self._recent = Recent(start)
        # Printing is taken over by the bar only where it would meet it.
        self._shares_terminal = file.isatty() and sys.stdout.isatty()
        self._bar = Progress(
            TextColumn("{task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %" if last_step is not None else "step {task.completed:,}"),
            TextColumn("{task.fields[speed]}", justify="right"),
            TextColumn("{task.fields[wait]}", justify="right"),
            TextColumn("{task.fields[left]}", justify="right"),
            console=Console(file=file, force_terminal=True),
            refresh_per_second=_REDRAWS_PER_S,
            redirect_stdout=self._shares_terminal,
            redirect_stderr=file.isatty(),
            expand=True,
        )
        self._task = self._bar.add_task(
            "", total=last_step, completed=start.num_steps, **self._fields(start, "-", "-", None)
        )
        self._loggers = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._bar.__enter__()
        if self._shares_terminal:
            for handler in logging.getLogger().handlers:
                if type(handler) is logging.StreamHandler and handler.stream.isatty():
                    before = handler.setStream(sys.stdout)
                    self._loggers.callback(handler.setStream, before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loggers.close()
        self._bar.__exit__(kind, error, trace)

    def update(self, moment: Moment) -> None:
        recent = self._recent
        recent.add(moment)
        speed, wait = short_rate(recent.samples_per_s), f"{100 * recent.wait_s / max(recent.span_s, 1e-9):.0f}"
        left_s = _left_s(recent, moment, self._last_step)
        self._bar.update(self._task, completed=moment.num_steps, **self._fields(moment, speed, wait, left_s))

    def epoch_done(self, moment: Moment) -> None:
        self.update(moment)

    def _fields(self, moment: Moment, speed: str, wait: str, left_s: float | None) -> dict[str, Any]:
        return {
            "epoch": f"epoch {moment.epoch + 1}/{self._num_epochs}",
            "speed": f"{speed} samples/s",
            "wait": f"waiting {wait} %",
            "left": f"{clock(left_s)} left" if self._last_step is not None else "",
        }
