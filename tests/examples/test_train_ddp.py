"""The training script on several ranks: the model of one process, equal shares or not."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "FLODL_")


def trained(folder, num_ranks, *words):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    program = str(ROOT / "docs" / "examples" / "train_ddp.py")
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}")
    done = subprocess.run(
        [sys.executable, *launcher, program, "--max-steps=12", "--save-every-steps=5", *words],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = re.findall(rf"^step 12 on {num_ranks} ranks: sum of weights ([\d.]+)$", done.stdout, re.MULTILINE)
    return float(found)


def test_unequal_ranks_train_the_model_of_one_process(tmp_path):
    alone = trained(tmp_path, 1, "--checkpoint=alone.pt")
    unequal = trained(tmp_path, 3, "--checkpoint=three.pt", "cluster.partition_ratios=[3,2,1]")
    assert abs(unequal - alone) < 1e-9 * alone
    assert (tmp_path / "three.pt").exists()
