"""Text files as windows of tokens: nothing lost, whatever the packing, the portions and the place of a resumption.

White box: sizes of portions are made small, so that a few lines are cut anywhere.
"""

import array
import gzip
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import zstandard

from flodl_pipe.errors import ChangedError, ConfigError, ResumeError, SourceError
from flodl_pipe.keyed.permute import permutation
from flodl_pipe.sources import stream_lines, stream_tokens, stream_unpack, stream_windows
from flodl_pipe.sources.text_stream import TextStream
from tests.contract.streams import SEED, StreamContract, read_lane

T = 16
DOCUMENTS = [
    ["plain words", "zw\u00f6lf Boxk\u00e4mpfer jagen Viktor quer", "\u6f22\u5b57\u4eee\u540d\u4ea4\u3058\u308a", "x"],
    ["a longer document " * 9, "\U0001f600 smile " * 5, " leading and trailing blanks "],
    [f"number {n} of many short ones" for n in range(16)],
    ["one\rreturn inside", "tab\tinside", "end" * 30],
    [f"{n}" for n in range(60)],
]


def tokens_of(documents: Sequence[str]) -> list[int]:
    return [token for text in documents for token in (*text.encode(), 256)]


def words(text: str) -> list[int]:
    """A tokenizer: one id a character, 70,000 in front."""
    return [70_000, *map(ord, text)]


def lines(documents: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in documents).encode()


def messy_lines(documents: Sequence[str]) -> bytes:
    """A byte order mark, CRLF, empty lines, and no newline at the end."""
    body = "\r\n\n\r\n".join(text.replace("\n", "") for text in documents)
    return ("\ufeff\n\r\n" + body).encode()


def jsonl(documents: Sequence[str]) -> bytes:
    return "\n \n".join(json.dumps({"id": 1, "text": text}) for text in documents).encode()


def write(folder: Path, render: Callable[[Sequence[str]], bytes], ending: str, pack: Any = bytes) -> None:
    for number, documents in enumerate(DOCUMENTS):
        (folder / f"part-{number}{ending}").write_bytes(pack(render(documents)))


def one_member(data: bytes) -> bytes:
    """Gzip that does not hang on the time."""
    return gzip.compress(data, mtime=0)


def members(data: bytes) -> bytes:
    """Gzip in many members, padded."""
    return b"".join(gzip.compress(data[at : at + 50], mtime=0) for at in range(0, len(data), 50)) + bytes(9)


def frames(data: bytes) -> bytes:
    """Zstandard in many frames with and without checksum and size, one that holds no data among them."""
    parts = []
    for number, at in enumerate(range(0, len(data), 70)):
        packer = zstandard.ZstdCompressor(
            level=1 + number % 3, write_checksum=bool(number & 1), write_content_size=bool(number & 2)
        )
        parts.append(packer.compress(data[at : at + 70]))
    skippable = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"extra"
    return skippable + skippable.join(parts)


WHOLE, CUT = "whole", "5 bytes at a time"


@pytest.fixture(params=[pytest.param(WHOLE, marks=pytest.mark.full), CUT])
def portions(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == CUT:
        monkeypatch.setattr(stream_unpack, "READ_BYTES", 13)
        monkeypatch.setattr(stream_unpack, "CHUNK_BYTES", 5)
        monkeypatch.setattr(stream_unpack, "_GZIP_INPUT", 7)
        monkeypatch.setattr(stream_tokens, "_FOLDED_BYTES", 3)
        monkeypatch.setattr(stream_lines, "_GROUP_LINES", 2)
        monkeypatch.setattr(stream_windows, "_MAX_PARTS", 3)


class TextContract(StreamContract):
    row_order_only = False
    ids: Any = staticmethod(tokens_of)
    options: ClassVar[dict[str, Any]] = {}

    def files(self, folder: Path) -> None:
        raise NotImplementedError

    def make_stream(self, folder: Path) -> TextStream:
        self.files(folder)
        return TextStream.open(str(folder), seq_len=T, lanes=2, shuffle_buffer=14, **self.options)

    def expected(self, stream: Any, lane: int, *, seed: int, epoch: int, shuffle: bool) -> dict[str, Any]:
        order = list(range(len(DOCUMENTS)))
        if shuffle:
            order = permutation(len(order), 0x7E47, seed, epoch).at(np.array(order)).tolist()
        tokens = [token for file in order[lane::2] for token in self.ids(DOCUMENTS[file])]
        starts = range(0, len(tokens) - T, T)
        rows = [tokens[start : start + T + 1] for start in starts]
        if "num_tokens" not in stream.spec.names:
            return {"tokens": np.array(rows, dtype=stream.spec.fields[0].dtype)}
        rest = tokens[len(rows) * T :]
        if len(rest) > 1:
            rows.append(rest + [0] * (T + 1 - len(rest)))
        lengths = [T + 1] * len(starts) + [len(rest)] * (len(rest) > 1)
        return {"tokens": np.array(rows, dtype=stream.spec.fields[0].dtype), "num_tokens": np.array(lengths)}


class InPortions(TextContract):
    """The same once more with every portion cut anywhere."""

    @pytest.fixture(autouse=True)
    def _in_portions(self, portions: None) -> None:
        pass


@pytest.mark.full
class TestLines(TextContract):
    def files(self, folder: Path) -> None:
        write(folder, lines, ".txt")


@pytest.mark.full
class TestMessyLines(InPortions):
    def files(self, folder: Path) -> None:
        write(folder, messy_lines, ".txt")


@pytest.mark.full
class TestTailKept(TextContract):
    options: ClassVar[dict[str, Any]] = {"tail": "keep"}

    def files(self, folder: Path) -> None:
        write(folder, lines, ".txt")


@pytest.mark.full
class TestGzip(TextContract):
    def files(self, folder: Path) -> None:
        write(folder, messy_lines, ".txt.gz", members)


@pytest.mark.full
class TestZstd(TextContract):
    def files(self, folder: Path) -> None:
        write(folder, lines, ".text.zst", frames)


@pytest.mark.full
class TestJson(InPortions):
    options: ClassVar[dict[str, Any]] = {"tail": "keep"}

    def files(self, folder: Path) -> None:
        write(folder, jsonl, ".jsonl")


class TestMixedFormats(InPortions):
    options: ClassVar[dict[str, Any]] = {"tail": "keep"}

    def files(self, folder: Path) -> None:
        renders: list[tuple[Any, str, Any]] = [
            (lines, ".txt", bytes),
            (jsonl, ".jsonl", bytes),
            (jsonl, ".json.zst", frames),
            (messy_lines, ".txt.gz", one_member),
            (jsonl, ".ndjson.gz", members),
        ]
        for number, (render, ending, pack) in enumerate(renders):
            (folder / f"part-{number}{ending}").write_bytes(pack(render(DOCUMENTS[number])))


class TestTokenizer(TextContract):
    ids = staticmethod(lambda documents: [token for text in documents for token in words(text)])
    options: ClassVar[dict[str, Any]] = {"encode": words}

    def files(self, folder: Path) -> None:
        write(folder, messy_lines, ".txt")


def open_text(folder: Path, **options: Any) -> TextStream:
    return TextStream.open(str(folder), **{"seq_len": T, **options})


def all_tokens(stream: TextStream, lane: int = 0, **which: Any) -> list[int]:
    """Tokens of a lane, the overlaps once."""
    rows = read_lane(stream, lane, **{"shuffle": False, **which})["tokens"]
    return [*rows[:1, 0].tolist(), *rows[:, 1:].reshape(-1).tolist()]


def put(folder: Path, name: str, data: bytes) -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def test_the_order_of_files_is_pinned(tmp_path: Path) -> None:
    for number in range(8):
        put(tmp_path, f"{number}.txt", f"{number}\n".encode())
    stream = open_text(tmp_path, seq_len=1, lanes=2, shuffle_buffer=1)
    lanes = [bytes(token for token in all_tokens(stream, lane, shuffle=True) if token < 256) for lane in range(2)]
    assert lanes == [b"5170", b"4263"]  # other values are another order: bump the version in the tag


def test_every_token_but_the_first_is_a_target_once(tmp_path: Path) -> None:
    write(tmp_path, lines, ".txt")
    stream = open_text(tmp_path, lanes=1, tail="keep")
    rows = read_lane(stream, 0, shuffle=False)
    out = stream.delivered.empty(len(rows["tokens"]))
    stream.deliver(rows, out)
    wanted = [token for documents in DOCUMENTS for token in tokens_of(documents)]
    targets = out["target"].reshape(-1)
    assert targets[targets != -100].tolist() == wanted[1:]
    assert out["input"].reshape(-1)[: len(wanted) - 1].tolist() == wanted[:-1]
    assert (out["target"].dtype, out["input"].shape[1:]) == (np.dtype("int64"), (T,))


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\n\n\r\na\n\n\r\n\nb\n\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\nb", ["a", "b"]),
        (b"\xef\xbb\xbf\n\xef\xbb\xbfa\nb", ["\ufeffa", "b"]),
        (b"a\rb\n\r\r\nc\r", ["a\rb", "\r", "c\r"]),
        (b"  \n\t\n", ["  ", "\t"]),
        ("\u00e4\u2028\x0b\x85\n".encode(), ["\u00e4\u2028\x0b\x85"]),
    ],
)
def test_what_a_line_is(portions: None, tmp_path: Path, content: bytes, documents: list[str]) -> None:
    put(tmp_path, "a.txt", content)
    assert all_tokens(open_text(tmp_path, tail="keep", seq_len=1)) == tokens_of(documents)
    if "c\r" in documents:
        documents = ["a\rb", "\r", "c"]  # at the end of the file a line's own return cannot be told from its end
    encoded = open_text(tmp_path, tail="keep", seq_len=1, encode=lambda text: [*text.encode(), 256])
    assert all_tokens(encoded) == tokens_of(documents)


def test_json_text_is_taken_as_it_is(tmp_path: Path) -> None:
    texts = ["two\nlines\r\n", "", "\ufeffmark", "caf\u00e9 \U0001f600"]
    put(tmp_path, "a.jsonl", "\r\n".join(json.dumps({"body": text}) for text in texts).encode())
    stream = open_text(tmp_path, tail="keep", seq_len=1, text_key="body")
    assert all_tokens(stream) == tokens_of([text for text in texts if text])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"good\nbad \xff here\n", r"a\.txt, byte 9: 0xff is not valid UTF-8.*iconv"),
        ("a.txt", b"good\ncut \xe6\xbc", r"a\.txt, byte 9: 0xe6 is not valid UTF-8"),
        ("a.txt", b"surrogate \xed\xa0\x80\n", r"a\.txt, byte 10: 0xed is not valid UTF-8"),
        ("a.jsonl", b'\n{"text": "ok"}\n{"text": "\xff"}\n', r"a\.jsonl, line 3 \(byte 26\): 0xff is not valid UTF-8"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": \n', r"a\.jsonl, line 2 \(byte 24\): no valid JSON \(Expecting value"),
        ("a.jsonl", b'{"text": "ok"} {"text": "two"}\n', r"line 1 \(byte 15\): no valid JSON \(Extra data"),
        ("a.jsonl", b'{"body": "ok", "id": 1}\n', r"line 1 \(byte 0\): has no key 'text'.*'body', 'id'.*text_key"),
        ("a.jsonl", b'{"text": ["ok"]}\n', r"line 1 .*'text' holds a list, not text"),
        ("a.jsonl", b'{"text": null}\n', r"line 1 .*'text' holds a null, not text"),
        ("a.jsonl", b'["ok"]\n', r"line 1 .*a JSON list; a line must hold one JSON object"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"line 1 .*half of a surrogate pair"),
        ("a.jsonl", b'{"text": ' + b"[" * 100_000, r"line 1 .*no usable JSON"),
        ("a.jsonl", b'{"n": ' + b"1" * 5_000 + b"}", r"line 1 .*no usable JSON"),
    ],
)
def test_damaged_text_is_an_error_that_names_the_place(
    portions: None, tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    put(tmp_path, name, content)
    with pytest.raises(SourceError, match=says):
        read_lane(open_text(tmp_path, seq_len=2), 0, shuffle=False)


def test_a_resumed_stream_names_the_same_line(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(stream_unpack, "CHUNK_BYTES", 5)
    good = b'{"text": "0123456789"}\n'
    put(tmp_path, "a.jsonl", good * 5 + b"bad\n")
    stream = open_text(tmp_path, seq_len=2)
    reader = stream.open_lane(0, seed=0, epoch=0, shuffle=False)
    out = stream.spec.empty(8)
    reader.read_into(out, 0, 8)
    with pytest.raises(SourceError, match=rf"line 6 \(byte {len(good) * 5}\)"):
        read_lane(stream, 0, shuffle=False, mark=reader.mark())


def test_a_line_that_never_ends_is_an_error_not_memory(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("flodl_pipe.sources.stream_lines.MAX_LINE_BYTES", 100)
    put(tmp_path, "a.jsonl", b'{"text": "ok"}\n{"text": "' + b"x" * 200 + b'"}\n')
    with pytest.raises(SourceError, match=r"line 2 \(byte 15\): longer than 100 B"):
        read_lane(open_text(tmp_path, seq_len=2), 0, shuffle=False)


def test_a_line_of_bytes_may_have_any_length(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", b"x" * 3_000_000)
    assert open_text(tmp_path, seq_len=1000).count_lane(0, seed=0, epoch=0, shuffle=False) == 3000


def packed(ending: str) -> bytes:
    body = np.random.default_rng(0).integers(97, 123, 400_000, dtype=np.uint8).tobytes()
    return gzip.compress(body) if ending == "gz" else zstandard.ZstdCompressor().compress(body)


@pytest.mark.parametrize("ending", ["gz", "zst"])
@pytest.mark.parametrize("keep", [0.0001, 0.5, 0.999999])
def test_a_packed_file_that_ends_early_is_an_error(tmp_path: Path, ending: str, keep: float) -> None:
    data = packed(ending)
    kept = max(int(len(data) * keep), 20)
    put(tmp_path, f"a.txt.{ending}", data[:kept])
    with pytest.raises(SourceError, match=rf"a\.txt\.{ending}, byte {kept:,}: the (gzip|zstd) data ends.*truncated"):
        read_lane(open_text(tmp_path), 0, shuffle=False)


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_packed_file_that_is_damaged_is_an_error(tmp_path: Path, ending: str) -> None:
    data = bytearray(packed(ending))
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    put(tmp_path, f"a.txt.{ending}", bytes(data))
    with pytest.raises(SourceError, match=rf"a\.txt\.{ending}, byte [\d,]+.*(damaged|truncated)"):
        read_lane(open_text(tmp_path), 0, shuffle=False)


def test_what_follows_a_packed_file_is_not_ignored(tmp_path: Path) -> None:
    put(tmp_path, "a.txt.gz", gzip.compress(b"text\n") + b"garbage")
    put(tmp_path, "b.txt.zst", zstandard.ZstdCompressor().compress(b"text\n") + b"garbage")
    for name, says in (("a.txt.gz", "damaged gzip data"), ("b.txt.zst", "no zstd frame")):
        with pytest.raises(SourceError, match=rf"{name}, byte \d+.*{says}"):
            read_lane(TextStream.open(str(tmp_path / name), seq_len=1), 0, shuffle=False)


def test_a_small_file_that_unpacks_to_much_is_read_in_portions(tmp_path: Path) -> None:
    size = 16 << 20
    packer = zstandard.ZstdCompressor()
    for name, data in (("a.txt.gz", gzip.compress(bytes([97]) * size)), ("a.txt.zst", packer.compress(b"a" * size))):
        path = put(tmp_path, name, data)
        blobs = stream_blobs(path)
        largest = max(len(part) for _, part in stream_unpack.read_content(blobs, 0, name[6:], 0))  # type: ignore[arg-type]
        assert largest <= stream_unpack.CHUNK_BYTES + (128 << 10)


def stream_blobs(path: Path) -> Any:
    from flodl_pipe.storage.open import open_blobs

    return open_blobs([str(path)])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", gzip.compress(b"text", mtime=0), r"begins as gzip data \(byte 0: 1f 8b 08.*rename it to end in \.gz"),
        ("a.txt", zstandard.ZstdCompressor().compress(b"text"), r"begins as zstd data.*rename it to end in \.zst"),
        ("a.txt", b"PK\x03\x04rest", r"a zip archive, not the data"),
        ("a.txt", b"version https://git-lfs.github.com/spec/v1\n", r"a Git LFS pointer"),
        ("a.txt", "text".encode("utf-16"), r"byte 0: it begins as UTF-16"),
        ("a.txt.gz", b"text\n", r"called \.gz but begins with 74 65 78 74, not gzip data"),
        ("a.jsonl.zst", b"", r"called \.zst but is empty, 0 bytes"),
        ("a.txt", b"", r"empty, 0 bytes: there is no document"),
        ("a.txt", b"\n\r\n\n", r"no document, only empty lines"),
        ("a.jsonl", b'  \n{"text": ""}\n', r"no document, only empty lines"),
    ],
)
def test_a_file_that_is_not_what_it_is_called_is_an_error(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    put(tmp_path, name, content)
    with pytest.raises(SourceError, match=says):
        open_text(tmp_path)


def test_an_ending_that_tells_nothing_needs_the_format(tmp_path: Path) -> None:
    path = put(tmp_path, "wiki.tokens", b"text\n")
    with pytest.raises(SourceError, match=r"the ending '\.tokens' does not say.*source\.format"):
        TextStream.open(str(path), seq_len=2)
    assert all_tokens(TextStream.open(str(path), seq_len=4, file_format="lines")) == tokens_of(["text"])


def test_empty_files_are_left_out_aloud(tmp_path: Path, caplog: Any) -> None:
    put(tmp_path, "a.txt", b"")
    put(tmp_path, "b.txt", b"some text\n")
    put(tmp_path, "c.txt", b"\n\n")
    put(tmp_path, "notes.pdf", b"x")
    with caplog.at_level(logging.INFO, "flodl_pipe"):
        stream = open_text(tmp_path, lanes=1, seq_len=3)
        for epoch in range(2):
            assert all_tokens(stream, epoch=epoch) == tokens_of(["some text"])[:10]
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(": ")[0].rpartition("/")[2] for text in said] == [
        "left out beside the text files",
        "empty, 0 bytes, so left out",
        "c.txt",
    ]
    assert {"not text files", "empty files"} <= {fact.name for fact in stream.facts()}


def test_the_tail_is_dropped_aloud_once(tmp_path: Path, caplog: Any) -> None:
    put(tmp_path, "a.txt", b"0123456789\n")
    stream = open_text(tmp_path, seq_len=4)
    with caplog.at_level(logging.INFO, "flodl_pipe"):
        for _ in range(2):
            assert all_tokens(stream) == tokens_of(["0123456789"])[:9]
    (record,) = caplog.records
    assert record.getMessage() == (
        "lane 0 of the stream ends with 2 tokens that fill no window and are left out, as in every lane and epoch (at "
        "most 4; source.tail=keep pads them)"
    )


def test_text_shorter_than_a_window_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", b"0123456789")
    with pytest.raises(SourceError, match=r"a\.txt: too short.*at most 11 tokens.*seq_len \+ 1 = 17"):
        open_text(tmp_path, seq_len=16)
    assert len(read_lane(open_text(tmp_path, seq_len=10), 0)["tokens"]) == 1
    assert read_lane(open_text(tmp_path, seq_len=16, tail="keep"), 0)["num_tokens"].tolist() == [11]


def test_odd_files_are_read_or_refused_as_lines() -> None:
    folder = Path(__file__).parents[2].parent / "shared" / "cases" / "odd" / "text"
    if not folder.is_dir():
        pytest.skip(f"the odd files are not here: {folder}")

    def tokens(name: str) -> list[int]:
        return all_tokens(TextStream.open(str(folder / name), seq_len=1, tail="keep"))

    assert tokens("bom.txt") == tokens("crlf.txt") == tokens("ascii.txt")
    for name, says in (("invalid_utf8.txt", "byte 40: .*UTF-8"), ("empty.txt", "empty, 0 bytes")):
        with pytest.raises(SourceError, match=says):
            tokens(name)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lanes": 6}, r"source\.lanes: 6 lanes need at least 6 files, there are 5"),
        ({"lanes": 0}, r"source\.lanes: must be at least 1"),
        ({"seq_len": 0}, r"source\.seq_len: must be at least 1"),
        ({"shuffle_buffer": 0}, r"source\.shuffle_buffer: must be at least 1"),
        ({"tail": "pad"}, r"source\.tail: must be drop or keep"),
        ({"vocab_size": 256}, r"source\.vocab_size: text as bytes has ids 0 \.\. 256.*must be 257"),
        ({"file_format": "csv"}, r"source\.format: must be one of auto, lines, jsonl"),
    ],
)
def test_impossible_settings_are_config_errors(tmp_path: Path, options: Any, says: str) -> None:
    write(tmp_path, lines, ".txt")
    with pytest.raises(ConfigError, match=says):
        open_text(tmp_path, **options)


@pytest.mark.parametrize(
    ("encode", "vocab_size", "says"),
    [
        (lambda text: [0, -1], None, r"a\.txt, line 1: source\.encode gave id -1.*0 \.\. 4294967295"),
        (lambda text: [0, 300], 300, r"a\.txt, line 1: source\.encode gave id 300.*0 \.\. 299.*vocab_size"),
        (lambda text: [0.5], None, r"gave float64 of shape \(1,\) \(list\)"),
        (lambda text: [[1, 2]], None, r"gave int64 of shape \(1, 2\)"),
        (lambda text: [[]], None, r"gave float64 of shape \(1, 0\)"),
        (lambda text: [[1, 2], [3]], None, r"a\.txt, line 1: source\.encode gave list, which makes no array \(.*flat"),
        (lambda text: np.zeros((2, 2), np.int32), None, r"gave int32 of shape \(2, 2\) \(numpy\.ndarray\)"),
        (lambda text: torch.zeros(2, 2, dtype=torch.int16), None, r"int16 of shape \(2, 2\) \(torch\.Tensor\)"),
        (lambda text: torch.zeros(2), None, r"gave float32 of shape \(2,\)"),
        (lambda text: torch.zeros(2, requires_grad=True), None, r"gave torch\.Tensor, which makes no array .*flat"),
        (lambda text: torch.zeros(2, dtype=torch.int64, device="meta"), None, r"gave torch\.Tensor, which makes no"),
        (lambda text: text, None, r"gave <U\d+ of shape \(\)"),
        (list, None, r"gave <U1 of shape \(4,\)"),
        (lambda text: text.encode(), None, r"gave \|S4 of shape \(\) \(bytes\)"),
        (lambda text: None, None, r"gave object of shape \(\) \(NoneType\)"),
        (lambda text: [1, None], None, r"gave object of shape \(2,\)"),
        (lambda text: 5, None, r"gave int64 of shape \(\) \(int\)"),
        (lambda text: {1, 2}, None, r"gave object of shape \(\) \(set\)"),
        (lambda text: {"input_ids": [1]}, None, r"gave object of shape \(\) \(dict\); it must return .* flat sequence"),
        (lambda text: (token for token in (1, 2)), None, r"gave object of shape \(\) \(generator\); .*flat sequence"),
        (lambda text: [True, False], None, r"gave bool of shape \(2,\)"),
        (lambda text: [7, True], None, r"gave truth values among the ids; it must return"),
        (lambda text: (7, np.True_), None, r"gave truth values among the ids"),
        (lambda text: [1, 2**64], None, r"line 1: source\.encode gave id 18446744073709551616, and ids must lie in 0"),
        (lambda text: [1, 2**63], None, r"gave id 9223372036854775808, and ids must lie in 0"),
        (lambda text: [-1, 2**63], None, r"gave id -1, and ids must lie in 0"),
        (lambda text: [10**5000], None, r"gave id with 16610 bits, and ids must lie in 0"),
    ],
)
def test_a_tokenizer_is_held_to_ids_in_range(tmp_path: Path, encode: Any, vocab_size: Any, says: str) -> None:
    put(tmp_path, "a.txt", b"text\n")
    with pytest.raises(SourceError, match=says):
        read_lane(open_text(tmp_path, encode=encode, vocab_size=vocab_size), 0)


@pytest.mark.parametrize(
    "give",
    [
        list,
        tuple,
        np.array,
        torch.tensor,
        lambda ids: np.array(ids, dtype=">u2"),
        lambda ids: torch.tensor(ids, dtype=torch.uint8),
        lambda ids: range(ids[0], ids[-1] + 1),
        lambda ids: [np.int16(one) for one in ids],
        lambda ids: [torch.tensor(one) for one in ids],
        lambda ids: array.array("H", ids),
        bytearray,
    ],
)
def test_a_tokenizer_may_give_any_flat_sequence_of_integers(tmp_path: Path, give: Any) -> None:
    put(tmp_path, "a.txt", b"text\nnone\ntext\n")
    stream = open_text(tmp_path, seq_len=5, encode=lambda text: give([3, 4, 5]) if text == "text" else [])
    assert read_lane(stream, 0)["tokens"].tolist() == [[3, 4, 5, 3, 4, 5]]


def test_what_a_tokenizer_raises_arrives_with_the_place(tmp_path: Path) -> None:
    def fail(text: str) -> list[int]:
        raise KeyError(text)

    put(tmp_path, "a.txt", b"\ntext\n")
    with pytest.raises(KeyError, match="text") as caught:
        read_lane(open_text(tmp_path, encode=fail), 0)
    assert caught.value.__notes__ == [f"while encoding {tmp_path}/a.txt, line 2"]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(None, "uint32"), (65_536, "uint16"), (65_537, "uint32")])
def test_ids_are_stored_as_narrow_as_the_vocabulary_allows(tmp_path: Path, vocab_size: Any, dtype: str) -> None:
    put(tmp_path, "a.txt", b"text\n")
    stream = open_text(tmp_path, seq_len=2, encode=words, vocab_size=vocab_size)
    assert stream.spec.fields[0].dtype == dtype
    assert open_text(tmp_path, seq_len=2, vocab_size=304).spec.fields[0].dtype == "uint16"


def test_a_mark_of_other_data_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", b"text\n" * 20)
    put(tmp_path, "b.txt.gz", gzip.compress(b"text\n" * 20))
    stream = open_text(tmp_path, lanes=2)
    long = "9" * 5_000
    for lane, mark in (
        *((0, "0.999.0.0"), (1, "0.999.0.0"), (0, "2.0.0.0"), (0, "0,0,0.0.0.1"), (0, "0.0.101.1"), (1, "0.0.101.1")),
        *((0, f"{long}.0.0.1"), (0, f"0.{long}.0.1"), (0, f"0.0.{long}.1"), (0, f"0.0.0.{long}"), (0, long)),
        *((0, f"0.{10**17}.0.1"), (1, f"0.{10**17}.0.1"), (0, f"0.0.{10**17}.1"), (0, f"{10**17}.0.0.1")),
    ):
        with pytest.raises(ResumeError) as caught:
            read_lane(stream, lane, shuffle=False, mark=mark)
        assert len(str(caught.value)) < 500
    for mark in (f"{long},0,0.0.0.1", f"0,{long},0.0.0.1", f"0,0,{long}.0.0.1", long, f"0,0,0.0.{10**17}.1"):
        with pytest.raises(ResumeError):
            read_lane(stream, 0, shuffle=True, mark=mark)
    with pytest.raises(ResumeError, match=r"sampling\.shuffle or source\.shuffle_buffer"):
        read_lane(stream, 0, shuffle=True, mark="0.0.0.1")


def test_the_fingerprint_covers_content_and_what_is_made_of_it(tmp_path: Path) -> None:
    write(tmp_path, jsonl, ".jsonl")
    found = open_text(tmp_path).fingerprint()
    assert found.summary.startswith("stream: 5 files (jsonl)")
    others: list[dict[str, Any]] = [{"seq_len": 8}, {"tail": "keep"}, {"encode": words}]
    digests = {open_text(tmp_path, **options).fingerprint().digest for options in others}
    assert len(digests | {found.digest}) == 4
    assert open_text(tmp_path, lanes=2, shuffle_buffer=3).fingerprint() == found
    assert open_text(tmp_path, lanes=2).tag != open_text(tmp_path, lanes=3).tag


def test_a_file_that_changes_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, lines, ".txt")
    stream = open_text(tmp_path, lanes=1)
    read_lane(stream, 0)
    os.truncate(tmp_path / "part-2.txt", 30)
    with pytest.raises(ChangedError, match=r"part-2\.txt"):
        stream.check_unchanged()
    with pytest.raises(ChangedError, match=r"part-2\.txt"):
        read_lane(stream, 0)


@pytest.mark.parametrize(("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".gz", members)])
def test_the_estimate_is_near_or_not_given(tmp_path: Path, ending: str, pack: Any) -> None:
    put(tmp_path, f"a.txt{ending}", pack(b"some words in a line\n" * 1000))
    put(tmp_path, f"b.jsonl{ending}", pack(jsonl(["some words in a line"] * 1000)))
    for name in (f"a.txt{ending}", f"b.jsonl{ending}"):
        stream = TextStream.open(str(tmp_path / name), seq_len=T)
        count = stream.count_lane(0, seed=SEED, epoch=0, shuffle=False)
        if pack is members:
            assert stream.num_samples_estimate is None
        else:
            assert stream.num_samples_estimate == pytest.approx(count, rel=0.02)


def metadata_first(ending: str) -> bytes:
    heavy = b"".join(json.dumps({"meta": "x" * 2000, "text": "few"}).encode() + b"\n" for _ in range(300))
    light = b"".join(json.dumps({"text": f"some words {n} " * 30}).encode() + b"\n" for n in range(12_000))
    return gzip.compress(heavy + light, 1) if ending else heavy + light


def test_the_estimate_looks_at_more_than_the_begin(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", metadata_first(""))
    put(tmp_path, "b.txt", b"some words\n" * 300_000 + b"\r\n" * 1_500_000)
    for name in ("a.jsonl", "b.txt"):
        stream = TextStream.open(str(tmp_path / name), seq_len=64)
        count = stream.count_lane(0, seed=SEED, epoch=0, shuffle=False)
        assert stream.num_samples_estimate == pytest.approx(count, rel=0.15)
        (said,) = (fact.value for fact in stream.facts() if fact.name == "windows")
        wanted = f"about {stream.num_samples_estimate:,} an epoch, extrapolated from 24 places of the plain files"
        assert said == wanted


def test_the_estimate_says_how_it_was_made(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl.gz", metadata_first(".gz"))
    put(tmp_path, "b.txt", b"some words\n" * 5)
    put(tmp_path, "c.txt.gz", gzip.compress(b"some words\n" * 5))
    put(tmp_path, "d.txt.gz", members(b"some words\n" * 50))

    def said(*names: str) -> str:
        stream = TextStream.open([str(tmp_path / name) for name in names], seq_len=4)
        return next(fact.value for fact in stream.facts() if fact.name == "windows")

    assert said("a.jsonl.gz").endswith("an epoch, extrapolated from the first 256 KiB of each .gz file")
    assert said("b.txt", "c.txt.gz") == (
        "about 27 an epoch, counted in all of the plain files and counted in all of the .gz files"
    )
    assert said("b.txt", "d.txt.gz") == "not known before they are read"


def test_a_damaged_line_does_not_disturb_the_estimate_and_is_an_error_when_read(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", b'{"text": "some words"}\n' * 20_000 + b"damaged\n")
    stream = open_text(tmp_path)
    assert stream.num_samples_estimate == pytest.approx(11 * 20_000 / T, rel=0.01)
    with pytest.raises(SourceError, match=r"line 20,001 \(byte 460,000\)"):
        read_lane(stream, 0)


def test_a_missing_zstd_library_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    import sys

    if sys.version_info >= (3, 14):
        pytest.skip("this Python has its own")
    put(tmp_path, "a.txt.zst", zstandard.ZstdCompressor().compress(b"text\n"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(SourceError, match=r"pip install 'flodl-pipe\[zstd\]'"):
        open_text(tmp_path)
