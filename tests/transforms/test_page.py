"""docs/transforms.md: what it shows runs, and what it says of the kinds is so."""

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
