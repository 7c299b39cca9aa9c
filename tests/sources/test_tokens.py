"""Token shards: the right tokens in the right windows, and every refusal in words."""

import logging
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from flodl_pipe.errors import ChangedError, ConfigError, SourceError
from flodl_pipe.sources.protocol import BundledSource, Fact
from flodl_pipe.sources.tokens import TokenShards
from tests.contract.sources import SourceContract, read_delivered, read_stored

COUNTS = (1000, 17, 5, 640)
T = 16


def write_shards(folder: Path, dtype: str, *, counts: tuple[int, ...] = COUNTS, npy: bool = False) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    shards = [rng.integers(0, 250, count).astype(dtype) for count in counts]
    folder.mkdir(exist_ok=True)
    for number, shard in enumerate(shards):
        if npy:
            np.save(folder / f"s{number}.npy", shard)
        else:
            (folder / f"s{number}.bin").write_bytes(shard.tobytes())
    return shards


def window(shards: list[np.ndarray], index: int, seq_len: int, stride: int, keep: bool) -> dict[str, Any]:
    for shard in shards:
        at = 0
        while at + seq_len + 1 <= len(shard) or (
            keep and at + 1 < len(shard) and (not at or at - stride + seq_len + 1 < len(shard))
        ):
            if not index:
                run = shard[at : at + seq_len + 1].astype(np.int64)
                pairs = len(run) - 1
                fill = seq_len - pairs
                return {
                    "input": np.concatenate([run[:pairs], np.zeros(fill, np.int64)]),
                    "target": np.concatenate([run[1:], np.full(fill, -100)]),
                }
            index -= 1
            at += stride
    raise IndexError


class TokenContract(SourceContract):
    options: ClassVar[dict[str, Any]] = {}
    stride = T
    npy = False
    dtype = "uint16"
    shards: list[np.ndarray]

    def make_source(self, folder: Path) -> TokenShards:
        self.shards = write_shards(folder / "shards", self.dtype, npy=self.npy)
        raw = {} if self.npy else {"dtype": self.dtype}
        return TokenShards.open(str(folder / "shards"), seq_len=T, **raw, **self.options)

    def expected(self, source: TokenShards, index: int) -> dict[str, Any]:
        return window(self.shards, index, T, self.stride, self.options.get("tail") == "keep")


@pytest.mark.full
class TestRawShards(TokenContract):
    pass


@pytest.mark.full
class TestNpyShards(TokenContract):
    npy = True
    dtype = "int64"


class TestOneByteShards(TokenContract):
    dtype = "uint8"
    options: ClassVar[dict[str, Any]] = {"vocab_size": 250}


@pytest.mark.full
class TestCheckedVocabulary(TokenContract):
    dtype = "int32"
    options: ClassVar[dict[str, Any]] = {"vocab_size": 250}


@pytest.mark.full
class TestOverlappingWindows(TokenContract):
    stride = 5
    options: ClassVar[dict[str, Any]] = {"stride": 5}


@pytest.mark.full
class TestKeptTail(TokenContract):
    options: ClassVar[dict[str, Any]] = {"tail": "keep"}


@pytest.mark.full
class TestKeptTailOfOverlappingWindows(TokenContract):
    stride = 7
    dtype = "uint32"
    options: ClassVar[dict[str, Any]] = {"stride": 7, "tail": "keep", "vocab_size": 300}


def open_one(path: Path, **options: Any) -> TokenShards:
    return TokenShards.open(str(path), **{"seq_len": T, "dtype": "uint16", **options})


def facts(source: BundledSource) -> dict[str, str]:
    return {fact.name: fact.value for fact in source.facts()}


def test_counts_and_facts_tell_what_is_in_no_window(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_shards(tmp_path / "d", "uint16")
    (tmp_path / "d" / "part.crc").touch()
    with caplog.at_level(logging.INFO, "flodl_pipe"):
        source = open_one(tmp_path / "d", notes=(Fact("sample data", "yes"),))
    assert isinstance(source, BundledSource)
    assert (source.total_tokens, source.num_windows, len(source)) == (1662, 102, 102)
    assert source.windows_per_shard.tolist() == [62, 1, 0, 39]
    assert facts(source) == {
        "sample data": "yes",
        "not token files": "part.crc",
        "files": f"4 (raw), first {tmp_path}/d/s0.bin",
        "tokens": "1,662 uint16",
        "windows": "102 of 16 tokens, stride 16",
        "tail tokens in no window": "27",
        "shards too short for a window": f"{tmp_path}/d/s2.bin",
    }
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "part.crc" in said[0]
    assert "s2.bin" in said[1]


def test_a_long_stride_counts_what_it_skips(tmp_path: Path) -> None:
    write_shards(tmp_path, "uint16", counts=(100,))
    assert facts(open_one(tmp_path, stride=30))["tokens skipped by the stride"] == "26"


def test_stored_rows_stay_narrow(tmp_path: Path) -> None:
    write_shards(tmp_path, "uint16")
    source = open_one(tmp_path)
    assert (str(source.spec), source.spec.row_bytes) == ("tokens uint16 (17,)", 34)
    kept = open_one(tmp_path, tail="keep")
    assert kept.spec.names == ("tokens", "num_tokens")
    assert kept.extents is None
    assert kept.delivered == source.delivered


def test_a_part_window_is_padded_and_its_padding_masked(tmp_path: Path) -> None:
    np.arange(1, 21, dtype=np.uint16).tofile(tmp_path / "a.bin")
    source = open_one(tmp_path / "a.bin", tail="keep")
    assert len(source) == 2
    last = read_delivered(source, [1])
    assert last["input"][0].tolist() == [17, 18, 19, *[0] * 13]
    assert last["target"][0].tolist() == [18, 19, 20, *[-100] * 13]
    assert facts(source)["tail tokens in no window"] == "0"


def test_building_reads_headers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: counts.append(preadv(fd, views, at)) or counts[-1])
    write_shards(tmp_path, "uint16", counts=(2_000_000,) * 3)
    open_one(tmp_path)
    assert sum(counts) < 40_000


@pytest.mark.parametrize(("dtype", "bad"), [("uint16", 250), ("int32", -3), ("uint32", 2**31), ("int64", 2**40)])
@pytest.mark.parametrize("tail", ["drop", "keep"])
def test_an_id_outside_the_vocabulary_is_named_to_the_byte(tmp_path: Path, dtype: str, bad: int, tail: str) -> None:
    shards = write_shards(tmp_path, dtype)
    shards[3][40] = bad
    np.save(tmp_path / "t.npy", shards[3])
    (tmp_path / "s3.bin").write_bytes((tmp_path / "t.npy").read_bytes())
    (tmp_path / "t.npy").unlink()
    source = TokenShards.open(str(tmp_path), seq_len=T, dtype=dtype, vocab_size=250, tail=tail)
    at = 128 + 40 * np.dtype(dtype).itemsize
    says = rf"s3\.bin, byte {at}: token id {bad} is outside the vocabulary, 0 \.\. 249"
    with pytest.raises(SourceError, match=says):
        read_stored(source, np.arange(len(source)))
    with pytest.raises(SourceError, match=says):
        read_stored(source, np.arange(len(source))[::-1])
    if source.extents:
        with pytest.raises(SourceError, match=says):
            source.extents.read(0, np.empty(source.extents.num_bytes, dtype=np.uint8))
        joined = (sum(map(len, shards[:3])) + 40) * np.dtype(dtype).itemsize
        with pytest.raises(SourceError, match=says):  # a cut through the id itself
            source.extents.read(joined - 9, np.empty(10, dtype=np.uint8))
    first_shard = np.arange(source.windows_per_shard[0])
    read_stored(source, first_shard)


def test_no_shard_with_a_window_is_an_error_with_both_numbers(tmp_path: Path) -> None:
    write_shards(tmp_path, "uint16", counts=(5, 16, 9))
    with pytest.raises(SourceError, match=r"s1\.bin, has 16 tokens, and a window needs seq_len \+ 1 = 17"):
        open_one(tmp_path)


def test_shards_of_different_types_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(99, dtype=np.uint16))
    np.save(tmp_path / "b.npy", np.arange(99, dtype=np.int32))
    with pytest.raises(SourceError, match=r"b\.npy: holds int32, but .*a\.npy holds uint16"):
        TokenShards.open(str(tmp_path), seq_len=T)


def test_a_stated_type_must_agree_with_the_header(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(99, dtype=np.int64))
    with pytest.raises(SourceError, match=r"holds int64, but source\.dtype says uint16"):
        open_one(tmp_path)


def test_auto_tells_formats_apart_in_one_folder(tmp_path: Path) -> None:
    ids = np.arange(99, dtype=np.uint16)
    np.save(tmp_path / "a.npy", ids)
    ids.tofile(tmp_path / "b.npy")
    header = np.zeros(256, dtype="<i4")
    header[:3] = 20240520, 1, 99
    (tmp_path / "c.bin").write_bytes(header.tobytes() + ids.tobytes())
    source = open_one(tmp_path)
    assert "3 (llmc, npy, raw)" in facts(source)["files"]
    assert (read_stored(source, [0, 6, 12])["tokens"] == ids[:17]).all()
    with pytest.raises(SourceError, match=r"b\.npy.*set source\.dtype"):
        open_one(tmp_path, dtype=None)


def test_raw_refuses_files_that_have_a_header(tmp_path: Path) -> None:
    header = np.zeros(256, dtype="<i4")
    header[:3] = 20240520, 1, 0
    header.tofile(tmp_path / "c.bin")
    with pytest.raises(SourceError, match=r"llm\.c file with a header.*format=llmc"):
        open_one(tmp_path, file_format="raw")
    (tmp_path / "c.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(SourceError, match="Git LFS"):
        open_one(tmp_path, file_format="raw", dtype="uint8")


@pytest.mark.parametrize(
    "header", ["(" * 5000, "{" * 300, "'\\d'", "{'descr': open('PWNED_x','w')}", "[1]", "\0", "{1:2}"]
)
def test_a_damaged_header_is_an_error_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = header.encode("latin1")
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(200))
    with pytest.raises(SourceError, match=r"a\.npy.*header(?s:.*)write the file again with np\.save"):
        open_one(tmp_path)
    assert not list(Path.cwd().glob("PWNED_*"))


@pytest.mark.parametrize("shape", ["(-1,)", "(True,)", "99", "('x',)", "(1.5,)"])
def test_a_shape_that_is_no_tuple_of_sizes_is_refused(tmp_path: Path, shape: str) -> None:
    text = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(200))
    with pytest.raises(SourceError, match=r"shape.*write the file again with np\.save"):
        open_one(tmp_path)


def test_a_version_that_is_not_known_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x04\x00" + bytes(200))
    with pytest.raises(SourceError, match=r"version 4\.0 is not known; expected 1\.0 to 3\.0: write the file again"):
        open_one(tmp_path)
    header = np.zeros(256, dtype="<i4")
    header[:3] = 20240520, 2, 0
    header.tofile(tmp_path / "c.bin")
    with pytest.raises(SourceError, match=r"llm\.c header version 2; only version 1.*write the tokens again"):
        open_one(tmp_path / "c.bin")


def test_one_token_and_one_byte_are_singular(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(tmp_path / "a.npy", np.ones(1, dtype="<u2"))
    with (tmp_path / "a.npy").open("ab") as file:
        file.write(b"x")
    with pytest.raises(SourceError, match=r"a\.npy, has 1 token, and a window needs"):
        open_one(tmp_path)
    assert "1 surplus byte after the 1 token its header counts" in caplog.text
    os.truncate(tmp_path / "a.npy", 129)
    with pytest.raises(SourceError, match=r"its header counts 1 token, expected 130 bytes, found 129"):
        open_one(tmp_path)


def test_a_header_beyond_the_limit_is_not_parsed(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little") + bytes(200))
    with pytest.raises(SourceError, match=r"header of 2,147,483,648 bytes.*again with np\.save"):
        open_one(tmp_path)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"seq_len": 0}, "source.seq_len"),
        ({"stride": 0}, "source.stride"),
        ({"vocab_size": -1}, "source.vocab_size"),
        ({"tail": "wrap"}, "source.tail"),
        ({"dtype": "uint23"}, "source.dtype"),
        ({"dtype": "float32"}, "source.dtype"),
        ({"file_format": "raw", "dtype": None}, "source.dtype"),
        ({"file_format": "hdf5"}, "source.format"),
    ],
)
def test_impossible_options_are_config_errors(tmp_path: Path, options: dict[str, Any], key: str) -> None:
    write_shards(tmp_path, "uint16")
    with pytest.raises(ConfigError) as caught:
        open_one(tmp_path / "s0.bin", **options)
    assert caught.value.problems[0].key == key


@pytest.mark.parametrize("change", ["truncate", "replace", "unlink", "rewrite"])
def test_a_shard_that_changes_while_it_is_read_is_an_error_and_no_signal(tmp_path: Path, change: str) -> None:
    shards = write_shards(tmp_path, "uint16", counts=(100_000, 100_000))
    source = open_one(tmp_path)
    everything = np.arange(len(source))
    read_stored(source, everything)
    victim = tmp_path / "s1.bin"
    if change == "truncate":
        os.truncate(victim, 5_000)
    elif change == "unlink":
        victim.unlink()
    elif change == "replace":
        shards[0].tofile(tmp_path / "new")
        (tmp_path / "new").replace(victim)
    else:
        victim.write_bytes(shards[0].tobytes())
        os.utime(victim, ns=(5, 5))
    for read in (
        lambda: read_stored(source, everything),
        lambda: source.extents.read(source.extents.num_bytes - 1, np.empty(1, np.uint8)),
        source.check_unchanged,
        source.fingerprint,
    ):
        with pytest.raises(ChangedError, match=r"s1\.bin"):
            read()


def test_windows_beyond_4_gib_are_read_exactly(tmp_path: Path) -> None:
    path = tmp_path / "sparse.bin"
    with path.open("wb") as file:
        file.seek(5 * 2**30)
        file.write(np.arange(1, 18, dtype="<u4").tobytes())
    source = open_one(path, dtype="uint32")
    assert len(source) == 5 * 2**30 // 4 // 16 + 1
    found = read_delivered(source, [len(source) - 1, len(source) - 2])
    assert found["target"][0].tolist() == list(range(2, 18))
    assert found["input"][1].tolist() == [0] * 16
    assert source.extents.starts(np.array([len(source) - 1])).tolist() == [5 * 2**30]


def test_fingerprints_tell_content_and_layout_but_not_place(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "a", "uint16", counts=(50_000, 3_000))
    first = open_one(tmp_path / "a")
    write_shards(tmp_path / "b", "uint16", counts=(50_000, 3_000))
    (tmp_path / "b" / "s0.bin").rename(tmp_path / "b" / "r0.bin")
    assert open_one(tmp_path / "b").fingerprint() == first.fingerprint()
    assert first.fingerprint().summary == "token_shards: 2 shards, 53,000 tokens uint16, seq_len 16, stride 16"
    others = [
        open_one(tmp_path / "a", seq_len=8),
        open_one(tmp_path / "a", stride=8),
        open_one(tmp_path / "a", tail="keep"),
        open_one(tmp_path / "a", dtype="uint8"),
        open_one(tmp_path / "a" / "s0.bin"),
        TokenShards.open([f"{tmp_path}/a/s1.bin", f"{tmp_path}/a/s0.bin"], seq_len=T, dtype="uint16"),
    ]
    shards[0][-1] ^= 1
    (tmp_path / "b" / "r0.bin").write_bytes(shards[0].tobytes())
    others.append(open_one(tmp_path / "b"))
    assert len({source.fingerprint().digest for source in (first, *others)}) == len(others) + 1


def test_a_full_fingerprint_sees_any_byte_and_a_sampled_one_reads_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.zeros(8_000_000, dtype=np.uint8)
    ids.tofile(tmp_path / "a.bin")
    full = open_one(tmp_path, dtype="uint8").fingerprint(full=True)
    ids[1_234_567] = 1
    ids.tofile(tmp_path / "a.bin")
    source = open_one(tmp_path, dtype="uint8")
    assert source.fingerprint(full=True).digest != full.digest
    counts = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: counts.append(preadv(fd, views, at)) or counts[-1])
    source.fingerprint()
    assert sum(counts) <= 16 * 4096


@pytest.mark.full
def test_a_sampled_fingerprint_of_many_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1_600):
        (tmp_path / f"{number:05}.bin").write_bytes(number.to_bytes(2, "little") * 40)
    source = open_one(tmp_path)
    calls = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: calls.append(at) or preadv(fd, views, at))
    source.fingerprint()
    assert 700 < len(calls) < 1_400
