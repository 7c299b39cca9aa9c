"""The training script on several ranks: the model of one process, equal shares or not."""

from pathlib import Path

import pytest
import torch

from tests.support.programs import launching, run

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]


def trained(folder, num_ranks, *words):
    """Return what the script has left in its checkpoint."""
    program = str(ROOT / "docs" / "examples" / "train_ddp.py")
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}")
    checkpoint = folder / f"of_{num_ranks}.pt"
    done = run(
        [*launcher, program, "--max-steps=12", "--save-every-steps=5", f"--checkpoint={checkpoint}", *words],
        cwd=folder,
        env=launching(folder, OMP_NUM_THREADS="1"),
        timeout=300,
        check=True,
    )
    assert f"step 12 on {num_ranks} ranks: sum of weights " in done.stdout
    return torch.load(checkpoint, weights_only=True)


def test_unequal_ranks_train_the_model_of_one_process(tmp_path):
    alone = trained(tmp_path, 1)
    unequal = trained(tmp_path, 3, "cluster.partition_ratios=[3,2,1]")
    assert alone["step"] == unequal["step"] == 12
    for name, weights in alone["model"].items():
        torch.testing.assert_close(unequal["model"][name], weights, rtol=0, atol=1e-9)
