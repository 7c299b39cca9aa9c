"""Megatron's ``.bin`` and ``.idx``: written here by hand, read as shards, refused in words where they do not fit.

White box: the parts that an index is checked in are made small.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.sources import megatron
from flodl_pipe.sources.tokens import TokenShards
from tests.contract.sources import SourceContract, read_delivered, read_stored
from tests.sources.test_tokens import facts, window

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
T = 16


def index_bytes(lengths: list[int], dtype: str, *, entries: list[int] | None = None, **changes: bytes) -> bytes:
    """Lay an index out field by field."""
    width = np.dtype(dtype).itemsize
    begins = [sum(lengths[:at]) * width for at in range(len(lengths))]
    entries = [*range(len(lengths) + 1)] if entries is None else entries
    parts = {
        "magic": b"MMIDIDX\x00\x00",
        "version": struct.pack("<Q", 1),
        "code": struct.pack("<B", CODES.get(dtype, 0)),
        "sequences": struct.pack("<Q", len(lengths)),
        "documents": struct.pack("<Q", len(entries)),
        "sizes": struct.pack(f"<{len(lengths)}i", *lengths),
        "pointers": struct.pack(f"<{len(begins)}q", *begins),
        "index": struct.pack(f"<{len(entries)}q", *entries),
        "surplus": b"",
    }
    return b"".join({**parts, **changes}.values())


def write_set(folder: Path, name: str, dtype: str = "uint16", sizes: tuple[int, ...] = (40, 3, 0, 90)) -> np.ndarray:
    folder.mkdir(exist_ok=True)
    tokens = np.random.default_rng(len(name)).integers(0, 120, sum(sizes)).astype(dtype)
    (folder / f"{name}.bin").write_bytes(tokens.tobytes())
    (folder / f"{name}.idx").write_bytes(index_bytes(list(sizes), dtype))
    return tokens


def open_set(path: Path | str, **options: Any) -> TokenShards:
    return TokenShards.open(str(path), **{"seq_len": T, "file_format": "megatron", **options})


class TestMegatron(SourceContract):
    tokens: list[np.ndarray]

    def make_source(self, folder: Path) -> TokenShards:
        self.tokens = [
            write_set(folder / "sets", "a", sizes=(400, 7, 0, 90)),
            write_set(folder / "sets", "b", sizes=(5, 200)),
        ]
        return open_set(folder / "sets")

    def expected(self, source: TokenShards, index: int) -> dict[str, Any]:
        return window(self.tokens, index, T, T, keep=False)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
def test_ids_are_read_in_the_type_that_the_index_says(tmp_path: Path, dtype: str) -> None:
    tokens = write_set(tmp_path, "corpus", dtype)
    source = open_set(tmp_path / "corpus.bin")
    assert source.spec.fields[0].dtype == dtype
    assert source.total_tokens == 133
    np.testing.assert_array_equal(read_delivered(source, np.arange(8))["input"].reshape(-1), tokens[:128])


def test_the_uint32_of_descendants_is_read(tmp_path: Path) -> None:
    ids = np.arange(2**31, 2**31 + 40, dtype="<u4")
    ids.tofile(tmp_path / "a.bin")
    (tmp_path / "a.idx").write_bytes(index_bytes([40], "uint32", code=b"\x09"))
    assert read_delivered(open_set(tmp_path / "a.bin"), [0])["target"][0, 0] == 2**31 + 1


@pytest.mark.parametrize("spelling", ["corpus", "corpus.bin", "", "c*.bin"])
def test_a_prefix_a_file_a_folder_and_a_pattern_name_a_set(tmp_path: Path, spelling: str) -> None:
    write_set(tmp_path / "d", "corpus")
    (tmp_path / "d" / "notes.txt").touch()
    source = open_set(tmp_path / "d" / spelling if spelling else tmp_path / "d")
    told = facts(source)
    assert told["files"] == f"1 (megatron), first {tmp_path}/d/corpus.bin"
    assert told["sequences"] == "4; windows run over their bounds"
    assert told.get("not token files") == (None if spelling else "notes.txt")


def test_several_sets_are_shards_of_one_source(tmp_path: Path) -> None:
    write_set(tmp_path, "a")
    write_set(tmp_path, "b", sizes=(50,))
    paths = [f"{tmp_path}/b", f"{tmp_path}/a.bin"]
    source = TokenShards.open(paths, seq_len=T, file_format="megatron")
    assert source.windows_per_shard.tolist() == [3, 8]
    write_set(tmp_path, "c", dtype="int32")
    with pytest.raises(SourceError, match=r"c\.bin: holds int32, but .*b\.bin holds uint16"):
        TokenShards.open([*paths, f"{tmp_path}/c"], seq_len=T, file_format="megatron")


def test_auto_knows_a_set_by_its_index(tmp_path: Path) -> None:
    tokens = write_set(tmp_path, "a", dtype="int32")
    np.arange(60, dtype="<i4").tofile(tmp_path / "b.bin")
    (tmp_path / "b.idx").write_bytes(b"some other index")
    source = open_set(tmp_path, file_format="auto", dtype="int32")
    assert "2 (megatron, raw)" in facts(source)["files"]
    assert facts(source)["not token files"] == "b.idx"
    np.testing.assert_array_equal(read_stored(source, [0])["tokens"][0], tokens[:17])
    with pytest.raises(SourceError, match=r"a\.bin: holds int32, but source\.dtype says uint16"):
        open_set(tmp_path / "a.bin", file_format="auto", dtype="uint16")
    with pytest.raises(SourceError, match=r"b\.bin.*nor a Megatron \.idx beside it.*set source\.dtype"):
        open_set(tmp_path / "b.bin", file_format="auto")


def test_an_index_is_checked_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    write_set(tmp_path, "a", sizes=tuple(sizes))
    whole = read_stored(open_set(tmp_path / "a"), [0, 1])["tokens"]
    for chunk in (1, 2, 3, 11):
        monkeypatch.setattr(megatron, "_CHUNK", chunk)
        np.testing.assert_array_equal(read_stored(open_set(tmp_path / "a"), [0, 1])["tokens"], whole)
        (tmp_path / "a.idx").write_bytes(index_bytes(sizes, "uint16", entries=[0, 4, 5, 4, 11]))
        with pytest.raises(SourceError, match="document 3 begins at sequence 4"):
            open_set(tmp_path / "a")
        (tmp_path / "a.idx").write_bytes(index_bytes(sizes, "uint16"))


def two(**changes: bytes) -> Callable[[], bytes]:
    return lambda: index_bytes([40, 60], "uint16", **changes)


GOOD = index_bytes([40, 60], "uint16")
DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", r"no Megatron index: it begins b''"),
    "magic": (two(magic=b"MMIDIDY\x00\x00"), r"no Megatron index: it begins b'MMIDIDY"),
    "old": (lambda: b"TNTIDX\x00\x00" + GOOD[9:], r"a TNTIDX index.*is not read; write the data set again"),
    "cut_magic": (lambda: GOOD[:5], r"truncated in its header: expected 34 bytes, found 5"),
    "cut_header": (lambda: GOOD[:33], r"truncated in its header: expected 34 bytes, found 33"),
    "version": (two(version=struct.pack("<Q", 2)), r"byte 9: version 2; only version 1"),
    "code_0": (two(code=b"\x00"), r"byte 17: dtype code 0 is unknown; read are 1 uint8, 4 int32"),
    "float32": (two(code=b"\x07"), r"byte 17: its \.bin holds float32, and token ids are integers"),
    "float64": (two(code=b"\x06"), r"holds float64, and token ids"),
    "int8": (two(code=b"\x02"), r"holds int8, which is not read; if no id is negative.*format=raw dtype=uint8"),
    "int16": (two(code=b"\x03"), r"holds int16, which is not read; if no id is negative.*dtype=uint16"),
    "uint64": (two(code=b"\x0a"), r"holds uint64, which is not read; if no id is 2\*\*63 or more.*dtype=int64"),
    "cut": (lambda: GOOD[:-1], r"truncated: its header counts 2 sequences and 3 document entries, expected 82 bytes"),
    "long": (two(surplus=b"x"), r"too long: .*expected 82 bytes, found 83"),
    "count": (two(sequences=b"\xff" * 8), r"truncated: its header counts 18,446,744,073,709,551,615 sequences"),
    "documents": (two(documents=b"\xff" * 8), r"truncated: .*and 18,446,744,073,709,551,615 document entries"),
    "fairseq": (two(documents=b"", index=b""), r"an index without documents, as fairseq.*format=raw dtype=uint16"),
    "modes": (two(surplus=b"\0\1"), r"the index of a multimodal data set: 2 bytes of modes"),
    "none": (lambda: index_bytes([], "uint16", entries=[0]), r"empty: it counts 0 sequences"),
    "no_documents": (two(documents=struct.pack("<Q", 0), index=b""), r"documents end at sequence 0, but it has 2"),
    "negative_size": (two(sizes=struct.pack("<2i", 101, -1)), r"byte 38: sequence 1 has -1 tokens, a negative number"),
    "pointer": (
        two(pointers=struct.pack("<2q", 0, 82)),
        r"byte 50: sequence 1 begins at byte 82 of the \.bin, but the tokens before it end at 80",
    ),
    "negative_pointer": (two(pointers=struct.pack("<2q", -2, 78)), r"byte 42: sequence 0 begins at byte -2"),
    "huge_size": (two(sizes=struct.pack("<2i", 40, 2**31 - 1)), r"4,294,967,374 bytes; the \.bin is truncated"),
    "first_document": (two(index=struct.pack("<3q", 1, 1, 2)), r"byte 58: document 0 begins at sequence 1; documents"),
    "descending": (two(index=struct.pack("<3q", 0, -1, 2)), r"byte 66: document 1 begins at sequence -1"),
    "last_document": (two(index=struct.pack("<3q", 0, 1, 1)), r"its documents end at sequence 1, but it has 2"),
    "beyond": (two(index=struct.pack("<3q", 0, 1, 3)), r"byte 74: document 2 begins at sequence 3"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_an_index_that_is_damaged_or_of_another_kind_is_refused(
    tmp_path: Path, content: Callable[[], bytes], message: str
) -> None:
    np.zeros(100, dtype="<u2").tofile(tmp_path / "a.bin")
    (tmp_path / "a.idx").write_bytes(content())
    with pytest.raises(SourceError, match=message) as caught:
        open_set(tmp_path / "a")
    assert str(tmp_path / "a.idx") in str(caught.value)


@pytest.mark.parametrize("bytes_of_bin", [198, 199, 202])
def test_a_bin_that_is_not_the_one_indexed_is_refused(tmp_path: Path, bytes_of_bin: int) -> None:
    (tmp_path / "a.idx").write_bytes(GOOD)
    (tmp_path / "a.bin").write_bytes(bytes(bytes_of_bin))
    says = "the .bin is truncated" if bytes_of_bin < 200 else "they differ"
    with pytest.raises(SourceError, match=rf"a\.bin: {bytes_of_bin} bytes.*100 uint16 tokens, 200 bytes; {says}"):
        open_set(tmp_path / "a")


def test_a_missing_index_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(200))
    with pytest.raises(SourceError, match=r"a\.bin: its index cannot be opened \(.*a\.idx.*format=raw and dtype"):
        open_set(tmp_path / "a")
    (tmp_path / "b.idx").write_bytes(GOOD)
    with pytest.raises(SourceError, match=r"b\.idx: is an index; give the data it belongs to, .*b\.bin"):
        open_set(tmp_path / "b.idx")
    with pytest.raises(SourceError, match=r"b does not exist"):
        open_set(tmp_path / "b")
    (tmp_path / "data").write_bytes(bytes(200))
    with pytest.raises(SourceError, match=r"a Megatron data set is NAME\.bin with NAME\.idx beside it"):
        open_set(tmp_path / "data")
