"""From a validated config to the job it names.

A job of kind K is the function ``main`` of the module ``flodl_pipe.jobs.K``. The module is imported when the job runs,
so that ``--help`` and errors in the config never wait for torch.
"""

import importlib
from collections.abc import Callable
from typing import cast

from flodl_pipe.config.root import Config

__all__ = ["run_job"]


def run_job(config: Config) -> float | None:
    """Run the job that a config names and return its number, if it has one, for sweepers to optimise."""
    # The kind is one of the schema's literals, so this cannot import anything else.
    module = importlib.import_module(f"flodl_pipe.jobs.{config.job.kind}")
    return cast("Callable[[Config], float | None]", module.main)(config)
