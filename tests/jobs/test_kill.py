"""A run that is killed again and again, at moments it cannot prepare for, is the run nobody disturbed.

``FLODL_PIPE_KILLS`` says how often in the full suite; the seed is fixed.
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

from flodl_pipe.jobs.run import main
from flodl_pipe.jobs.save_file import read_saved
from flodl_pipe.keyed.digest import Digest
from flodl_pipe.pipeline import build_loader
from tests.jobs.composed import composed

KILLS_PER_CHAIN = int(os.environ.get("FLODL_PIPE_KILLS", "20")) // 2
# More than any run here comes to: 600 steps an epoch and more, of a millisecond at least.
EPOCHS = 1000
PIPELINE = ("source.path=part-0.bin", "source.dtype=uint16", "source.format=raw", "source.seq_len=8")
# Steps between two saves -> what else the chain is given.
CHAINS = {
    1: ("loader.batch_size=4", "sampling.drop_last=false"),
    3: ("loader.batch_size=3", "loader.mode=streaming", "loader.readers=2"),
}
LIMIT_S = 120  # of a program that saves nothing


def undisturbed(overrides, num_steps):
    """Digest after each of so many steps of a run that nothing happens to."""
    digests = [Digest().hex()]
    with build_loader(composed(*PIPELINE, *overrides), keep_digest=True) as loader:
        for epoch in range(EPOCHS):
            for _ in loader.epoch(epoch):
                digests.append(loader.statistics().digest)
                if len(digests) > num_steps:
                    return digests
    return digests


def kill_once(program, overrides, path, goal, delay_s):
    """Start the program, wait until its save file has reached a step, and kill it a moment later."""
    words = [*PIPELINE, *overrides, f"job.epochs={EPOCHS}", f"job.save={path}", f"job.resume={path}"]
    words += ["job.step_time_s=0.001", "reports.progress=false", f"hydra.run.dir=logs/{path}"]
    with program(*words, stdout=subprocess.DEVNULL) as process:
        give_up = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < give_up:
            # A place that can be read at any moment, and is never anything but whole.
            if Path(path).exists() and read_saved(Path(path)).num_steps >= goal:
                time.sleep(delay_s)
                break
            time.sleep(0.002)
        process.kill()
        _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err


def chain(program, every, num_kills):
    """Kill a run many times; return what its save file held after each: place and digest of one and the same step."""
    dice = random.Random(every)
    overrides, path = (*CHAINS[every], f"job.save_every_steps={every}"), f"{every}.json"
    found = []
    for _ in range(num_kills):
        reached = found[-1].num_steps if found else 0
        kill_once(program, overrides, path, reached + dice.randint(1, 40), dice.uniform(0, 0.02))
        found.append(read_saved(Path(path)))
        assert found[-1].num_steps > reached
    return found


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="sends SIGKILL")
@pytest.mark.parametrize(
    ("chains", "num_kills"),
    [([3], 2), pytest.param([1, 3], KILLS_PER_CHAIN, marks=pytest.mark.full)],
    ids=["a few", "many"],
)
def test_kills_leave_the_digest_of_an_undisturbed_run(program, tokens, table, chains, num_kills):
    tokens(20_000)  # 2,499 windows
    with ThreadPoolExecutor(len(chains)) as pool:  # side by side, for the two processors a small machine has
        killed = {every: pool.submit(chain, program, every, num_kills) for every in chains}
    for every in chains:
        saves = killed[every].result()
        reached = saves[-1].num_steps
        last = reached + 40
        whole = undisturbed(CHAINS[every], last)
        assert [saved.digest for saved in saves] == [whole[saved.num_steps] for saved in saves]
        words = (*CHAINS[every], f"job.epochs={EPOCHS}", f"job.max_steps={last}", f"job.resume={every}.json")
        _, rows = table(main, composed(*PIPELINE, *words))
        assert rows["digest"] == whole[last]
        assert rows["steps"].startswith(f"{last:,} ({reached:,} before, 40 now)")
    # A kill in the middle of a write leaves one small file at most, which does not stand in the way.
    left = [file.name for file in Path.cwd().glob(".*")]
    assert len(left) <= num_kills * len(chains)
    assert all(re.fullmatch(r"\.[13]\.json\.\d+-[0-9a-f]{8}\.part", name) for name in left)
