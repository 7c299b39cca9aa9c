"""A loop of one's own, as docs/frameworks.md writes it."""

import torch

from tests.ecosystem.data import run_section


def test_the_page_about_frameworks_runs_and_resumes():
    heading = "A loop of your own"
    run_section(heading)
    (saved,) = {torch.load("checkpoint.pt")["loader"]["epoch"]}
    assert saved == 2
    run_section(heading)  # goes on where the last checkpoint was
