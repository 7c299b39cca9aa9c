"""docs/examples/train_tiny.py does what it says."""

import importlib.util
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "examples" / "train_tiny.py"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The script as a module, in an empty folder, with this process's random state put back afterwards."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("train_tiny", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.random.fork_rng(devices=[]):
        yield module


@pytest.mark.full
def test_it_learns_and_an_interrupted_run_ends_with_the_same_model(example):
    whole, losses = example.train(Path("whole.pt"), max_steps=60, save_every_steps=1000)
    _, first = example.train(Path("parts.pt"), max_steps=25, save_every_steps=10)
    parts, second = example.train(Path("parts.pt"), max_steps=60, save_every_steps=10)
    assert losses[-1] < losses[0] - 1
    assert first + second == losses
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(whole.parameters(), parts.parameters(), strict=True))


def test_its_command_line_leaves_a_checkpoint_and_goes_on_from_it(example, capsys):
    example.main(["--max-steps", "3", "--checkpoint", "model.pt"])
    example.main(["--max-steps", "5", "--save-every-steps", "4", "--checkpoint", "model.pt"])
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["step 3", "step 4", "step 5"]
    assert [file.name for file in Path().iterdir()] == ["model.pt"]
