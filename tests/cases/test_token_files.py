"""Odd token files, each with the outcome it must have; real shards as published.

The files lie in ``shared/cases/odd`` beside the checkout and are listed in ``EXPECT.json``. What version control cannot
keep (links, empty folders, mode 000) is made here.

White box: which files a source has, and in which order, is read from its blobs.
"""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.tokens import TokenShards
from tests.contract.sources import read_delivered
from tests.support import programs

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
ODD = SHARED / "cases" / "odd"
KINDS = ("npy", "raw", "llmc", "dir")
DTYPES = {"u2": "uint16", "u4": "uint32"}

pytestmark = pytest.mark.skipif(not ODD.is_dir(), reason="shared/cases is not beside the checkout")


def cases() -> list[Any]:
    if not ODD.is_dir():
        return [pytest.param(None, id="cases")]
    rows = json.loads((ODD / "EXPECT.json").read_text(encoding="utf-8"))
    return [pytest.param(row, id=f"{row['kind']}:{row['file']}") for row in rows if row["kind"] in KINDS]


def open_case(row: dict[str, Any], path: Path) -> TokenShards:
    options = row["opts"]
    target = path / options["glob"] if "glob" in options and row["file"] != "dir/does_not_exist" else path
    dtype = options.get("dtype")
    return TokenShards.open(
        str(target),
        # One token and its target: every token but the last of a shard is an input, so that all can be read back.
        seq_len=options.get("seq_len", 1),
        file_format={"dir": "npy"}.get(row["kind"], row["kind"]),
        dtype=DTYPES[dtype] if dtype else None,
        vocab_size=options.get("vocab_size"),
    )


def prepare(row: dict[str, Any], folder: Path) -> Path:
    path = ODD / row["file"]
    if row["file"] == "dir/nothing":
        (folder / "nothing").mkdir()
        return folder / "nothing"
    if row["file"] == "dir/symlink":
        (folder / "a.npy").symlink_to(ODD / "dir" / "symlink_store" / "real.npy")
        return folder
    return path


def all_tokens(source: TokenShards) -> np.ndarray:
    batch = read_delivered(source, np.arange(len(source)))
    shards = np.split(np.arange(len(source)), np.cumsum(source.windows_per_shard)[:-1])
    return np.concatenate([np.append(batch["input"][at, 0], batch["target"][at[-1], 0]) for at in shards])


def read_whole(row: dict[str, Any], path: Path) -> None:
    source = open_case(row, path)
    read_delivered(source, np.arange(len(source)))


def require_value(row: dict[str, Any], source: TokenShards) -> None:
    want = row["want"]
    if "windows" in want:
        assert len(source) == want["windows"]
        last = read_delivered(source, [len(source) - 1])
        assert last["input"][0, [0, -1]].tolist() == want["last_x"]
        assert last["target"][0, [0, -1]].tolist() == want["last_y"]
        return
    found = all_tokens(source)
    assert len(found) == source.total_tokens == want["n"]
    if "first" in want:
        assert [int(found[0]), int(found[-1]), int(found.sum())] == [want["first"], want["last"], want["sum"]]
        assert hashlib.sha256(found.astype("<i8").tobytes()).hexdigest() == want["sha"]
    names = [Path(name).name for name in source._blobs.names]
    if "files" in want:
        assert names == want["files"] or len(names) == want["files"]


@pytest.fixture(autouse=True)
def no_canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yield
    assert list(Path.cwd().iterdir()) == []
    assert list(ROOT.glob("PWNED_*")) == []


@pytest.mark.parametrize("row", cases())
def test_an_odd_file_has_the_outcome_it_must_have(
    row: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, open_folder: Path
) -> None:
    if row["file"] == "dir/unreadable":
        require_refusal_without_root(open_folder)
        return
    path = prepare(row, tmp_path)
    if row["outcome"] == "error":
        with pytest.raises(SourceError) as caught:
            read_whole(row, path)
        text = str(caught.value)
        assert any(says in text for says in row["says"]), text
        assert row["kind"] == "dir" or str(path) in text
        return
    source = open_case(row, path)
    if row["file"] == "dir/short_shard":
        assert {"windows_per_shard": source.windows_per_shard.tolist()} in row["want"]["one_of"]
        assert "part-1.npy" in caplog.text
    elif row["file"] == "dir/order":
        require_value({"want": row["want"]["one_of"][0]["by_name"]}, source)
    else:
        require_value(row, source)
    if row["file"] == "npy/trailing.npy":
        assert "37 surplus bytes" in caplog.text


def require_refusal_without_root(folder: Path) -> None:
    """Mode 000 means nothing to root, so the case runs in a process that gives root up, in a folder open to all."""
    script = (
        "import os, sys\n"
        "from flodl_pipe.errors import SourceError\n"
        "from flodl_pipe.sources.tokens import TokenShards\n"
        "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: TokenShards.open(sys.argv[1], seq_len=1, file_format='npy')\n"
        "except SourceError as error: print(error)\n"
    )
    for file in ("a.npy", "b.npy"):
        (folder / file).write_bytes((ODD / "dir" / "unreadable" / file).read_bytes())
    (folder / "b.npy").chmod(0)
    text = programs.run(["-c", script, folder], check=True).stdout
    assert "Permission denied" in text
    assert "b.npy" in text


def test_a_folder_is_read_like_its_pattern() -> None:
    mixed = TokenShards.open(str(ODD / "dir" / "mixed"), seq_len=1, file_format="npy")
    assert [Path(name).name for name in mixed._blobs.names] == ["part-0.npy", "part-1.npy"]
    foreign = {fact.name: fact.value for fact in mixed.facts()}["not token files"]
    assert foreign == "README.md, _SUCCESS, part-0.csv.gz, part-1.npy.crc, part-2.npy.tmp and 1 more"


@pytest.mark.parametrize("file_format", ["auto", "raw"])
def test_a_published_olmo_shard_is_raw(file_format: str) -> None:
    path = SHARED / "data" / "olmocore_sample-tokens.npy"
    source = TokenShards.open(str(path), seq_len=1024, file_format=file_format, dtype="uint16")
    assert read_delivered(source, [0])["input"][0, :5].tolist() == [2014, 3600, 1713, 14755, 35652]
    assert source.total_tokens == path.stat().st_size // 2
    with pytest.raises(SourceError, match="format=raw"):
        TokenShards.open(str(path), seq_len=1024, file_format="npy")


def test_a_prefix_of_a_raw_shard_is_valid(tmp_path: Path) -> None:
    whole = (SHARED / "data" / "olmocore_sample-tokens.npy").read_bytes()
    (tmp_path / "prefix.npy").write_bytes(whole[:10_000])
    source = TokenShards.open(str(tmp_path), seq_len=16, dtype="uint16")
    assert source.total_tokens == 5_000


def test_a_published_npy_shard_is_int64(caplog: pytest.LogCaptureFixture) -> None:
    path = SHARED / "data" / "olmo_random_data_80a52a88.npy"
    with caplog.at_level(logging.WARNING):
        source = TokenShards.open(str(path), seq_len=64)
    assert source.spec.fields[0].dtype == "int64"
    wanted = np.load(path)
    found = read_delivered(source, np.arange(len(source)))["input"].reshape(-1)
    np.testing.assert_array_equal(found, wanted[: len(found)])
    assert not caplog.records
