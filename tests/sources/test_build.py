"""From the section ``source`` to a source."""

from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.config.source_records import RecordsConfig
from flodl_pipe.config.source_tokens import TokenShardsConfig
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.build import build_source
from flodl_pipe.sources.records import Records
from flodl_pipe.sources.tokens import TokenShards
from tests.contract.sources import read_delivered


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_PIPE_CACHE", str(tmp_path / "cache"))


def tokens(**options: object) -> TokenShardsConfig:
    return TokenShardsConfig.model_validate({"seq_len": 16, **options})


def facts(source: TokenShards) -> dict[str, str]:
    return {fact.name: fact.value for fact in source.facts()}


def test_every_option_reaches_the_token_source(tmp_path: Path) -> None:
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "a.bin")
    config = tokens(path=str(tmp_path), format="raw", dtype="uint16", stride=8, tail="keep", vocab_size=90)
    source = build_source(config, "/nowhere")
    assert isinstance(source, TokenShards)
    assert source.spec.names == ("tokens", "num_tokens")
    assert len(source) == 12
    with pytest.raises(SourceError, match="byte 180: token id 90"):
        read_delivered(source, [11])


def test_a_list_of_paths_is_read_in_order(tmp_path: Path) -> None:
    for name, start in (("a.bin", 0), ("b.bin", 100)):
        np.arange(start, start + 17, dtype=np.uint16).tofile(tmp_path / name)
    source = build_source(tokens(path=[f"{tmp_path}/b.bin", f"{tmp_path}/a.bin"], dtype="uint16"), "/nowhere")
    assert read_delivered(source, [0, 1])["input"][:, 0].tolist() == [100, 0]


def test_records_are_built_as_declared(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"HD" + bytes(range(12)))
    config = RecordsConfig.model_validate(
        {
            "kind": "records",
            "path": str(tmp_path / "a.bin"),
            "record_bytes": 6,
            "header_bytes": 2,
            "fields": {"x": {"offset": 1, "dtype": "uint16", "shape": [2]}, "y": {"offset": 0, "dtype": "uint8"}},
        }
    )
    source = build_source(config, "/nowhere")
    assert isinstance(source, Records)
    assert str(source.delivered) == "x uint16 (2,), y uint8 ()"
    assert {n: v.tolist() for n, v in read_delivered(source, [1]).items()} == {"x": [[0x0807, 0x0A09]], "y": [6]}


def test_without_a_path_the_data_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "token_shards").mkdir()
    np.save(tmp_path / "token_shards" / "a.npy", np.arange(17, dtype=np.uint16))
    source = build_source(tokens(if_missing="sample"), str(tmp_path))
    assert len(source) == 1
    assert not (tmp_path / "cache").exists()


def test_without_data_the_error_names_the_place_and_both_remedies(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"{tmp_path}/token_shards.*source\.path.*source\.if_missing=sample"):
        build_source(tokens(), str(tmp_path))


@pytest.mark.parametrize(("file_format", "found"), [("auto", "raw"), ("raw", "raw"), ("npy", "npy")])
def test_the_sample_stands_in_and_says_so(tmp_path: Path, file_format: str, found: str) -> None:
    source = build_source(tokens(if_missing="sample", format=file_format, vocab_size=257), str(tmp_path))
    assert source.total_tokens == 4 * 2**20
    assert "standard library" in facts(source)["sample data"]
    assert f"4 ({found})" in facts(source)["files"]


def test_there_is_no_sample_in_every_format_or_type(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no sample in format llmc"):
        build_source(tokens(if_missing="sample", format="llmc"), str(tmp_path))
    with pytest.raises(SourceError, match=r"uint16 tokens, source\.dtype says int32"):
        build_source(tokens(if_missing="sample", dtype="int32"), str(tmp_path))


def test_a_given_path_that_does_not_exist_is_never_replaced_by_a_sample(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone does not exist"):
        build_source(tokens(path=str(tmp_path / "gone"), if_missing="sample"), str(tmp_path))
    assert not (tmp_path / "cache").exists()
