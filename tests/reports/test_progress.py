"""A bar on a terminal, plain lines elsewhere, nothing when it is not wanted."""

import io
import logging
import re
import sys

import pytest

from flodl_pipe.reports.metrics import Moment
from flodl_pipe.reports.progress import LINE_EVERY_S, progress_view


class Stream(io.StringIO):
    def __init__(self, terminal=False):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def moment(at_s, num_steps, epoch=0, wait_s=0.0):
    return Moment(at_s, epoch, num_steps, num_steps * 32, wait_s)


def view(choice, out, *, num_epochs=2, last_step=200):
    return progress_view(choice, out, start=moment(0, 0), num_epochs=num_epochs, last_step=last_step)


def play(choice, out):
    """Two epochs of 100 steps at 10 steps a second, told four times a second."""
    with view(choice, out) as shown:
        for quarter in range(1, 81):
            now = moment(quarter / 4, int(quarter * 2.5), epoch=(quarter - 1) // 40, wait_s=quarter / 40)
            shown.update(now)
            if quarter in (40, 80):
                shown.epoch_done(now)


def test_lines_come_now_and_then_and_at_the_end_of_an_epoch():
    out = Stream()
    play("auto", out)
    assert LINE_EVERY_S == 5
    assert out.getvalue().splitlines() == [
        "epoch 1 of 2: step 50 of 200 (25 %), 320 samples/s, waiting 10.0 %, 0:15 left",
        "epoch 1 of 2: step 100 of 200 (50 %), 320 samples/s, waiting 10.0 %, 0:10 left",
        "epoch 1 of 2: done: 100 steps in 10.00 s, 320 samples/s, waiting 10.0 %",
        "epoch 2 of 2: step 150 of 200 (75 %), 320 samples/s, waiting 10.0 %, 0:05 left",
        "epoch 2 of 2: step 200 of 200 (100 %), 320 samples/s, waiting 10.0 %, 0:00 left",
        "epoch 2 of 2: done: 100 steps in 10.00 s, 320 samples/s, waiting 10.0 %",
    ]


def test_no_progress_is_no_output():
    out = Stream(terminal=True)
    play(False, out)
    assert out.getvalue() == ""


@pytest.mark.parametrize(("choice", "terminal"), [("auto", True), (True, True), (True, False)])
def test_a_bar_is_drawn_on_a_terminal_and_where_it_is_asked_for(choice, terminal):
    out = Stream(terminal)
    play(choice, out)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "\r" in text or "\x1b" in out.getvalue()
    last = [line for line in re.split(r"[\r\n]", text) if "epoch" in line][-1]
    assert re.fullmatch(r"epoch 2/2 ━+ +100 % 320 samples/s waiting 10 % 0:00 left", last.rstrip())


def test_the_bar_fits_80_columns_with_the_longest_figures():
    out = Stream(terminal=True)
    with view("auto", out, num_epochs=1000, last_step=9_999_999) as shown:
        shown.update(Moment(1, 999, 99, 99_999, 1.0))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    last = [line for line in re.split(r"[\r\n]", text) if "epoch" in line][-1].rstrip()
    assert len(last) <= 80
    assert last.startswith("epoch 1000/1000 ")
    assert last.endswith("99,999 samples/s waiting 100 % 28:03:29 left")
    assert "…" not in last


def test_an_interrupted_bar_leaves_the_terminal_in_order():
    out = Stream(terminal=True)
    with pytest.raises(KeyboardInterrupt), view("auto", out) as shown:
        shown.update(moment(1, 10))
        raise KeyboardInterrupt
    assert out.getvalue().rfind("\x1b[?25h") > out.getvalue().rfind("\x1b[?25l")  # the cursor is back


def test_log_messages_stand_above_the_bar_and_handlers_are_put_back(monkeypatch):
    out, err = Stream(terminal=True), Stream(terminal=True)
    monkeypatch.setattr(sys, "stdout", out)
    handler = logging.StreamHandler(out)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [handler])
    with view("auto", err) as shown:
        shown.update(moment(1, 10))
        logging.getLogger("flodl_pipe").warning("something to know")
        assert "something to know" in err.getvalue()
    assert handler.stream is out
    assert sys.stdout is out


def test_log_messages_into_a_file_stay_there(monkeypatch):
    out, err = Stream(terminal=False), Stream(terminal=True)
    monkeypatch.setattr(sys, "stdout", out)
    handler = logging.StreamHandler(out)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    with view("auto", err) as shown:
        shown.update(moment(1, 10))
        logging.getLogger("flodl_pipe").warning("something to know")
        sys.stdout.write("a result\n")
    assert out.getvalue() == "something to know\na result\n"
    assert "something" not in err.getvalue()
