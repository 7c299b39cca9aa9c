"""Section source, kind shakespeare: what it takes and refuses."""

from typing import Any

import pytest
from pydantic import ValidationError

from flodl_pipe.config.source_text import TextConfig


def test_defaults_are_those_documented() -> None:
    config = TextConfig(seq_len=8)
    assert (config.path, config.if_missing, config.split, config.train_fraction) == (None, "error", "train", 0.9)
    assert (config.stride, config.tail, config.starts) == (None, "drop", "stride")
    assert config.field_names() == ("input", "target")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"seq_len": 0}, "greater than or equal to 1"),
        ({"split": "test"}, "'train', 'val' or 'all'"),
        ({"train_fraction": 0}, "greater than 0"),
        ({"train_fraction": 1.5}, "less than or equal to 1"),
        ({"train_fraction": float("nan")}, "finite|nan"),
        ({"starts": "random", "stride": 8}, "must be null when starts is random, got 8"),
        ({"starts": "random", "tail": "keep"}, "must be drop when starts is random, got keep"),
        ({"path": []}, "at least one path"),
        ({"vocab_size": 65}, "Extra inputs"),
    ],
)
def test_refusals(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TextConfig(**{"seq_len": 8, **keys})
