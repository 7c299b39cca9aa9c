"""Text as characters: the right ids in the right windows, the policies at their borders, every refusal in words.

White box: the chunks that a file is decoded in are made small.
"""

import json
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import ChangedError, ConfigError, SourceError
from flodl_pipe.sources import text_files
from flodl_pipe.sources.ordering import Drawn
from flodl_pipe.sources.protocol import BundledSource
from flodl_pipe.sources.text import Text
from flodl_pipe.sources.text_files import read_code_points
from flodl_pipe.storage.memory import MemoryBlobs
from tests.contract.sources import SourceContract, read_delivered
from tests.sources.test_tokens import facts, window

LINES = "To be, or not to be: that is the question.\nDonc — naïve? 😀 zéro\n"
SHAKESPEARE = Path(__file__).parents[3] / "shared" / "data" / "tinyshakespeare_input.txt"


class TextContract(SourceContract):
    text: ClassVar[str] = LINES * 20
    options: ClassVar[dict[str, Any]] = {}
    stride = 8
    part = slice(None, 1152)
    """90 % of 1,280 characters."""

    def make_source(self, folder: Path) -> Text:
        (folder / "a.txt").write_bytes(self.text[:700].encode())
        (folder / "b.txt").write_bytes(self.text[700:].encode())
        return Text.open(str(folder), seq_len=8, **self.options)

    def expected(self, source: Text, index: int) -> dict[str, Any]:
        symbols = sorted(set(self.text))
        ids = np.array([symbols.index(char) for char in self.text[self.part]])
        return window([ids], index, 8, self.stride, self.options.get("tail") == "keep")


@pytest.mark.full
class TestText(TextContract):
    pass


class TestValidation(TextContract):
    options: ClassVar[dict[str, Any]] = {"split": "val", "tail": "keep"}
    part = slice(1152, None)


@pytest.mark.full
class TestWholeTextAtRandomStarts(TextContract):
    options: ClassVar[dict[str, Any]] = {"split": "all", "starts": "random"}
    stride = 1
    part = slice(None)


@pytest.mark.full
class TestOverlappingWindowsOfAWideVocabulary(TextContract):
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 700))) * 2
    options: ClassVar[dict[str, Any]] = {"stride": 3}
    stride = 3
    part = slice(None, 1260)


def write(folder: Path, *contents: bytes | str) -> str:
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(contents):
        (folder / f"{number}.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder)


def opened(folder: Path, *contents: bytes | str, **options: Any) -> Text:
    return Text.open(write(folder, *contents), **{"seq_len": 4, "split": "all", **options})


def whole(source: Text) -> str:
    """Return the text of a source of one window."""
    batch = read_delivered(source, [0])
    return source.decode([*batch["input"][0, :1], *batch["target"][0]])


def read_back(folder: Path, *contents: bytes | str) -> str:
    num = len(b"".join(c if isinstance(c, bytes) else c.encode() for c in contents).decode("utf-8", "replace"))
    source = opened(folder, *contents, seq_len=num, tail="keep")
    batch = read_delivered(source, [0])
    kept = batch["target"][0][batch["target"][0] != -100]
    return source.decode([*batch["input"][0, :1], *kept])


@pytest.mark.skipif(not SHAKESPEARE.is_file(), reason="shared/data is not beside the checkout")
def test_tiny_shakespeare_gives_the_published_numbers() -> None:
    train = Text.open(str(SHAKESPEARE), seq_len=256)
    val = Text.open(str(SHAKESPEARE), seq_len=256, split="val")
    assert isinstance(train, BundledSource)
    assert (len(train.vocab), train.vocab[:3], train.vocab[-1]) == (65, "\n !", "z")
    told = facts(train)
    assert told["text"] == "1,115,394 characters, vocabulary of 65"
    assert told["split"] == "train: 1,003,854 characters, train_fraction 0.9"
    assert facts(val)["split"] == "val: 111,540 characters, train_fraction 0.9"
    assert (train.held_bytes, val.held_bytes) == (1_003_854, 111_540)
    assert train.spec.fields[0].dtype == "uint8"
    first = read_delivered(train, [0])
    assert first["input"][0, :10].tolist() == [18, 47, 56, 57, 58, 1, 15, 47, 58, 47]
    assert first["target"][0, :9].tolist() == [47, 56, 57, 58, 1, 15, 47, 58, 47]
    assert train.decode(first["input"][0]).startswith("First Citizen:\nBefore we proceed")
    text = SHAKESPEARE.read_text(encoding="utf-8")
    assert val.decode(read_delivered(val, [0])["input"][0]) == text[1_003_854 : 1_003_854 + 256]
    assert val.vocab == train.vocab
    assert Text.open(str(SHAKESPEARE), seq_len=256, starts="random").ordering == Drawn(len(train))


def test_files_are_joined_in_order_with_nothing_between(tmp_path: Path) -> None:
    assert read_back(tmp_path, "abc", "de\n", "f") == "abcde\nf"
    paths = [str(tmp_path / "2.txt"), str(tmp_path / "0.txt")]
    assert whole(Text.open(paths, seq_len=3, split="all")) == "fabc"
    (tmp_path / "notes.md").touch()
    assert facts(Text.open(str(tmp_path), seq_len=3, split="all"))["not text files"] == "notes.md"


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        ((b"\xef\xbb\xbfabc",), "abc"),
        ((b"\xef\xbb\xbfab", b"\xef\xbb\xbfcd"), "abcd"),
        ((b"a\xef\xbb\xbfb",), "a\ufeffb"),
        ((b"\xef\xbb\xbf\xef\xbb\xbfab",), "\ufeffab"),
        ((b"a\r\nb\r\n",), "a\nb\n"),
        ((b"a\rb\r",), "a\rb\r"),
        ((b"a\r\r\nb",), "a\r\nb"),
        ((b"a\r", b"\nb"), "a\r\nb"),
        ((b"\xef\xbb\xbf", b"ab"), "ab"),
        ((b"a\x00b",), "a\x00b"),
        (("a😀é\u2028b",), "a😀é\u2028b"),
    ],
    ids=["bom", "boms", "bom inside", "two boms", "crlf", "cr", "crcrlf", "cr|lf", "only bom", "nul", "wide"],
)
def test_marks_and_line_ends_are_settled_the_same_in_every_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contents: tuple[bytes | str, ...], text: str
) -> None:
    found = {0: read_back(tmp_path, *contents)}
    for chunk in (3, 4, 5):
        monkeypatch.setattr(text_files, "_CHUNK", chunk)
        found[chunk] = read_back(tmp_path, *contents)
    assert found == dict.fromkeys((0, 3, 4, 5), text)


@settings(deadline=None)
@given(text=st.text(st.sampled_from("a\r\né😀\ufeff—"), min_size=1, max_size=40), chunk=st.integers(3, 9))
def test_any_text_is_decoded_as_python_does(text: str, chunk: int) -> None:
    content = np.frombuffer(text.encode(), dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_CHUNK", chunk)
        parts = list(read_code_points(MemoryBlobs([content], ["a"])))
    wanted = text.removeprefix("\ufeff").replace("\r\n", "\n")
    assert np.concatenate(parts).tolist() == [ord(char) for char in wanted]


@pytest.mark.parametrize(
    ("content", "offset", "byte"),
    [
        (b"abc\xffdef", 3, "FF"),
        (b"\xef\xbb\xbfabc\xff", 6, "FF"),
        (b"a" * 10 + b"\xe2\x82", 10, "E2"),
        (b"ab\xc3\x28cd", 2, "C3"),
        (b"abcdefg\xed\xa0\x80", 7, "ED"),
        (b"abcdef\xf0\x9f\x98", 6, "F0"),
    ],
)
def test_a_byte_that_is_not_utf8_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, offset: int, byte: str
) -> None:
    says = rf"1\.txt, byte {offset}: 0x{byte} is not UTF-8 .*; save the file as UTF-8"
    for chunk in (1 << 22, 4, 3):
        monkeypatch.setattr(text_files, "_CHUNK", chunk)
        with pytest.raises(SourceError, match=says):
            opened(tmp_path, "some text", content)


def test_other_encodings_and_packed_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"byte 0: 0xFF is not UTF-8 .*it begins like UTF-16"):
        opened(tmp_path / "a", "hello".encode("utf-16"))
    with pytest.raises(SourceError, match="gzip-compressed; unpack it"):
        opened(tmp_path / "b", b"\x1f\x8b\x08\x00" + bytes(40))


@pytest.mark.parametrize(
    ("contents", "says"), [((b"",), "0 bytes, no text"), ((b"ab", b""), r"1\.txt: empty: 0 bytes")]
)
def test_an_empty_file_is_an_error(tmp_path: Path, contents: tuple[bytes, ...], says: str) -> None:
    with pytest.raises(SourceError, match=says):
        opened(tmp_path, *contents)


def test_a_file_of_a_mark_alone_is_empty(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="empty: no text after the byte order mark"):
        opened(tmp_path, b"\xef\xbb\xbf")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"split": "all", "seq_len": 100}, r"split=all has 100 characters, and .* source\.seq_len \+ 1 = 101"),
        (
            {"split": "val", "seq_len": 16},
            r"split=val has 10 characters of 100 \(source\.train_fraction=0\.9\), .* = 17",
        ),
        ({"split": "val", "train_fraction": 1.0}, r"split=val has 0 characters of 100 \(source\.train_fraction=1\.0\)"),
        ({"split": "val", "train_fraction": 0.99, "tail": "keep"}, r"1 characters .* needs a character and its target"),
        ({"split": "train", "train_fraction": 0.04}, r"split=train has 4 characters of 100 .* = 5 characters"),
        ({"split": "val", "starts": "random", "seq_len": 10}, r"split=val has 10 characters"),
    ],
)
def test_a_part_shorter_than_a_window_is_named_with_both_numbers(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(SourceError, match=says) as caught:
        opened(tmp_path, "0123456789" * 10, **options)
    assert "too short" in str(caught.value)
    assert "lower source.seq_len, change source.split or source.train_fraction, or give more text" in str(caught.value)


@pytest.mark.parametrize(
    ("fraction", "train"), [(0.9, 90), (0.29, 29), (0.999, 99), (1.0, 100), (0.57, 57), (1 / 3, 33)]
)
def test_the_border_is_the_floor_of_the_fraction_as_written(tmp_path: Path, fraction: float, train: int) -> None:
    source = opened(tmp_path, "0123456789" * 10, split="train", train_fraction=fraction)
    assert source.held_bytes == train


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"split": "test"}, "source.split"),
        ({"train_fraction": 0.0}, "source.train_fraction"),
        ({"train_fraction": 1.1}, "source.train_fraction"),
        ({"train_fraction": float("nan")}, "source.train_fraction"),
        ({"seq_len": 0}, "source.seq_len"),
        ({"stride": 0}, "source.stride"),
        ({"tail": "wrap"}, "source.tail"),
        ({"starts": "random", "stride": 4}, "source.stride"),
    ],
)
def test_impossible_options_are_config_errors(tmp_path: Path, options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, LINES, **options)
    assert caught.value.problems[0].key == key


@pytest.mark.parametrize(("num", "dtype"), [(256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_ids_are_as_narrow_as_the_vocabulary_allows(tmp_path: Path, num: int, dtype: str) -> None:
    text = "".join(chr(code) for code in range(0x10000, 0x10000 + num))
    source = opened(tmp_path, text[::-1], seq_len=num - 1)
    assert (source.spec.fields[0].dtype, source.held_bytes) == (dtype, num * np.dtype(dtype).itemsize)
    assert source.vocab == text
    assert read_delivered(source, [0])["input"][0, :2].tolist() == [num - 1, num - 2]


def test_the_vocabulary_encodes_and_decodes(tmp_path: Path) -> None:
    source = opened(tmp_path, LINES)
    assert source.vocab == "".join(sorted(set(LINES)))
    ids = source.encode(LINES)
    assert ids.dtype == np.int64
    assert [source.vocab[number] for number in ids.tolist()] == list(LINES)
    for form in (ids, ids.tolist(), tuple(ids.tolist()), torch.from_numpy(ids), ids.astype(np.uint8)):
        assert source.decode(form) == LINES
    assert source.decode(torch.tensor(3)) == source.vocab[3]
    assert (source.encode("").tolist(), source.decode([])) == ([], "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("to be Z", r"'Z' \(U\+005A, character 6 of the text\) is not in the vocabulary of \d+ characters"),
        ("\U0010ffff", r"U\+10FFFF, character 0"),
        ("t\ud800", r"U\+D800, character 1"),
        ("\x00", r"'\\x00' \(U\+0000"),
    ],
)
def test_a_character_outside_the_vocabulary_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SourceError, match=says):
        opened(tmp_path, LINES).encode(text)


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([0, 99], r"id 99 \(place 1\) stands for no character, ids are 0 \.\. \d+$"),
        ([-1], r"id -1 \(place 0\)"),
        (torch.tensor([1, -100]), r"id -100 \(place 1\) .*it marks a target that is ignored; leave those out"),
        ([[0], [1]], r"shape \(2, 1\) are no row of ids; give integers, a row at a time"),
        (np.array([0.5]), r"of type float64"),
        (np.array([2**64 - 1], dtype=np.uint64), r"stands for no character"),
        ("ab", r"are no row of ids"),
    ],
)
def test_what_is_no_id_is_named(tmp_path: Path, ids: Any, says: str) -> None:
    with pytest.raises(SourceError, match=says):
        opened(tmp_path, LINES).decode(ids)


def test_the_vocabulary_can_be_kept_beside_a_model(tmp_path: Path) -> None:
    source = opened(tmp_path, LINES)
    ((name, content),) = source.artifacts().items()
    assert name == "vocabulary.json"
    assert content.isascii()
    assert json.loads(content) == list(source.vocab)


def test_a_fingerprint_is_of_the_characters_not_of_the_files(tmp_path: Path) -> None:
    first = opened(tmp_path / "a", LINES, split="train")
    same = opened(tmp_path / "b", b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n").encode(), split="train")
    assert same.fingerprint() == first.fingerprint()
    assert same.fingerprint(full=True) == first.fingerprint(full=True)
    num = len(set(LINES))
    assert first.fingerprint().summary.startswith(f"text: vocabulary of {num}; token_shards: 1 shards, 57 tokens uint8")
    assert LINES.count("D") == 1
    others = [
        opened(tmp_path / "c", LINES, split="val"),
        opened(tmp_path / "d", LINES, split="train", train_fraction=0.8),
        opened(tmp_path / "e", LINES, split="train", starts="random"),
        opened(tmp_path / "f", LINES.replace("D", "E"), split="train"),  # the same ids, of other characters
    ]
    ids = [read_delivered(source, [0, 1])["input"].tolist() for source in (first, others[-1])]
    assert ids[0] == ids[1]
    assert len({source.fingerprint().digest for source in (first, *others)}) == len(others) + 1


def test_a_text_that_changes_is_an_error_though_its_ids_are_held(tmp_path: Path) -> None:
    source = opened(tmp_path, LINES)
    text = pickle.dumps(source)
    (tmp_path / "0.txt").write_text(LINES + "more", encoding="utf-8")
    read_delivered(source, [0])
    with pytest.raises(ChangedError, match=r"0\.txt"):
        source.check_unchanged()
    with pytest.raises(ChangedError, match=r"0\.txt"):
        pickle.loads(text)


def test_a_pickled_text_holds_names_only(tmp_path: Path) -> None:
    source = opened(tmp_path, LINES * 5_000)
    text = pickle.dumps(source)
    assert len(text) < 5_000
    copy = pickle.loads(text)
    assert (copy.vocab, copy.fingerprint(), copy.facts()) == (source.vocab, source.fingerprint(), source.facts())
