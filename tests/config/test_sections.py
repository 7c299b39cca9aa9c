"""The sections as Python users build them."""

import re

import pytest
from pydantic import ValidationError

from flodl_pipe.config.job import RunJob
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.config.reports import ReportsConfig
from flodl_pipe.config.root import Config, EngineConfig
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.config.source_mixture import MixtureConfig
from flodl_pipe.config.source_records import RecordField, RecordsConfig
from flodl_pipe.config.source_stream import StreamConfig
from flodl_pipe.config.source_tokens import TokenShardsConfig

FIELDS = {"label": RecordField(offset=0, dtype="|u1"), "image": RecordField(offset=1, dtype="u1", shape=[3, 4])}


def test_defaults_are_those_documented():
    loader = LoaderConfig(batch_size=32)
    assert (loader.mode, loader.prefetch, loader.readers, loader.vram_max_usage) == ("auto", "auto", "auto", 0.9)
    assert (SamplingConfig().seed, SamplingConfig().shuffle, SamplingConfig().drop_last) == (42, True, True)
    tokens = TokenShardsConfig(seq_len=8)
    assert (tokens.path, tokens.if_missing, tokens.format, tokens.tail) == (None, "error", "auto", "drop")
    assert ReportsConfig().progress == "auto"
    assert RunJob().epochs == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"batch_size": 0}, "greater than or equal to 1"),
        ({"device": "cudda"}, r"cuda:1, got 'cudda'; did you mean 'cuda'"),
        ({"mode": "fast"}, "'auto', 'resident' or 'streaming'"),
        ({"prefetch": 0}, "must be 'auto' or an integer at least 1, got 0"),
        ({"prefetch": True}, "got true"),
        ({"readers": 257}, "from 0 to 256, got 257"),
        ({"readers": "many"}, "got 'many'"),
        ({"vram_max_usage": 80}, r"must be from 0.5 to 0.99, got 80 \(did you mean 0.8\?\)"),
        ({"vram_max_usage": 0.3}, "got 0.3$"),
        ({"ram_max_usage": 0.95}, "from 0 to 0.9, got 0.95"),
        ({"ram_max_usage": float("nan")}, "got nan"),
        ({"names": []}, "at least one non-empty name"),
        ({"names": ["a", ""]}, "non-empty"),
        ({"names": "ab"}, r"must be a list .*, got 'ab'; one name is \['ab'\]"),
        ({"names": ["a", "b", "a"]}, "must be unique, got 'a' more than once"),
    ],
)
def test_loader_refuses(keys, message):
    with pytest.raises(ValidationError) as caught:
        LoaderConfig(**{"batch_size": 1, **keys})
    (error,) = caught.value.errors()
    assert re.search(message, error["msg"]), error["msg"]


def test_loader_takes_both_forms_of_a_knob():
    loader = LoaderConfig(batch_size=1e3, prefetch=2, readers=0, names=["x", "y"])
    assert (loader.batch_size, loader.prefetch, loader.readers, loader.names) == (1000, 2, 0, ["x", "y"])


@pytest.mark.parametrize("value", [True, False, "pad"])
def test_drop_last_takes(value):
    assert SamplingConfig(drop_last=value).drop_last is value or value == "pad"


@pytest.mark.parametrize("value", ["padd", 1, 0, None])
def test_drop_last_refuses(value):
    with pytest.raises(ValidationError, match="must be true, false or 'pad'"):
        SamplingConfig(drop_last=value)


def test_raw_files_need_a_dtype_unless_the_sample_is_made():
    with pytest.raises(ValidationError, match="must be set when format is 'raw', got null"):
        TokenShardsConfig(seq_len=8, format="raw", path="x.bin", if_missing="sample")
    with pytest.raises(ValidationError, match="must be set when format is 'raw'"):
        TokenShardsConfig(seq_len=8, format="raw")
    assert TokenShardsConfig(seq_len=8, format="raw", if_missing="sample").dtype is None
    assert TokenShardsConfig(seq_len=8, format="npy", dtype="<u2", path="x").dtype == "uint16"


def test_samples_that_cannot_be_read_raise_or_are_skipped_up_to_a_number():
    assert (TokenShardsConfig(seq_len=8).on_error, TokenShardsConfig(seq_len=8).max_skipped) == ("raise", 100)
    skipping = TokenShardsConfig(seq_len=8, on_error="skip", max_skipped=3)
    assert (skipping.max_skipped, skipping.notes()) == (3, ())
    assert TokenShardsConfig(seq_len=8, max_skipped=3).notes() == (
        ("max_skipped", "3, no effect: source.on_error is raise"),
    )
    for values in ({"on_error": "ignore"}, {"max_skipped": 0}, {"max_skipped": 2.5}, {"max_skipped": True}):
        with pytest.raises(ValidationError):
            TokenShardsConfig(seq_len=8, **values)


def test_streams_skip_nothing_and_parts_leave_it_to_their_mixture():
    with pytest.raises(ValidationError, match="must be raise for a stream, got skip: where a sample cannot be read"):
        StreamConfig(seq_len=8, on_error="skip")
    parts = {"a": {"source": {"kind": "token_shards", "seq_len": 8}, "weight": 1}}
    assert MixtureConfig(parts=parts, on_error="skip").on_error == "skip"
    parts["a"]["source"]["on_error"] = "skip"
    for outer in ("raise", "skip"):
        with pytest.raises(ValidationError, match="must be raise in a part, got skip: the mixture's own"):
            MixtureConfig(parts=parts, on_error=outer)
    parts["a"]["source"].update(on_error="raise", max_skipped=5)
    with pytest.raises(ValidationError, match="has no effect in a part"):
        MixtureConfig(parts=parts)


def test_records_fields_lie_inside_the_record():
    records = RecordsConfig(path="a.bin", record_bytes=13, fields=FIELDS)
    assert [field.num_bytes for field in records.fields.values()] == [1, 12]
    with pytest.raises(ValidationError, match=r"ends at byte 13 .*record_bytes=12"):
        RecordsConfig(path="a.bin", record_bytes=12, fields=FIELDS)
    with pytest.raises(ValidationError, match="at least 1"):
        RecordsConfig(path="a.bin", record_bytes=12, fields={})
    with pytest.raises(ValidationError, match=r"'a\.b' is not a field name"):
        RecordsConfig(path="a.bin", record_bytes=12, fields={"a.b": FIELDS["label"]})


@pytest.mark.parametrize("dtype", ["U16", "object", "complex64", "float128", ">f4", "datetime64[s]"])
def test_records_take_plain_numbers_only(dtype):
    with pytest.raises(ValidationError, match="is not an accepted dtype"):
        RecordField(offset=0, dtype=dtype)


def test_save_every_steps_needs_save():
    with pytest.raises(ValidationError, match="save_every_steps=5 needs save"):
        RunJob(save_every_steps=5)
    assert RunJob(save_every_steps=5, save="c.json").save.endswith("/c.json")


def test_names_fit_the_sources_fields():
    tokens = TokenShardsConfig(seq_len=8)
    assert Config(source=tokens, loader=LoaderConfig(batch_size=1, names=["x", "y"])).loader.names == ["x", "y"]
    with pytest.raises(ValidationError, match=r"2 fields of source kind 'token_shards' \(input, target\), got 1: x"):
        Config(source=tokens, loader=LoaderConfig(batch_size=1, names=["x"]))
    records = RecordsConfig(path="a.bin", record_bytes=13, fields=FIELDS)
    with pytest.raises(ValidationError, match=r"\(label, image\), got 3"):
        Config(source=records, loader=LoaderConfig(batch_size=1, names=["x", "y", "z"]))


def test_the_engine_is_pinned():
    assert EngineConfig().target == "flodl_pipe.pipeline.build_loader"
    with pytest.raises(ValidationError, match=r"flodl_pipe\.pipeline\.build_loader"):
        EngineConfig(target="os.system")


def test_a_config_survives_json():
    config = Config(source=TokenShardsConfig(seq_len=8), loader=LoaderConfig(batch_size=1))
    assert Config.model_validate_json(config.model_dump_json(by_alias=True), strict=True) == config
