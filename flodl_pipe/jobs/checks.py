"""What jobs that check something have in common: they run alone, and end with status 1 when the check fails."""

import sys
from typing import NoReturn

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ClusterError

__all__ = ["fail", "require_alone"]


def require_alone(job: str, remedy: str) -> None:
    """Refuse to run once per rank.

    Raises:
        ClusterError: if torchrun started several processes.
    """
    world_size = RunContext.from_environment().world_size
    if world_size > 1:
        raise ClusterError(f"WORLD_SIZE={world_size}: job={job} is one process; start it without torchrun. {remedy}")


def fail(message: str, cause: BaseException | None = None) -> NoReturn:
    """Say on standard error what a check has found, and end the program with status 1.

    Raises:
        SystemExit: always.
    """
    sys.stderr.write(f"flodl_pipe: {message}\n")
    sys.stderr.flush()
    raise SystemExit(1) from cause
