"""Where a text comes from: its path, the user's default folder, or the sample."""

from pathlib import Path

import pytest

from flodl_pipe.config.source_text import TextConfig
from flodl_pipe.errors import SourceError
from flodl_pipe.sources import sample_text as sample
from flodl_pipe.sources.build_text import build_text
from flodl_pipe.sources.text import Text
from tests.sources.test_tokens import facts


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLODL_PIPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def config(**keys: object) -> TextConfig:
    return TextConfig(**{"seq_len": 4, "split": "all", **keys})


def test_the_default_folder_gives_its_input_txt_or_all_its_texts(tmp_path: Path) -> None:
    folder = tmp_path / "shakespeare"
    folder.mkdir()
    (folder / "b.txt").write_text("bbbbb")
    (folder / "a.txt").write_text("aaaaa")
    assert facts(build_text(config(), str(tmp_path)))["text"] == "10 characters, vocabulary of 2"
    (folder / "input.txt").write_text("First Citizen")
    assert build_text(config(), str(tmp_path)).decode([0, 1]) == " C"


def test_without_a_folder_if_missing_decides(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(SourceError, match=r"source\.path is not set and .*shakespeare does not exist"):
        build_text(config(), str(tmp_path))
    assert not cache.exists()
    source = build_text(config(if_missing="sample"), str(tmp_path))
    told = facts(source)
    assert "standard library as text, not Shakespeare" in told["sample data"]
    assert Path(told["files"].split("first ")[1]).is_relative_to(cache)
    with pytest.raises(SourceError, match="does not exist"):
        build_text(config(if_missing="sample", path=str(tmp_path / "none.txt")), str(tmp_path))


def test_every_key_reaches_the_source(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("0123456789" * 10)
    path = str(tmp_path / "t.txt")
    source = build_text(config(path=path, split="val", train_fraction=0.8, stride=4, tail="keep"), "")
    assert (source.held_bytes, len(source)) == (20, 5)
    assert source.spec.names == ("tokens", "num_tokens")
    drawn = build_text(config(path=path, starts="random"), "")
    assert (len(drawn), drawn.ordering.num_picks) == (96, 24)


def test_the_sample_is_whole_lines_of_utf8_and_the_same_every_time(cache: Path) -> None:
    path = sample.sample_text()
    content = path.read_bytes()
    assert path.name == "input.txt"
    assert 900_000 < len(content) <= sample.MAX_BYTES
    assert content.endswith(b"\n")
    assert len(content.decode()) == num_characters(path)
    path.write_bytes(content[:-1])
    assert sample.sample_text().read_bytes() == content


@pytest.mark.parametrize("less", [0, 1])
def test_the_sample_is_cut_where_the_sources_are_longer(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, less: int
) -> None:
    lines = [b"number = %d\n" % number for number in range(9000)]
    (tmp_path / "numbers.py").write_bytes(b"".join(lines) + b"end")
    monkeypatch.setattr(sample.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(sample, "MAX_BYTES", len(b"".join(lines)) + 3 - less)
    content = sample.sample_text().read_bytes()
    assert content == b"".join(lines) + (b"" if less else b"end")


def num_characters(path: Path) -> int:
    return Text.open(str(path), seq_len=4, split="all").held_bytes


def test_an_installation_without_sources_is_an_error(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample.sysconfig, "get_path", lambda name: str(tmp_path / "nothing"))
    with pytest.raises(SourceError, match=r"holds 0 bytes of Python sources.*set source\.path"):
        sample.sample_text()
    assert not list(cache.glob("sample_text*"))
