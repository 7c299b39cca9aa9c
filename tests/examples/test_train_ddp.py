"""The training script on several ranks: the model of one process, equal shares or not."""

import re
from pathlib import Path

from tests.support.programs import launching, run

ROOT = Path(__file__).resolve().parents[2]


def trained(folder, num_ranks, *words):
    program = str(ROOT / "docs" / "examples" / "train_ddp.py")
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}")
    done = run(
        [*launcher, program, "--max-steps=12", "--save-every-steps=5", *words],
        cwd=folder,
        env=launching(folder, OMP_NUM_THREADS="1"),
        timeout=120,
        check=True,
    )
    (found,) = re.findall(rf"^step 12 on {num_ranks} ranks: sum of weights ([\d.]+)$", done.stdout, re.MULTILINE)
    return float(found)


def test_unequal_ranks_train_the_model_of_one_process(tmp_path):
    alone = trained(tmp_path, 1, "--checkpoint=alone.pt")
    unequal = trained(tmp_path, 3, "--checkpoint=three.pt", "cluster.partition_ratios=[3,2,1]")
    assert abs(unequal - alone) < 1e-9 * alone
    assert (tmp_path / "three.pt").exists()
