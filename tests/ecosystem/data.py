"""A small data set whose first field tells which samples were delivered, and what plain loops get of it."""

import re
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import flodl_pipe

NUM_SAMPLES, BATCH = 42, 4
STEPS = NUM_SAMPLES // BATCH  # the last two samples of an epoch are dropped
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "frameworks.md").read_text(encoding="utf-8")


def dataset():
    ids = torch.arange(NUM_SAMPLES)
    return TensorDataset(ids, torch.stack([ids.sin(), ids.cos()], dim=1))


def new_loader(**keywords):
    return flodl_pipe.Loader(dataset(), **{"batch_size": BATCH, "names": ["ids", "x"], **keywords})


def plain(num_epochs, **keywords):
    """The ids of every batch of a loop that is not interrupted, epoch by epoch in one list."""
    with new_loader(**keywords) as loader:
        return [batch["ids"].tolist() for epoch in range(num_epochs) for batch in loader.epoch(epoch)]


def run_section(heading):
    """Run the Python of a section of docs/frameworks.md, one block after the other; return the names it defines."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"^```python\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)
    names = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, f"docs/frameworks.md, {heading}", "exec"), names)
    return names
