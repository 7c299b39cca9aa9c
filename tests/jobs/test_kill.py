"""A run that is killed again and again, at moments it cannot prepare for, is the run nobody disturbed.

``FLODL_PIPE_KILLS`` says how often; the seed is fixed.
"""

import os
import random
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flodl_pipe.config.compose import load_config
from flodl_pipe.jobs.run import main
from flodl_pipe.jobs.save_file import read_saved
from flodl_pipe.keyed.digest import Digest
from flodl_pipe.pipeline import build_loader

KILLS_PER_CHAIN = int(os.environ.get("FLODL_PIPE_KILLS", "20")) // 2
EPOCHS = 3
PIPELINE = ("source.path=part-0.bin", "source.dtype=uint16", "source.format=raw", "source.seq_len=8")
# Two chains side by side, for the two processors a small machine has.
# Steps between two saves -> what else the chain is given.
CHAINS = {
    1: ("loader.batch_size=4", "sampling.drop_last=false"),
    3: ("loader.batch_size=3", "loader.mode=streaming", "loader.readers=2"),
}


def undisturbed(overrides):
    """Digest after each step of a run that nothing happens to."""
    digests = [Digest().hex()]
    with build_loader(load_config(*PIPELINE, *overrides), keep_digest=True) as loader:
        for epoch in range(EPOCHS):
            digests += [loader.statistics().digest for _ in loader.epoch(epoch)]
    return digests


def kill_once(program, overrides, path, goal, delay_s):
    """Start the program, wait until its save file has reached a step, and kill it a moment later."""
    words = [*PIPELINE, *overrides, f"job.epochs={EPOCHS}", f"job.save={path}", f"job.resume={path}"]
    words += ["job.step_time_s=0.001", "reports.progress=false", f"hydra.run.dir=logs/{path}"]
    with program(*words, stdout=subprocess.DEVNULL) as process:
        give_up = time.monotonic() + 50
        while process.poll() is None and time.monotonic() < give_up:
            # A place that can be read at any moment, and is never anything but whole.
            if Path(path).exists() and read_saved(Path(path)).num_steps >= goal:
                time.sleep(delay_s)
                break
            time.sleep(0.002)
        process.kill()
        _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err


def chain(program, every, path, digests):
    """Kill a run many times; after each, its save file must hold place and digest of one and the same step."""
    dice = random.Random(every)
    overrides = (*CHAINS[every], f"job.save_every_steps={every}")
    num_steps = 0
    for _ in range(KILLS_PER_CHAIN):
        kill_once(program, overrides, path, num_steps + dice.randint(1, 40), dice.uniform(0, 0.02))
        saved = read_saved(Path(path))
        assert saved.num_steps > num_steps
        assert saved.digest == digests[saved.num_steps]
        num_steps = saved.num_steps
    return num_steps


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="sends SIGKILL")
def test_many_kills_leave_the_digest_of_an_undisturbed_run(program, tokens, table):
    tokens(20_000)  # 2,499 windows
    whole = {every: undisturbed(overrides) for every, overrides in CHAINS.items()}
    with ThreadPoolExecutor(len(CHAINS)) as pool:
        killed = {every: pool.submit(chain, program, every, f"{every}.json", whole[every]) for every in CHAINS}
    for every, overrides in CHAINS.items():
        reached, last = killed[every].result(), len(whole[every]) - 1
        assert 0 < reached < last
        _, rows = table(main, load_config(*PIPELINE, *overrides, f"job.epochs={EPOCHS}", f"job.resume={every}.json"))
        assert rows["end"] == f"finished, {EPOCHS} epochs"
        assert rows["digest"] == whole[every][-1]
        assert rows["steps"].startswith(f"{last:,} ({reached:,} before, ")
    # A kill in the middle of a write leaves one small file at most, which does not stand in the way.
    left = [file.name for file in Path.cwd().glob(".*")]
    assert len(left) <= KILLS_PER_CHAIN * len(CHAINS)
    assert all(re.fullmatch(r"\.[13]\.json\.\d+-[0-9a-f]{8}\.part", name) for name in left)
