"""The Python of the pages about orders and samplers runs as it stands."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCKS = [
    pytest.param(block, id=f"{name}-{number}")
    for name in ("orders", "samplers", "determinism")
    for number, block in enumerate(
        re.findall(
            r"^```python\n(.*?)^```$", (DOCS / f"{name}.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_it_runs(block):
    exec(compile(block, "a page", "exec"), {"__name__": "page"})
