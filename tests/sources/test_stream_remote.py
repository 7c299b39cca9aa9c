"""Text streams over HTTP: the same rows as from local files, in a few large reads."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.text_stream import TextStream
from tests.contract.streams import read_lane, require_equal, take
from tests.storage.servers import nginx, requests_of

NAMES = ("a.txt", "b.txt.gz", "c.jsonl")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: Any) -> Iterator[tuple[Path, str, Path]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    root, server = tmp_path / "root", tmp_path / "server"
    root.mkdir()
    server.mkdir()
    lines = "".join(f"line {number} of text\n" for number in range(30_000)).encode()
    (root / "a.txt").write_bytes(lines)
    (root / "b.txt.gz").write_bytes(gzip.compress(lines))
    (root / "c.jsonl").write_bytes(b'{"text": "some words"}\n' * 9_000)
    with nginx(root, server) as address:
        yield root, address, server


def test_remote_text_gives_the_rows_of_local_text(site: tuple[Path, str, Path]) -> None:
    root, address, server = site
    near = TextStream.open([str(root / name) for name in NAMES], seq_len=64)
    far = TextStream.open([f"{address}/{name}?signed=secret" for name in NAMES], seq_len=64)
    assert far.fingerprint() == near.fingerprint()
    before = len(requests_of(server))
    for lane in range(3):
        require_equal(read_lane(far, lane, portion=50), read_lane(near, lane, portion=50))
        reader = far.open_lane(lane, seed=7, epoch=0, shuffle=True)
        take(reader, far, 500)
        wanted = read_lane(near, lane, portion=50, mark=reader.mark())
        require_equal(read_lane(far, lane, portion=50, mark=reader.mark()), wanted)
    assert len(requests_of(server)) - before < 30
    assert not any("secret" in str(fact) for fact in far.facts())


def test_damage_names_the_address_and_the_byte(site: tuple[Path, str, Path]) -> None:
    root, address, _ = site
    (root / "bad.txt").write_bytes(b"text " * 10 + b"\xff\n")
    with pytest.raises(SourceError, match=r"http://.*/bad\.txt, byte 50: 0xff is not valid UTF-8"):
        TextStream.open(f"{address}/bad.txt", seq_len=4)
