"""The examples in docstrings, run."""

import doctest
import importlib
from pathlib import Path

import pytest

import flodl_pipe

PACKAGE = Path(flodl_pipe.__file__).parent
MODULES = sorted(
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    for file in PACKAGE.rglob("*.py")
    if ">>> " in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_are_true(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


def test_there_are_examples():
    assert "flodl_pipe.units" in MODULES
