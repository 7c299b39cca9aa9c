"""docs/samplers.md: its examples run."""

import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "samplers.md").read_text(encoding="utf-8")
LOADING, FACTORY = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_loaders_of_the_page_run(capsys):
    exec(LOADING, {})
    assert capsys.readouterr().out == "32\n"


def test_the_function_of_the_page_makes_a_batch_sampler_of_a_source():
    names = {}
    exec(FACTORY, names)
    assert list(names["whole_batches"](range(10), rows=4)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
