"""A config's section ``source`` of kind ``stream`` becomes the stream it describes."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flodl_pipe.config.source_stream import StreamConfig
from flodl_pipe.errors import ConfigError, SourceError
from flodl_pipe.sources.build_stream import build_stream
from tests.contract.streams import read_lane


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("FLODL_PIPE_CACHE", str(tmp_path / "cache"))


def test_every_key_reaches_the_stream(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.data").write_text(json.dumps({"body": "some words"}) + "\n")
    config = StreamConfig(
        path=str(tmp_path / "*.data"),
        format="jsonl",
        text_key="body",
        seq_len=4,
        tail="keep",
        shuffle_buffer=6,
        lanes=3,
    )
    stream = build_stream(config, "")
    assert stream.spec.names == ("tokens", "num_tokens")
    assert stream.tag.startswith("text/1 lanes=3 block=2 ")
    assert stream.delivered.names == config.field_names()
    assert len(read_lane(stream, 0)["tokens"]) == 6


def test_documents_are_what_the_config_says(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\nthree\n")
    config = StreamConfig(path=str(tmp_path / "a.txt"), rows="documents", max_length=6)
    stream = build_stream(config, "")
    assert read_lane(stream, 0, shuffle=False)["num_tokens"].tolist() == [4, 6]
    assert stream.delivered.names == config.field_names() == ("input_ids",)
    assert stream.delivered.is_ragged


def test_a_tokenizer_comes_from_a_module_that_is_allowed(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "streamtok.py").write_text("def encode(text):\n    return [len(text)] * 3\n")
    (tmp_path / "a.txt").write_text("four\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = StreamConfig(path=str(tmp_path / "a.txt"), encode="streamtok:encode", vocab_size=5, seq_len=2)
    with pytest.raises(ConfigError, match=r"source\.encode.*allow_import"):
        build_stream(config, "")
    stream = build_stream(config, "", ["streamtok"])
    assert read_lane(stream, 0)["tokens"].tolist() == [[4, 4, 4]]
    assert "streamtok:encode" in stream.fingerprint().summary


def test_the_users_folder_goes_before_the_sample(tmp_path: Path) -> None:
    (tmp_path / "stream").mkdir()
    (tmp_path / "stream" / "a.txt").write_text("mine\n")
    stream = build_stream(StreamConfig(seq_len=2, if_missing="sample"), str(tmp_path))
    assert not (tmp_path / "cache").exists()
    assert stream.num_lanes == 1


def test_the_sample_is_text_in_json_lines(tmp_path: Path) -> None:
    stream = build_stream(StreamConfig(seq_len=512, if_missing="sample"), str(tmp_path))
    files = sorted((tmp_path / "cache").rglob("*.jsonl.gz"))
    assert len(files) == stream.num_lanes == 8
    documents = [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    assert {"path", "text"} == set(documents[0])
    wanted = sum(len(one["text"].encode()) + 1 for one in documents if one["text"])
    counted = sum(stream.count_lane(lane, seed=0, epoch=0, shuffle=False) for lane in range(8))
    assert 0 <= wanted - counted * 512 <= 8 * 513
    assert stream.num_samples_estimate == pytest.approx(counted, rel=0.05)
    assert stream.facts()[0].name == "sample data"


def test_no_path_and_no_folder_is_an_error_unless_a_sample_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"source\.path is not set and .*stream does not exist"):
        build_stream(StreamConfig(seq_len=2), str(tmp_path))
    with pytest.raises(SourceError, match=r"source\.text_key is 'body'"):
        build_stream(StreamConfig(seq_len=2, if_missing="sample", text_key="body"), str(tmp_path))


def test_the_sample_of_lines_is_short_lines_of_text(tmp_path: Path) -> None:
    config = StreamConfig(rows="documents", max_length=256, if_missing="sample", format="lines")
    stream = build_stream(config, str(tmp_path))
    files = sorted((tmp_path / "cache").rglob("*.txt"))
    assert len(files) == stream.num_lanes == 8
    lines = [line for file in files for line in file.read_bytes().splitlines()]
    assert 0 < min(map(len, lines)) <= max(map(len, lines)) < 256
    counted = sum(stream.count_lane(lane, seed=0, epoch=0, shuffle=False) for lane in range(8))
    assert counted == len(lines) > 10_000
    assert stream.num_samples_estimate == pytest.approx(counted, rel=0.1)
    assert stream.facts()[0].name == "sample data"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "must be set, the tokens of a window, got null; or set rows: documents"),
        ({"seq_len": 0}, "seq_len"),
        ({"seq_len": 2, "format": "csv"}, "format"),
        ({"seq_len": 2, "rows": "lines"}, "rows"),
        ({"seq_len": 2, "max_length": 2}, "must be null where rows are windows, got 2"),
        ({"rows": "documents"}, "must be set where rows are documents, got null"),
        ({"rows": "documents", "max_length": 0}, "max_length"),
        ({"rows": "documents", "max_length": 2, "seq_len": 2}, "must be null where rows are documents, got 2"),
        ({"rows": "documents", "max_length": 2, "tail": "keep"}, "every document is whole"),
        ({"seq_len": 2, "text_key": ""}, "text_key"),
        ({"seq_len": 2, "encode": "mypkg.text.encode"}, r"Did you mean 'mypkg\.text:encode'"),
        ({"seq_len": 2, "encode": "os.system('x')"}, "must be MODULE:CALLABLE"),
        ({"seq_len": 2, "vocab_size": 256}, "must be at least 257 for text as bytes"),
        ({"seq_len": 2, "encode": "m:f", "vocab_size": 2**32 + 1}, "vocab_size"),
        ({"seq_len": 2, "lanes": 0}, "lanes"),
        ({"seq_len": 2, "shuffle_buffer": 0}, "shuffle_buffer"),
        ({"seq_len": 2, "subset": {"range": [0, 1]}}, "must be null for a stream"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        StreamConfig(**settings)
