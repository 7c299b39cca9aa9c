"""Train a tiny next-byte model on the sample corpus, with checkpoints that resume exactly.

    python docs/examples/train_tiny.py --max-steps 200
    python docs/examples/train_tiny.py --max-steps 100 && python docs/examples/train_tiny.py --max-steps 200

Both lines end with the same model, bit for bit: the checkpoint holds the model, the optimizer and the loader's place,
and the second run of the second line goes on with the very next batch.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

import flodl_pipe

VOCABULARY = 257  # the sample corpus: one token a byte, and 256 at the end of a file
WIDTH = 32


def train(checkpoint: Path, max_steps: int, save_every_steps: int) -> tuple[nn.Module, list[float]]:
    """Train until step ``max_steps``, from the checkpoint if there is one; return the model and the new losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    with flodl_pipe.load("olmo_shards", "source.seq_len=64", "loader.batch_size=16") as loader:
        step = 0
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]
        while step < max_steps:
            for x, y in loader:  # goes on at the loaded place, then epoch after epoch
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                losses.append(loss.item())
                if step % save_every_steps == 0 or step == max_steps:
                    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    # A new file, then a rename: a crash in between leaves the old checkpoint whole.
                    torch.save({**saved, "loader": loader.state_dict()}, checkpoint.with_suffix(".new"))
                    checkpoint.with_suffix(".new").replace(checkpoint)
                    print(f"step {step}: loss {loss.item():.4f}")
                if step == max_steps:
                    break
    return model, losses


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train a tiny next-byte model.")
    parser.add_argument("--max-steps", type=int, default=200, help="steps in all, over all runs")
    parser.add_argument("--save-every-steps", type=int, default=50)
    parser.add_argument("--checkpoint", type=Path, default=Path("train_tiny.pt"))
    options = parser.parse_args(argv)
    train(options.checkpoint, options.max_steps, options.save_every_steps)


if __name__ == "__main__":
    main()
