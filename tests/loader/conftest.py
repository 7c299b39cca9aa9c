"""Tests of the loader: torch computes in the thread that asks for it."""

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def _one_thread_of_torch():
    """Torch's own threads spin while they wait: beside other programs that takes ten times what the work does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
