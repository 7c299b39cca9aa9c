"""For the tests with other people's trainers: those set global seeds, change folders and keep state of a process."""

import random

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def _process_as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where trainers write their checkpoints
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002 - a trainer sets it
    threads = torch.get_num_threads()
    yield
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])
    torch.set_num_threads(threads)
