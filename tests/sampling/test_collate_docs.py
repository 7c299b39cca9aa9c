"""docs/collation.md: its Python runs, and the keys it lists have the defaults it gives."""

import re
from pathlib import Path

import pytest
import yaml

from flodl_pipe.config.loader import LoaderConfig

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "collation.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)


def test_there_is_an_example_of_each_way():
    assert len(BLOCKS) == 4


@pytest.mark.parametrize("code", BLOCKS, ids=["pad", "ragged", "labels", "function"])
def test_the_python_runs(code):
    names = {"__name__": "page"}
    exec(compile(code, "collation.md", "exec"), names)
    assert names["batch"].size > 1


def test_the_keys_have_the_defaults_given():
    rows = re.findall(r"^\| `loader\.(\w+)` \| `(\S+)` \|", TEXT, flags=re.MULTILINE)
    assert [name for name, _ in rows] == ["pad_id", "pad_multiple", "labels_from", "pad_length"]
    for name, written in rows:
        assert LoaderConfig.model_fields[name].default == yaml.safe_load(written)
