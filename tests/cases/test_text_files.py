"""Odd text files, each with the outcome it must have. They lie in ``shared/cases/odd`` beside the checkout."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.sources.text import Text
from tests.contract.sources import read_delivered

ODD = Path(__file__).parents[3] / "shared" / "cases" / "odd"

pytestmark = pytest.mark.skipif(not ODD.is_dir(), reason="shared/cases is not beside the checkout")


def cases() -> list[Any]:
    if not ODD.is_dir():
        return [pytest.param(None, id="cases")]
    rows = json.loads((ODD / "EXPECT.json").read_text(encoding="utf-8"))
    return [pytest.param(row, id=row["file"]) for row in rows if row["kind"] == "text"]


def open_case(row: dict[str, Any], **options: Any) -> Text:
    stated = row["opts"]
    split = {"train_fraction": stated["split"][0], "split": stated["use"]} if "split" in stated else {"split": "all"}
    return Text.open(str(ODD / row["file"]), **{"seq_len": stated.get("seq_len", 1), **split, **options})


@pytest.mark.parametrize("row", cases())
def test_an_odd_text_has_the_outcome_it_must_have(row: dict[str, Any]) -> None:
    if row["outcome"] == "error":
        with pytest.raises(SourceError) as caught:
            open_case(row)
        text = str(caught.value)
        assert any(says in text for says in row["says"]), text
        assert str(ODD / row["file"]) in text
        return
    want = row["want"]
    if row["outcome"] == "policy":  # CR LF is folded, on every system
        (want,) = [one["folded"] for one in want["one_of"] if "folded" in one]
    source = open_case(row)
    batch = read_delivered(source, np.arange(len(source)))
    text = source.decode([*batch["input"][:, 0], batch["target"][-1, 0]])
    assert (len(text), len(source.vocab)) == (want["chars"], want["vocab"])
    assert source.encode(text)[:8].tolist() == want["first8"]
    assert hashlib.sha256(text.encode()).hexdigest() == want["sha_utf8"]


def test_the_part_for_training_of_the_same_text_has_windows() -> None:
    row = {"file": "text/val_too_short.txt", "opts": {"seq_len": 16, "split": [0.9, 0.1], "use": "train"}}
    assert len(open_case(row)) == 5
