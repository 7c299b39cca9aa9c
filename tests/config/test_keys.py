import pytest

from flodl_pipe.config.keys import children, did_you_mean, dotted, elsewhere, key_names, locate, parse_key
from flodl_pipe.config.root import Config
from flodl_pipe.config.source_records import RecordField
from flodl_pipe.config.source_tokens import TokenShardsConfig


@pytest.mark.parametrize(
    ("loc", "key", "owner"),
    [
        (("source", "token_shards", "pathz"), ("source", "pathz"), TokenShardsConfig),
        (("source", "records", "fields", "image", "ofset"), ("source", "fields", "image", "ofset"), RecordField),
        (("source", "records", "fields", "records"), ("source", "fields", "records"), None),
        (("source", "records", "fields", "image", "[key]"), ("source", "fields", "image"), None),
        (("source", "token_shards", "path", 0), ("source", "path", 0), None),
        (("sed",), ("sed",), Config),
    ],
)
def test_a_location_loses_its_kinds_and_nothing_else(loc, key, owner):
    assert locate(Config, loc) == (key, owner)


def test_keys_are_spelled_as_in_yaml():
    assert "engine" in key_names(Config)
    assert key_names(children(Config, "engine")[0]) == ["_target_"]
    assert {model.__name__ for model in children(Config, "job")} == {
        *("RunJob", "PlanJob", "SchemaJob", "FetchJob", "DigestJob", "VerifyJob", "LaunchJob")
    }


def test_dotted_and_parse_are_inverse():
    for key in (("a", "b", 0, "c"), ("a",), ()):
        assert parse_key(dotted(key)) == key


def test_the_closest_option_is_suggested_or_none():
    assert did_you_mean("readrs", ["readers", "mode"]) == " Did you mean 'readers'?"
    assert did_you_mean("zzz", ["readers", "mode"]) == ""


def test_a_key_of_another_section_is_found():
    assert elsewhere(Config, "seed") == " Did you mean 'sampling.seed'?"
    assert elsewhere(Config, "sed") == ""
    assert elsewhere(Config, "sed", cutoff=0.75) == " Did you mean 'sampling.seed'?"
    assert elsewhere(Config, "kind") == ""
