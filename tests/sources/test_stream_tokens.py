"""Lines as tokens, compared with a plain reading, for any text cut anywhere and resumed anywhere.

White box: the bytes that are taken at once are made few.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import SourceError
from flodl_pipe.sources import stream_tokens
from flodl_pipe.sources.stream_encode import Encoder
from flodl_pipe.sources.stream_tokens import Run, byte_runs, count_line_tokens, document_runs

TEXT = st.text("ab\n\n\r\r\ufeff\u00e9\u6f22\U0001f600", max_size=40)
CUTS = st.lists(st.integers(1, 6), min_size=1, max_size=8)


def chunks(data: bytes, cuts: list[int], offset: int = 0) -> Iterator[tuple[int, bytes]]:
    place, turn = offset, 0
    while place < len(data):
        end = place + cuts[turn % len(cuts)]
        yield place, data[place:end]
        place, turn = end, turn + 1


def plain(text: str) -> list[int]:
    """Read lines in the plainest way."""
    data = text.removeprefix("\ufeff").encode()
    lines = data.replace(b"\r\n", b"\n").split(b"\n")
    return [token for line in lines if line for token in (*line, 256)]


def joined(runs: Iterator[Run]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the tokens, and for each the byte that it hangs on, the tokens behind that, and the line."""
    tokens, places = [], []
    for run in runs:
        anchors = np.searchsorted(run.first, np.arange(len(run.tokens)), side="right") - 1
        tokens += run.tokens.tolist()
        places += [
            (int(run.offset[anchor]), number - int(run.first[anchor]), int(run.line[anchor]))
            for number, anchor in enumerate(anchors.tolist())
        ]
    return tokens, places


@settings(max_examples=200, deadline=None)
@given(text=TEXT, cuts=CUTS, again=CUTS)
def test_bytes_of_lines_and_their_places(text: str, cuts: list[int], again: list[int]) -> None:
    data = text.encode()
    tokens, places = joined(byte_runs(chunks(data, cuts), "f", 0))
    assert tokens == plain(text)
    for number, (offset, behind, _) in enumerate(places):
        place = offset + behind
        rest = joined(byte_runs(chunks(data, again, place), "f", place))[0]
        assert rest == tokens[number:]


@settings(max_examples=150, deadline=None)
@given(text=st.text("ab\n\n\r\r\u00e9", max_size=40), size=st.integers(1, 8))
def test_bytes_that_leave_no_token_leave_no_anchor(text: str, size: int) -> None:
    data = text.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_tokens, "_FOLDED_BYTES", size)
        runs = list(byte_runs(iter([(0, data)] * bool(data)), "f", 0))
        assert joined(iter(runs))[0] == plain(text)
        for run in runs:
            assert 0 < len(run.first) <= len(run.tokens) + 1
            assert len(set(run.first.tolist()[1:])) == len(run.first) - 1
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        if "\r" not in text and "\n\n" not in text and not text.startswith("\n"):
            assert sum(count_line_tokens(piece, in_line=True)[0] for piece in pieces) == len(data)
            assert sum(count_line_tokens(piece, in_line=True)[1] for piece in pieces) == data.count(b"\n")


def ids(text: str) -> list[int]:
    return [*map(ord, text), 7]


@settings(max_examples=200, deadline=None)
@given(text=TEXT, cuts=CUTS, again=CUTS)
def test_documents_of_lines_and_their_places(text: str, cuts: list[int], again: list[int]) -> None:
    data = text.encode()
    encoder = Encoder(ids, "uint32", 2**32)
    options: Any = {"text_key": None, "encoder": encoder}
    tokens, places = joined(document_runs(chunks(data, cuts), "f", 1, **options))
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    assert tokens == [token for line in lines if line for token in ids(line)]
    for number, (offset, behind, line) in enumerate(places):
        rest, after = joined(document_runs(chunks(data, again, offset), "f", line, **options))
        assert rest[behind:] == tokens[number:]
        assert after[behind:] == places[number:]


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=12), cuts=CUTS)
def test_what_is_not_utf8_is_named_by_its_first_wrong_byte(data: bytes, cuts: list[int]) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        with pytest.raises(SourceError, match=rf"f, byte {error.start}: 0x{data[error.start]:02x} is not valid UTF-8"):
            joined(byte_runs(chunks(data, cuts), "f", 0))
    else:
        joined(byte_runs(chunks(data, cuts), "f", 0))
