"""What a download shows of itself on standard error."""

import io

import pytest

from flodl_pipe.jobs import fetch_progress
from flodl_pipe.jobs.fetch_progress import fetch_view


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(fetch_progress.time, "perf_counter", lambda: now[0])
    return now


def test_lines_come_now_and_then_and_at_the_end_of_a_file(clock):
    file = io.StringIO()
    with fetch_view("auto", file) as view:
        for done in (0, 1 << 20, 2 << 20, 3 << 20, 4 << 20):
            view.show("x.gz", done, 4 << 20)
            clock[0] += 2
        view.show("y.gz", 0, 10)
    assert file.getvalue() == (
        "x.gz: 3.00 MiB of 4.00 MiB (75 %), 512 KiB/s, 0:02 left\n"
        "x.gz: 4.00 MiB of 4.00 MiB (100 %), 512 KiB/s, 0:00 left\n"
    )


def test_speed_leaves_out_what_an_earlier_try_brought(clock):
    file = io.StringIO()
    with fetch_view("auto", file) as view:
        view.show("x.gz", 3 << 20, 4 << 20)
        clock[0] += 2
        view.show("x.gz", 4 << 20, 4 << 20)
    assert "(100 %), 512 KiB/s" in file.getvalue()


def test_a_terminal_gets_a_bar_a_file(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    file = Terminal()
    with fetch_view("auto", file) as view:
        view.show("x.gz", 0, 10)
        view.show("x.gz", 10, 10)
        view.show("y.gz", 5, 10)
    assert "x.gz" in file.getvalue()
    assert "y.gz" in file.getvalue()
    assert "100 %" in file.getvalue()


@pytest.mark.parametrize(("choice", "file"), [(False, Terminal()), (True, io.StringIO()), ("auto", Terminal())])
def test_nothing_is_drawn_without_a_download(choice, file):
    with fetch_view(choice, file) as view:
        if choice is False:
            view.show("x.gz", 1, 2)
    assert file.getvalue() == ""
