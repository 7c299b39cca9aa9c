"""docs/transforms.md: what it shows runs, and what it says of the kinds is so."""

import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.chain import as_chain
from tests.transforms.test_build import STEPS, chain_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "transforms.md").read_text()
LOADING, OWN = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_chain_of_the_page_runs(capsys):
    exec(LOADING, {})
    assert capsys.readouterr().out == "torch.float32 (64, 3, 32, 32)\n"


def test_the_function_of_the_page_is_a_transform():
    names = {}
    exec(OWN, names)
    keys = PickKeys(np.arange(4), np.zeros(4, np.int64), 0, 42)
    given = Batch(("image", "label"), (torch.zeros(4, 3, 8, 8), torch.arange(4)), pick_keys=keys)
    made = as_chain({"noise": names["add_noise"]})(given, keys)
    assert made["image"].dtype == torch.float32
    assert len(made["image"].unique()) == 4
    assert made["image"].abs().max() <= 0.05


@pytest.mark.parametrize("kind", STEPS)
def test_the_scope_of_a_kind_is_what_the_page_says(kind):
    (row,) = [line for line in PAGE.splitlines() if re.match(rf"\| [^|]*`{kind}`[^|]* \| (row|pair|batch) \|", line)]
    assert row.split("|")[2].strip() == chain_of(one=dict(kind=kind, **STEPS[kind][0])).scope


def classes():
    """Yield module, class, and the arguments of each that stand in the page's table."""
    (table,) = re.findall(r"^\| import from .*?\n\n", PAGE, re.DOTALL | re.MULTILINE)
    module = ""
    for line in table.strip().splitlines()[2:]:
        where, names, *arguments = [re.findall(r"`([\w.]+)`", cell) for cell in line.split("|")[1:5]]
        module = where[0] if where else module
        yield from ((module, name, *arguments) for name in names)


@pytest.mark.parametrize(("module", "name", "by_position", "by_name"), list(classes()))
def test_a_class_is_imported_and_called_as_the_page_says(module, name, by_position, by_name):
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == by_position
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == by_name


def test_every_kind_is_in_the_table_of_classes():
    kinds = {re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for _, name, _, _ in classes()}
    assert kinds | {"function"} == set(STEPS) | {"function"}


def test_a_batch_is_changed_in_place_as_the_page_says():
    keys = PickKeys(np.arange(4), np.zeros(4, np.int64), 0, 42)

    def halve(batch, keys):
        batch["image"].mul_(0.5)
        return batch

    def assign(batch, keys):
        batch["image"] = batch["image"] * 0.5
        return batch

    given = Batch(("image",), (torch.ones(4, 3, 8, 8),), pick_keys=keys)
    assert as_chain(halve)(given, keys)["image"].unique().tolist() == [0.5]
    with pytest.raises(TypeError, match="item assignment"):
        assign(given, keys)
