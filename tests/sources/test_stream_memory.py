"""Text that leaves hardly any tokens: memory stays what is said, and every place in it can be resumed.

White box: sizes of portions are made small where many places are resumed, so that short gaps run over many of them.
"""

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.sources import stream_lines, stream_tokens, stream_unpack
from flodl_pipe.sources.text_stream import TextStream
from tests.contract.streams import read_lane, require_equal, take

MB = 1_000_000


def no_ids(text: str) -> list[int]:
    """A tokenizer that takes what matters only."""
    return [7] * len(text) if "e" in text else []


def one_id(text: str) -> list[int]:
    return [1]


# As much of each as would not fit if every line, or document, left a trace. What takes long is for the full suite.
CASES: list[Any] = [
    ("a.txt", b"hello\n" + b"\n" * 30 * MB + b"the end, a text", 8, None),
    ("a.txt.gz", b"hello\n" + b"\n" * 30 * MB + b"the end, a text", 8, None),
    ("a.txt", b"hello\n" + b"\r\n" * 15 * MB + b"the end, a text", 8, None),
    ("a.txt", b"a\n\n" * MB, 4, None),
    ("a.txt", b"a\n\n" * (MB // 2), 1, None),
    ("a.jsonl", b'{"text": "hello"}\n' + b'{"text":""}\n' * (MB // 16) + b'{"text": "the end"}', 8, None),
]
LONG_CASES: list[Any] = [
    ("a.txt", b"a\r\n" * 8 * MB, 500_000, None),
    ("a.txt", b"\r\n\na" * 8 * MB, 2 * MB, None),
    ("a.jsonl", b'{"text": "hello"}\n' + b" \n" * (MB // 4) + b'{"text": "the end"}', 8, None),
    ("a.jsonl.gz", b'{"text": "hello"}\n' + b"\n" * (MB // 2) + b'{"text": "the end"}', 8, None),
    ("a.jsonl", b'{"text":"a"}\n' * (MB // 10), 150_000, None),
    ("a.txt", b"hello\n" + b"ab\n" * (MB // 8) + b"the end", 8, no_ids),
    ("a.txt", b"a\n" * (MB // 8), 50_000, one_id),
]
CASES += [pytest.param(*case, marks=pytest.mark.full) for case in LONG_CASES]


@pytest.mark.parametrize(("name", "content", "seq_len", "encode"), CASES, ids=range(len(CASES)))
def test_memory_is_what_the_stream_says(tmp_path: Path, name: str, content: bytes, seq_len: int, encode: Any) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content, 1) if name.endswith("gz") else content)
    tracemalloc.start()
    try:
        stream = TextStream.open(str(path), seq_len=seq_len, lanes=1, shuffle_buffer=1, encode=encode)
        opened = tracemalloc.get_traced_memory()[1]
        reader = stream.open_lane(0, seed=0, epoch=0, shuffle=False)
        most = max(4096 // seq_len, 1)
        out = stream.spec.empty(most)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        num_rows = 0
        while count := reader.read_into(out, 0, most):
            num_rows += count
            reader.mark()
        peak = tracemalloc.get_traced_memory()[1] - held
    finally:
        tracemalloc.stop()
    assert num_rows
    assert peak <= stream.buffer_bytes
    assert opened <= 2 * stream.buffer_bytes


GAPS = (0, 1, 70_000, 2, 300_000, 3)
WORDS = ("one", "two e", "three", "e", "five", "sixe")


def gapped(kind: str, gap: bytes, ending: bytes, less: int) -> bytes:
    lines = [b'{"text": "%s"}' % word.encode() if kind == "jsonl" else word.encode() for word in WORDS]
    return b"".join(line + ending + gap * -(-count // less) for line, count in zip(lines, GAPS, strict=True))


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize(
    ("kind", "gap", "ending", "encode"),
    [
        ("txt", b"\n", b"\n", None),
        ("txt", b"\r\n", b"\r\n", None),
        ("jsonl", b"\n", b"\n", None),
        ("jsonl", b'{"text":""}\n', b"\r\n", None),
        ("txt", b"x\n", b"\n", no_ids),
    ],
)
def test_every_place_around_long_gaps_resumes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    packing: str,
    kind: str,
    gap: bytes,
    ending: bytes,
    encode: Any,
) -> None:
    if each_line_is_looked_at := kind == "jsonl" or encode is not None:  # slower: a gap of fewer lines, and portions
        for module, name in (
            (stream_unpack, "READ_BYTES"),
            (stream_unpack, "CHUNK_BYTES"),
            (stream_tokens, "_FOLDED_BYTES"),
            (stream_lines, "_GROUP_LINES"),
        ):
            monkeypatch.setattr(module, name, getattr(module, name) // 16)
    content = gapped(kind, gap, ending, 160 if each_line_is_looked_at else 1)
    (tmp_path / f"a.{kind}{packing}").write_bytes(gzip.compress(content, 1) if packing else content)
    texts = [no_ids(word) if encode else [*word.encode(), 256] for word in WORDS]
    tokens = np.array([token for text in texts for token in text])
    for seq_len in (2, 7):
        stream = TextStream.open(str(tmp_path), seq_len=seq_len, tail="keep", encode=encode)
        resumes_everywhere(stream, seq_len, tokens)


def resumes_everywhere(stream: TextStream, seq_len: int, tokens: Any) -> None:
    rows = read_lane(stream, 0, shuffle=False)
    lengths = rows["num_tokens"].tolist()
    found = [row[:length].tolist() for row, length in zip(rows["tokens"], lengths, strict=True)]
    assert found == [tokens[at : at + seq_len + 1].tolist() for at in range(0, len(tokens) - 1, seq_len)]
    reader = stream.open_lane(0, seed=0, epoch=0, shuffle=False)
    for row in range(len(found) + 1):
        rest = read_lane(stream, 0, shuffle=False, mark=reader.mark())
        require_equal(rest, {name: value[row:] for name, value in rows.items()})
        take(reader, stream, 1)
