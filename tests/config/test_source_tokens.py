"""Section source, kind token_shards: random starts, documents, Megatron's format."""

from typing import Any

import pytest
from pydantic import ValidationError

from flodl_pipe.config.source_tokens import DocumentsConfig, TokenShardsConfig


def test_documents_add_fields() -> None:
    config = TokenShardsConfig(seq_len=8, documents={"eos": 0})
    assert config.documents == DocumentsConfig(eos=0, mask_targets=True)
    assert config.field_names() == ("input", "target", "document", "position")
    assert TokenShardsConfig(seq_len=8).field_names() == ("input", "target")


def test_megatron_is_a_format() -> None:
    assert TokenShardsConfig(seq_len=8, format="megatron").dtype is None


@pytest.mark.parametrize(
    ("keys", "at", "message"),
    [
        ({"starts": "random", "stride": 8}, "stride", "must be null when starts is random, got 8"),
        ({"starts": "random", "tail": "keep"}, "tail", "must be drop when starts is random, got keep"),
        ({"starts": "any"}, None, "'stride' or 'random'"),
        ({"documents": {}}, None, "Field required"),
        ({"documents": {"eos": -1}}, None, "greater than or equal to 0"),
        ({"documents": {"eos": 0, "bos": 1}}, None, "Extra inputs"),
    ],
)
def test_refusals(keys: dict[str, Any], at: str | None, message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        TokenShardsConfig(seq_len=8, **keys)
    (error,) = caught.value.errors()
    assert at is None or error["ctx"]["at"] == [at]


def test_random_starts_with_the_defaults_are_fine() -> None:
    assert TokenShardsConfig(seq_len=8, starts="random", tail="drop").starts == "random"
