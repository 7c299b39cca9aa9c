"""Documents as rows: every line of any text is one row, whole, whatever the packing, the portions and the place.

White box: sizes of portions are made small, so that a few lines are cut anywhere.
"""

import gzip
import json
import logging
import re
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.errors import ConfigError, LoaderError, ResumeError, SourceError
from flodl_pipe.keyed.permute import permutation
from flodl_pipe.sources import stream_documents, stream_lines, stream_tokens, stream_unpack
from flodl_pipe.sources.text_stream import TextStream
from tests.contract.streams import StreamContract, read_lane, require_equal, take

W = 200
DOCUMENTS = [
    ["plain words", "zw\u00f6lf Boxk\u00e4mpfer jagen Viktor quer", "\u6f22\u5b57\u4eee\u540d\u4ea4\u3058\u308a", "x"],
    ["a longer document " * 9, "\U0001f600 smile " * 5, " leading and trailing blanks "],
    [f"number {n} of many short ones" for n in range(12)],
    ["one\rreturn inside", "tab\tinside", "end" * 30],
    [f"{n}" for n in range(20)],
]
TINY = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "tinyshakespeare_input.txt"


def in_bytes(text: str) -> list[int]:
    return [*text.encode(), 256]


def words(text: str) -> list[int]:
    """A tokenizer whose ids have no end, and one of which is what ends a document of bytes."""
    return [256, 70_000, *map(ord, text[:50])]


def lines(documents: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in documents).encode()


def messy_lines(documents: Sequence[str]) -> bytes:
    return ("\ufeff\n\r\n" + "\r\n\n\r\n".join(documents)).encode()


def jsonl(documents: Sequence[str]) -> bytes:
    return "\n \n".join(json.dumps({"id": 1, "text": text}) for text in documents).encode()


def pack(data: bytes) -> bytes:
    """Gzip in many members."""
    return b"".join(gzip.compress(data[at : at + 50], mtime=0) for at in range(0, len(data), 50))


WHOLE, CUT = "whole", "5 bytes at a time"


@pytest.fixture(params=[pytest.param(WHOLE, marks=pytest.mark.full), CUT])
def portions(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == CUT:
        monkeypatch.setattr(stream_unpack, "READ_BYTES", 13)
        monkeypatch.setattr(stream_unpack, "CHUNK_BYTES", 5)
        monkeypatch.setattr(stream_unpack, "_GZIP_INPUT", 7)
        monkeypatch.setattr(stream_tokens, "_FOLDED_BYTES", 3)
        monkeypatch.setattr(stream_lines, "_GROUP_LINES", 2)


class DocumentContract(StreamContract):
    encode: Any = staticmethod(in_bytes)
    options: ClassVar[dict[str, Any]] = {}
    files: ClassVar[list[tuple[Any, str, Any]]]

    @pytest.fixture(autouse=True)
    def _in_portions(self, portions: None) -> None:
        pass

    # Files are dealt to other lanes each epoch, but a row never hangs on its neighbours.
    row_order_only = True

    def make_stream(self, folder: Path) -> TextStream:
        for number, documents in enumerate(DOCUMENTS):
            render, ending, packing = self.files[number % len(self.files)]
            (folder / f"part-{number}{ending}").write_bytes(packing(render(documents)))
        options = {"rows": "documents", "max_length": W, "lanes": 2, "shuffle_buffer": 14, **self.options}
        return TextStream.open(str(folder), **options)

    def expected(self, stream: Any, lane: int, *, seed: int, epoch: int, shuffle: bool) -> dict[str, Any]:
        order = list(range(len(DOCUMENTS)))
        if shuffle:
            order = permutation(len(order), 0x7E47, seed, epoch).at(np.array(order)).tolist()
        found = [self.encode(text) for file in order[lane::2] for text in DOCUMENTS[file]]
        tokens = np.array([ids + [0] * (W - len(ids)) for ids in found], dtype=stream.spec.fields[0].dtype)
        return {"tokens": tokens, "num_tokens": np.array([len(ids) for ids in found])}


@pytest.mark.full
class TestLines(DocumentContract):
    files: ClassVar[list[tuple[Any, str, Any]]] = [(lines, ".txt", bytes), (messy_lines, ".txt", bytes)]


class TestPacked(DocumentContract):
    files: ClassVar[list[tuple[Any, str, Any]]] = [(messy_lines, ".txt.gz", pack), (jsonl, ".jsonl.gz", pack)]


@pytest.mark.full
class TestJson(DocumentContract):
    files: ClassVar[list[tuple[Any, str, Any]]] = [(jsonl, ".jsonl", bytes)]


@pytest.mark.full
class TestTokenizer(DocumentContract):
    encode = staticmethod(words)
    options: ClassVar[dict[str, Any]] = {"encode": words}
    files: ClassVar[list[tuple[Any, str, Any]]] = [(messy_lines, ".txt", bytes), (jsonl, ".jsonl.gz", pack)]


def put(folder: Path, name: str, data: bytes) -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def open_documents(path: Path, **options: Any) -> TextStream:
    return TextStream.open(str(path), **{"rows": "documents", "max_length": W, **options})


def documents_of(stream: TextStream, lane: int = 0, **which: Any) -> list[list[int]]:
    """Return the tokens of each row of a lane as they are delivered."""
    ids = stream.deliver_rows(read_lane(stream, lane, **{"shuffle": False, "portion": 50, **which}))["input_ids"]
    assert isinstance(ids, Ragged)
    return [ids.row(row).tolist() for row in range(len(ids))]


@pytest.mark.skipif(not TINY.exists(), reason=f"{TINY} is not there")
@pytest.mark.parametrize("ending", [pytest.param("", marks=pytest.mark.full), ".gz"])
def test_rows_of_a_real_text_are_its_lines(tmp_path: Path, ending: str) -> None:
    data = TINY.read_bytes()
    path = put(tmp_path, f"a.txt{ending}", gzip.compress(data, 1) if ending else data)
    wanted = [[*line, 256] for line in data.split(b"\n") if line]
    stream = open_documents(path, max_length=max(map(len, wanted)), shuffle_buffer=4096)
    assert documents_of(stream, portion=4096) == wanted
    assert sorted(documents_of(stream, portion=4096, shuffle=True)) == sorted(wanted)
    assert stream.count_lane(0, seed=0, epoch=0, shuffle=True) == len(wanted)
    assert stream.num_samples_estimate == pytest.approx(len(wanted), rel=0.05)


TEXT = st.text("ab\n\n\r\ufeff\u00e9\u6f22\U0001f600", max_size=40)


@settings(max_examples=150, deadline=None)
@given(text=TEXT.filter(lambda text: text.strip("\n\r\ufeff")), size=st.integers(1, 9), encoded=st.booleans())
def test_documents_are_the_lines_of_any_text_cut_anywhere(
    tmp_path_factory: Any, text: str, size: int, encoded: bool
) -> None:
    path = put(tmp_path_factory.mktemp("text"), "a.txt", text.encode())
    kept = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    if not encoded and text.endswith("\r"):  # at the end of a file, bytes keep a return that ends no line
        kept[-1] += "\r"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_unpack, "CHUNK_BYTES", size)
        patch.setattr(stream_unpack, "READ_BYTES", size)
        patch.setattr(stream_tokens, "_FOLDED_BYTES", max(size // 2, 1))
        stream = open_documents(path, encode=words if encoded else None)
        rows = read_lane(stream, 0, shuffle=False)
        wanted = [(words if encoded else in_bytes)(line) for line in kept if line]
        assert documents_of(stream) == wanted
        reader = stream.open_lane(0, seed=0, epoch=0, shuffle=False)
        marks = []
        for row in range(len(wanted) + 1):
            marks.append(reader.mark())
            rest = read_lane(stream, 0, shuffle=False, mark=marks[-1])
            require_equal(rest, {name: value[row:] for name, value in rows.items()})
            take(reader, stream, 1)
    # Where portions were cut leaves no trace in a mark.
    reader = open_documents(path, encode=words if encoded else None).open_lane(0, seed=0, epoch=0, shuffle=False)
    for mark in marks:
        assert reader.mark() == mark
        reader.skip(1)


def test_documents_joined_are_what_windows_are_cut_from(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", jsonl([text for documents in DOCUMENTS for text in documents]))
    windows = read_lane(TextStream.open(str(path), seq_len=1, tail="keep"), 0, shuffle=False)["tokens"]
    joined = [token for document in documents_of(open_documents(path)) for token in document]
    assert joined == [*windows[:1, 0].tolist(), *windows[:, 1].tolist()]


@pytest.mark.parametrize(("name", "render"), [("a.txt", lines), ("a.txt.gz", lines), ("a.jsonl", jsonl)])
def test_a_longer_document_is_an_error_that_names_it(portions: None, tmp_path: Path, name: str, render: Any) -> None:
    data = render(["fits", "f" * 9, "x" * 10, "after"])
    path = put(tmp_path, name, pack(data) if name.endswith("gz") else data)
    line, offset = (5, data.index(b"x" * 10) - 19) if name == "a.jsonl" else (3, 15)
    stream = open_documents(path, max_length=10)
    says = (
        rf"^{re.escape(str(path))}, line {line} \(byte {offset}\): the document has 11 tokens, and a row takes "
        r"source\.max_length = 10; set source\.max_length=11 or more, leave the document out, or set "
        r"source\.rows=windows"
    )
    for shuffle in (True, False):
        reader = stream.open_lane(0, seed=0, epoch=0, shuffle=shuffle)
        for _ in range(2):
            with pytest.raises(SourceError, match=says):
                reader.read_into(stream.spec.empty(4), 0, 4)
        with pytest.raises(SourceError, match=says):
            stream.count_lane(0, seed=0, epoch=0, shuffle=shuffle)
    assert len(documents_of(open_documents(path, max_length=11))) == 4


def test_the_documents_before_a_long_one_come_first_and_can_be_resumed_from(portions: None, tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", lines(["one", "two", "far too long", "four"]))
    stream = open_documents(path, max_length=4)
    reader = stream.open_lane(0, seed=0, epoch=0, shuffle=False)
    assert take(reader, stream, 2)["num_tokens"].tolist() == [4, 4]
    mark = reader.mark()
    for again in (reader, stream.open_lane(0, seed=0, epoch=0, shuffle=False, mark=mark)):
        with pytest.raises(SourceError, match=r"line 3 \(byte 8\): the document has 13 tokens"):
            take(again, stream, 1)


def test_the_line_is_right_far_into_a_file_and_after_a_resumption(tmp_path: Path) -> None:
    many = [f"{n}" for n in range(200_000)]
    path = put(tmp_path, "a.txt", lines([*many, "x" * W]))
    stream = open_documents(path, max_length=W)
    where = rf"line 200,001 \(byte {len(lines(many)):,}\): the document has 201 tokens"
    with pytest.raises(SourceError, match=where):
        stream.count_lane(0, seed=0, epoch=0, shuffle=False)
    reader = stream.open_lane(0, seed=0, epoch=0, shuffle=False)
    assert reader.skip(150_000) == 150_000
    with pytest.raises(SourceError, match=where):
        stream.open_lane(0, seed=0, epoch=0, shuffle=False, mark=reader.mark()).skip(60_000)


def test_a_file_without_line_ends_is_not_read_for_ever_nor_held(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(stream_documents, "MAX_COUNTED", 3_000_000)
    path = put(tmp_path, "a.txt", b"short\n" + b"x" * 20_000_000)
    stream = open_documents(path)
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match=r"line 2 \(byte 6\): the document has more than 3,\d\d\d,\d\d\d tokens"):
            stream.count_lane(0, seed=0, epoch=0, shuffle=False)
        assert tracemalloc.get_traced_memory()[1] <= stream.buffer_bytes
    finally:
        tracemalloc.stop()


def test_a_row_may_be_longer_than_any_portion(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", b"x" * 1_000_000 + b"\nshort\n" + b"y" * 1_000_000)
    stream = open_documents(path, max_length=1_000_001, shuffle_buffer=1)
    reader = stream.open_lane(0, seed=0, epoch=0, shuffle=False)
    found = take(reader, stream, 3)
    assert found["num_tokens"].tolist() == [1_000_001, 6, 1_000_001]
    assert (found["tokens"][0, :-1] == ord("x")).all()
    assert (found["tokens"][2, :-1] == ord("y")).all()
    assert (found["tokens"][1, 6:] == 0).all()


@pytest.mark.parametrize(
    ("content", "encode", "max_length"),
    [
        (b"a\n" * 2_000_000, None, 2),
        pytest.param(b"a\r\n\n" * 1_000_000, None, 64, marks=pytest.mark.full),
        (b"some words in a line\n" * 100_000, None, 21),
        (b"x" * 3_000_000 + b"\n" + b"y" * 3_000_000, None, 3_000_001),
        pytest.param(b"a\n" * 100_000, words, 3, marks=pytest.mark.full),
    ],
    ids=range(5),
)
def test_memory_is_what_the_stream_says(tmp_path: Path, content: bytes, encode: Any, max_length: int) -> None:
    path = put(tmp_path, "a.txt", content)
    tracemalloc.start()
    try:
        stream = open_documents(path, max_length=max_length, shuffle_buffer=1, encode=encode)
        reader = stream.open_lane(0, seed=0, epoch=0, shuffle=False)
        most = max(4096 // max_length, 1)
        out = stream.spec.empty(most)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        while reader.read_into(out, 0, most):
            reader.mark()
        peak = tracemalloc.get_traced_memory()[1] - held
    finally:
        tracemalloc.stop()
    assert peak <= stream.buffer_bytes


def test_a_mark_that_is_none_between_documents_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", b"text\nmore\n")
    stream = open_documents(path)
    for mark, says in (
        ("0.5.0.0", "no place between two documents"),
        ("1.0.0.0", "no place between two documents"),
        ("0.5.4.0", "behind a document of 4 tokens, and it has 5"),
        ("0.10.5.0", "behind a document of 5 tokens, and it has 1"),
        ("1.0.5.0", "behind a document of 5 tokens, and the lane ends before"),
        ("0.5.5", "no place in a text stream"),
        ("2.0.1.0", "which has 1"),
    ):
        with pytest.raises(ResumeError, match=says):
            read_lane(stream, 0, shuffle=False, mark=mark)


def test_a_document_without_ids_is_left_out(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", b"one\nnone\ntwo\n")
    stream = open_documents(path, encode=lambda text: [] if text == "none" else [len(text)])
    assert documents_of(stream) == [[3], [3]]


def test_kinds_of_rows_have_other_fingerprints(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", b"text\nmore\n")
    documents, windows = open_documents(path, max_length=5), TextStream.open(str(path), seq_len=4, tail="keep")
    assert documents.spec == windows.spec  # so the spec alone would not tell them apart
    found = {open_documents(path, max_length=n).fingerprint().digest for n in (4, 5)}
    assert len(found | {windows.fingerprint().digest}) == 3
    assert "documents of at most 5 tokens" in documents.fingerprint().summary


def test_the_estimate_counts_documents(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", b"some words\n\n" * 30 + b"no end")
    put(tmp_path, "b.jsonl.gz", gzip.compress(jsonl(["some words", "", "more"] * 10)))
    for encode in (None, words):
        stream = open_documents(tmp_path, encode=encode)
        assert stream.num_samples_estimate == 31 + 20
        assert {fact.name: fact.value for fact in stream.facts()}["documents"].startswith("about 51 an epoch, counted")
    assert TextStream.open(str(tmp_path), seq_len=2, encode=words).num_samples_estimate is None


def test_plan_tells_what_rows_are(tmp_path: Path) -> None:
    facts = {fact.name: fact.value for fact in open_documents(put(tmp_path, "a.txt", b"text\n")).facts()}
    assert facts["longest document"] == "200 tokens; a longer one is an error"
    assert facts["lanes"] == "1, blocks of 1,024 documents when shuffled"
    assert not {"windows", "tail tokens in no window"} & set(facts)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rows": "lines"}, r"source\.rows: must be windows or documents, got 'lines'"),
        ({"max_length": None}, r"source\.max_length: must be set where rows are documents, got null"),
        ({"max_length": 0}, r"source\.max_length: must be at least 1, got 0"),
        ({"seq_len": 4}, r"source\.seq_len: must be null where rows are documents, got 4; max_length says"),
        ({"tail": "keep"}, r"source\.tail: must be drop where rows are documents, got 'keep'"),
        ({"rows": "windows"}, r"source\.seq_len: must be set where rows are windows, got null"),
        ({"rows": "windows", "seq_len": 4}, r"source\.max_length: must be null where rows are windows, got 200"),
    ],
)
def test_an_argument_that_cannot_be_is_refused(tmp_path: Path, options: Any, says: str) -> None:
    path = put(tmp_path, "a.txt", b"text\n")
    with pytest.raises(ConfigError, match=says):
        open_documents(path, **options)


def test_documents_are_delivered_as_ragged_rows_only(tmp_path: Path) -> None:
    stream = open_documents(put(tmp_path, "a.txt", b"text\n"))
    with pytest.raises(LoaderError, match="deliver_rows"):
        stream.deliver(read_lane(stream, 0), {})
    windows = TextStream.open(str(tmp_path), seq_len=2)
    rows = read_lane(windows, 0)
    out = windows.delivered.empty(len(rows["tokens"]))
    windows.deliver(rows, out)
    require_equal(windows.deliver_rows(rows), out)


def test_empty_files_and_lines_are_said_as_for_windows(tmp_path: Path, caplog: Any) -> None:
    put(tmp_path, "a.txt", b"\n\n")
    put(tmp_path, "b.txt", b"text\n\n\nmore")
    stream = open_documents(tmp_path, lanes=1)
    with caplog.at_level(logging.INFO, "flodl_pipe"):
        assert documents_of(stream) == [in_bytes("text"), in_bytes("more")]
    (record,) = caplog.records
    assert record.getMessage() == f"{tmp_path}/a.txt: holds no document, only empty lines"
