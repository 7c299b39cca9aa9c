"""Train a tiny next-byte model on several ranks, unequal ones too, and go on after ranks were lost.

    torchrun --nproc-per-node 3 --max-restarts 3 docs/examples/train_ddp.py --max-steps 200
    torchrun --nproc-per-node 3 docs/examples/train_ddp.py cluster.partition_ratios=[3,2,1]

The model after a number of steps is the same for one rank and for three, equal or not, up to rounding: a step takes the
same samples, and gradients are weighted by how many of them a rank had. A rank that is killed takes nothing along but
the steps since the last checkpoint; torchrun starts the ranks anew, and they go on from there.
"""

import argparse
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import flodl_pipe

VOCABULARY = 257  # the sample corpus: one token a byte, and 256 at the end of a file
WIDTH = 32
GLOBAL_BATCH = 48


def train(checkpoint: Path, max_steps: int, save_every_steps: int, overrides: Sequence[str]) -> nn.Module:
    """Train until step ``max_steps``, from the checkpoint if there is one; return the model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)).double()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = ("source.seq_len=64", f"loader.global_batch_size={GLOBAL_BATCH}", "loader.device=cpu")
    with flodl_pipe.load("olmo_shards", *batches, *overrides) as loader:
        flodl_pipe.attach(parallel, loader)
        step = 0
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]
        while step < max_steps:
            for batch in loader:
                inputs, targets = batch
                loss = nn.functional.cross_entropy(parallel(inputs).flatten(0, 1), targets.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if distributed.get_rank() == 0 and (step % save_every_steps == 0 or step == max_steps):
                    state = {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict(),
                        "step": step,
                    }
                    beside = checkpoint.with_suffix(".part")
                    torch.save(state, beside)
                    beside.replace(checkpoint)  # whole or not at all
                if step == max_steps:
                    break
    return model


def main(argv: Sequence[str] | None = None) -> None:
    """Train as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=Path("train_ddp.pt"))
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--save-every-steps", type=int, default=20)
    parser.add_argument("overrides", nargs="*", help="of the recipe, such as cluster.partition_ratios=[3,2,1]")
    arguments = parser.parse_args(argv)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    model = train(arguments.checkpoint, arguments.max_steps, arguments.save_every_steps, arguments.overrides)
    if distributed.get_rank() == 0:
        total = sum(float(parameter.detach().abs().sum()) for parameter in model.parameters())
        print(f"step {arguments.max_steps} on {distributed.get_world_size()} ranks: sum of weights {total:.12f}")
    distributed.barrier()
    distributed.destroy_process_group()
    time.sleep(0.3)  # threads of gloo end after the group; without this some programs abort at their exit


if __name__ == "__main__":
    main()
