"""Tables wrap, never cut, and stay plain text where there is no terminal."""

import io
import re

import pytest

from flodl_pipe.reports.tables import Section, is_terminal, print_sections


class Stream(io.TextIOWrapper):
    def __init__(self, terminal=False, encoding="utf-8"):
        super().__init__(io.BytesIO(), encoding=encoding, newline="")
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    def text(self):
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


SECTIONS = (
    Section("First", (("path", "/" + "folder/" * 30 + "file.bin"), ("why", "because " * 30 + "of that"))),
    Section("Second", (("a longer name", "[bold]as it is[/bold] [1]"), ("empty", ""))),
)


def test_long_values_wrap_and_nothing_is_lost():
    out = Stream()
    print_sections(SECTIONS, out)
    text = out.text()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    squeezed = re.sub(r"\s+", "", text)
    for section in SECTIONS:
        assert section.title in text
        for name, value in section.rows:
            assert re.sub(r"\s+", "", name + value) in squeezed


def test_plain_text_has_no_control_characters_even_when_colour_is_forced(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = Stream()
    print_sections(SECTIONS, out)
    assert not re.search(r"[^\n\x20-\x7e]", out.text())
    assert not re.search(r" \n", out.text())


def test_a_terminal_gets_the_same_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    plain, terminal = Stream(), Stream(terminal=True)
    print_sections(SECTIONS, plain)
    print_sections(SECTIONS, terminal)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.text())
    assert terminal.text() != shown
    assert [line.rstrip() for line in shown.splitlines()] == plain.text().splitlines()


def test_a_very_wide_terminal_keeps_lines_readable(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    out = Stream()
    print_sections(SECTIONS, out)
    assert 80 < max(map(len, out.text().splitlines())) <= 100


def test_values_of_any_bytes_can_be_printed():
    odd = b"caf\xe9 \x1b[31mred\n".decode("utf-8", "surrogateescape")
    out = Stream(encoding="ascii")
    print_sections((Section("Files", (("file", odd + "ü"),)),), out)
    assert r"caf\udce9 \x1b[31mred" in out.text()
    assert r"\xfc" in out.text()


def test_a_dumb_terminal_is_no_terminal(monkeypatch):
    assert is_terminal(Stream(terminal=True))
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(Stream(terminal=True))
    assert not is_terminal(Stream())
